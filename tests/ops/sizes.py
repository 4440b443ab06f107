"""What the tests' modules and inputs are unless they say otherwise."""

B, L, S, D, H = 2, 7, 11, 24, 3

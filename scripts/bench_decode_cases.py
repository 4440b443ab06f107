"""What the engines of `bench_decode.py` are given: steps of generation, single ones and many, and small inputs."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from bench_cases import SELF, Case, Problem, largest_deviation
from lesson import scaled_dot_product_attention

# The last of S positions, where the others are cached; its attention alone; S steps from an empty cache.
STEP, ATTENTION, GENERATION = ("step", "attention", "generation")

_SMALL_SHAPES = ((1, 1, 512, 8), (1, 4, 512, 8), (1, 16, 512, 8), (2, 16, 32, 4))
_GENERATED = ((1, 512, 8), (1, 1024, 16), (8, 512, 8), (8, 1024, 16))


def standard_cases(steps: int) -> list[Case]:
    return [
        Case(1, 1, 2048, 1024, 16, STEP),
        Case(1, 1, 2048, 1024, 16, ATTENTION),
        *(
            Case(batch, length, length, d_model, heads, SELF)
            for batch, length, d_model, heads in _SMALL_SHAPES
        ),
        *(Case(batch, steps, steps, d_model, heads, GENERATION) for batch, d_model, heads in _GENERATED),
    ]


def cases_of_shape(shape: Sequence[int]) -> list[Case]:
    """Every kind of case for one (B, L, D, H)."""
    batch, length, d_model, num_heads = shape
    return [
        Case(batch, 1, length, d_model, num_heads, STEP),
        Case(batch, 1, length, d_model, num_heads, ATTENTION),
        Case(batch, length, length, d_model, num_heads, SELF),
        Case(batch, length, length, d_model, num_heads, GENERATION),
    ]


def bytes_read(case: Case, dtype: str) -> int:
    """Of the weights, and of cached keys and values: what no call can do without. 0: not told."""
    weights, cache = 4 * case.d_model**2, 2 * case.batch * case.key_len * case.d_model
    elements = {SELF: weights, STEP: weights + cache, ATTENTION: cache, GENERATION: 0}[case.kind]
    return elements * {"float32": 4, "bfloat16": 2}[dtype]


def split_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(B, L, D) -> (B, H, L, d_k)"""
    return x.view(x.shape[0], x.shape[1], num_heads, -1).transpose(1, 2)


class StepProblem(Problem):
    """`query` is the last row of `memory`, of which the rows before are in the cache."""

    def __init__(self, case: Case, dtype: str, *, reference: torch.Tensor | None = None) -> None:
        super().__init__(case, dtype, reference=reference)
        self.memory = torch.cat([self.randn(case.batch, case.key_len - 1, case.d_model), self.query], 1)

    @cached_property
    def past(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows before: each (B, H, S - 1, d_k)."""
        layers, rows = (self.module.W_k, self.module.W_v), self.memory[:, :-1]
        keys, values = (split_heads(layer(rows), self.case.num_heads).contiguous() for layer in layers)
        return keys, values

    def padded_past(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`past` in new memory that has room for one position more."""
        keys, values = (torch.nn.functional.pad(tensor, (0, 0, 0, 1)) for tensor in self.past)
        return keys, values


class AttentionProblem(Problem):
    """Without projections: `query` is (B, H, 1, d_k), `key` and `value` are (B, H, S, d_k)."""

    def __init__(self, case: Case, dtype: str, *, reference: torch.Tensor | None = None) -> None:
        super().__init__(case, dtype, reference=reference)
        d_k = case.d_model // case.num_heads
        self.query, self.key, self.value = (
            self.randn(case.batch, case.num_heads, length, d_k)
            for length in (case.query_len, case.key_len, case.key_len)
        )

    @cached_property
    def reference(self) -> torch.Tensor:
        return scaled_dot_product_attention(self.query.double(), self.key.double(), self.value.double())[0]


class GenerationProblem(Problem):
    """Step i is given row i of `query`. Outputs are compared by step: {i: (B, 1, D)}."""

    @property
    def causal(self) -> bool:
        return True

    def error(self, outputs: Mapping[int, torch.Tensor]) -> float:
        places = [place for place, row in enumerate(self.rows.tolist()) if row in outputs]
        rows = self.rows[places].tolist()
        return largest_deviation(torch.cat([outputs[row] for row in rows], 1), self.reference[:, places])


PROBLEMS = {SELF: Problem, STEP: StepProblem, ATTENTION: AttentionProblem, GENERATION: GenerationProblem}

import math

import pytest
import torch

from lesson import MultiHeadAttention, scaled_dot_product_attention


def test_shapes_of_the_lessons_question():
    """The lesson asks for the shape of Q given (32, 50, 512) and 8 heads."""
    module = MultiHeadAttention(512, 8)
    x = torch.randn(32, 50, 512)
    seen = {}

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func.__name__ == "matmul":
                seen.setdefault("Q", args[0].shape)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        output = module(x, x, x)
    assert seen["Q"] == (32, 8, 50, 64)
    assert output.shape == (32, 50, 512)
    assert module.attention_weights.shape == (32, 8, 50, 50)


def test_state_dict_names():
    names = [f"{layer}.{kind}" for layer in ("W_q", "W_k", "W_v", "W_o") for kind in ("weight", "bias")]
    assert list(MultiHeadAttention(12, 2).state_dict()) == names


def test_heads_must_divide_the_features():
    with pytest.raises(AssertionError, match="d_model must be divisible by num_heads"):
        MultiHeadAttention(512, 7)


def test_attention_is_softmax_of_scaled_scores():
    query, key, value = (torch.randn(2, 3, length, 5, dtype=torch.float64) for length in (4, 6, 6))
    output, weights = scaled_dot_product_attention(query, key, value)
    expected = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(5), -1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, expected @ value)


def test_fully_masked_row_is_uniform():
    query = torch.randn(1, 2, 4, 8)
    mask = torch.ones(4, 4)
    mask[2] = 0
    _, weights = scaled_dot_product_attention(query, query, query, mask)
    assert torch.equal(weights[:, :, 2], torch.full((1, 2, 4), 0.25))


def test_dropout_acts_in_training_only():
    module = MultiHeadAttention(12, 2, dropout=0.5)
    x = torch.randn(2, 9, 12)
    module.eval()(x, x, x)
    torch.testing.assert_close(module.attention_weights.sum(-1), torch.ones(2, 2, 9))
    module.train()(x, x, x)
    assert (module.attention_weights == 0).any()

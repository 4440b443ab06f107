"""What the library refuses is a ValueError of one line, with and without values to compute."""

import pytest
import torch

from sizes import B, D, H, L

CALLS = [
    (lambda fused, x: fused.forward(x[0]), r"query: expected 3 dimensions .* found shape \(7, 24\)"),
    (
        lambda fused, x: fused.forward(x, x.new_ones(3, 3)),
        r"mask: expected a shape that broadcasts .* = \(2, 3, 7, 7\) .* found \(3, 3\)",
    ),
    (
        lambda fused, x: fused.forward(x, x.new_ones(1, 1, 1, 1, 1)),
        "mask: expected a shape that broadcasts .* without enlarging it",
    ),
    (lambda fused, x: fused.cross(x, x[:1]), r"key: expected batch 2 .* found shape \(1, 7, 24\)"),
    (lambda fused, x: fused.forward(x[:0]), "query: expected a batch of at least 1"),
    (
        lambda fused, x: fused.attend(x, x, x[:, :3]),
        r"value: expected length 7 .* found shape \(2, 3, 24\)",
    ),
    (
        lambda fused, x: fused.attention_weights(x, x.double()),
        "key: expected dtype float32 .* found float64",
    ),
    (lambda fused, x: fused.attend(x, x[..., :5], x), "key: expected last dimension 24"),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("call", "message"), CALLS)
def test_calls(fused, randn, one_line, device, call, message):
    x = randn(B, L, D).to(device)
    one_line(ValueError, message, lambda: call(fused, x))


def test_describe(fused, randn, one_line):
    x = randn(B, L, D)
    one_line(ValueError, "value: expected last dimension 24", lambda: fused.describe(x, x, x[..., :5]))


HEADS = [
    (lambda call, q: call(q[0], q, q), r"query: expected 4 dimensions .* found shape \(3, 7, 8\)"),
    (
        lambda call, q: call(q, q[:, :2], q),
        r"key: expected batch, num_heads and d_k of query, \(2, 3, 7, 8\)",
    ),
    (lambda call, q: call(q, q, q[..., :4]), "value: expected batch, num_heads and d_k of query"),
    (lambda call, q: call(q, q, q[:, :, :5]), "value: expected length 7 .key_len., found shape"),
    (lambda call, q: call(q, q.double(), q), "key: expected dtype float32 .* found float64"),
    (
        lambda call, q: call(q.long(), q, q),
        "query: expected dtype float32, bfloat16, float64 or float16, found int64",
    ),
    (lambda call, q: call(q, q, q, q.new_ones(5)), "mask: expected a shape that broadcasts"),
    (lambda call, q: call(q.half(), q.half(), q.half(), q.new_ones(7)), "mask: expected none with float16"),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("call", "message"), HEADS)
def test_scaled_dot_product_attention(ops, randn, one_line, device, call, message):
    query = randn(B, H, L, 8).to(device)
    one_line(ValueError, message, lambda: call(ops.scaled_dot_product_attention, query))


def test_multi_head_attention(ops, lesson, randn, one_line):
    x = randn(B, L, D)
    weights = list(lesson.state_dict().values())

    def refused(message, *, x=x, weights=weights, num_heads=H, mask=None):
        one_line(ValueError, message, lambda: ops.multi_head_attention(x, x, x, weights, num_heads, mask))

    refused("weights: expected W_q.weight, .* found 7 tensors", weights=weights[:7])
    refused(r"W_q.weight: expected shape .* found shape \(24,\)", weights=weights[1:] + weights[:1])
    refused(
        r"W_k.bias: expected shape \(24,\), found shape \(3,\)",
        weights=[*weights[:3], x.new_ones(3), *weights[4:]],
    )
    refused("W_v.weight: expected dtype float32", weights=[*weights[:4], weights[4].double(), *weights[5:]])
    refused("num_heads: expected a divisor of d_model 24, found 5", num_heads=5)
    refused("num_heads: expected a divisor of d_model 24, found 0", num_heads=0)
    refused("query: expected last dimension 24", x=x[..., :5])
    refused("mask: expected a shape that broadcasts", mask=x.new_ones(3, 3))


def test_gradients_are_not_dropped(ops, fused, lesson, randn, one_line):
    x = randn(B, L, D)
    heads = x.view(B, L, H, D // H).transpose(1, 2)
    asked = x.clone().requires_grad_()
    weights = list(lesson.parameters())
    message = "expected no gradients to record, found a tensor that requires them; "
    with torch.enable_grad():
        one_line(ValueError, "query: " + message, lambda: fused.forward(asked))
        one_line(ValueError, "query: " + message, lambda: fused.forward(asked.to("meta")))
        one_line(ValueError, "W_q.weight: " + message, lambda: ops.multi_head_attention(x, x, x, weights, H))
        one_line(
            ValueError,
            "key: " + message,
            lambda: ops.scaled_dot_product_attention(heads, heads.clone().requires_grad_(), heads),
        )
        assert torch.equal(fused.forward(x), fused.forward(asked.detach()))


@pytest.mark.parametrize("name", ["FusedMultiHeadAttention", "MultiHeadAttention"])
@pytest.mark.parametrize(
    ("change", "num_heads", "message"),
    [
        (lambda weights: weights.pop("W_o.bias"), H, 'missing "W_o.bias"'),
        (lambda weights: weights.pop("W_q.weight"), H, 'W_q.weight"'),
        (lambda weights: weights.update(more=torch.ones(1)), H, 'unexpected "more"'),
        (lambda weights: weights.update({"W_k.bias": torch.ones(3)}), H, r"W_k.bias.*\(24,\).*\(3,\)"),
        (lambda weights: None, 5, "d_model must be divisible by num_heads"),
        (lambda weights: None, 0, "num_heads must be positive"),
    ],
)
def test_constructors(classes, lesson, one_line, name, change, num_heads, message):
    weights = dict(lesson.state_dict())
    change(weights)
    one_line(ValueError, message, lambda: getattr(classes, name)(weights, num_heads))


def test_objects_of_other_classes(ops, classes, fused, randn):
    x = randn(B, L, D)
    cache = classes.KeyValueCache(fused, B, 4)
    for other in (None, cache, 3):
        with pytest.raises(RuntimeError, match="FusedMultiHeadAttention"):
            ops.attend(other, x, x, x)

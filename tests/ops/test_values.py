"""Values are the lesson's."""

import pytest
import torch

from sizes import B, D, H, L, S


def test_lesson_is_bit_exact(classes, lesson, randn):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(4)) < 0.7
    ours = classes.MultiHeadAttention(lesson.state_dict(), H)
    assert ours.attention_weights() is None
    for arguments in ((query, key, value), (query, key, value, mask)):
        assert torch.equal(ours.forward(*arguments), lesson(*arguments))
        assert torch.equal(ours.attention_weights(), lesson.attention_weights)


def test_fused_forward(fused, lesson, randn, check):
    x = randn(B, L, D)
    mask = torch.ones(L, L, dtype=torch.bool).tril()
    check(fused.forward(x), lesson(x, x, x))
    check(fused.forward(x, mask), lesson(x, x, x, mask))
    check(fused.forward(x, causal=True), lesson(x, x, x, mask))
    padding = torch.arange(L) < 4
    check(fused.forward(x, mask=padding, causal=True), lesson(x, x, x, mask & padding))


def test_fused_cross_and_attend(fused, lesson, randn, check):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.ones(L, S, dtype=torch.bool).tril()  # top left: query 0 sees key 0 only
    check(fused.cross(query, key), lesson(query, key, key))
    check(fused.cross(query, key, causal=True), lesson(query, key, key, mask))
    check(fused.attend(query, key, value), lesson(query, key, value))
    check(fused.attend(query, key, value, mask=mask), lesson(query, key, value, mask))


def test_fused_attention_weights(fused, lesson, randn, check):
    query, key = randn(B, L, D), randn(B, S, D)
    lesson(query, key, key)
    check(fused.attention_weights(query, key), lesson.attention_weights)


def test_methods_are_operators(ops, fused, randn):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.arange(S) < 8
    assert torch.equal(ops.attend(fused, query, key, value, mask), fused.attend(query, key, value, mask))
    assert torch.equal(ops.attend(fused, query, query, query, causal=True), fused.forward(query, causal=True))
    assert torch.equal(ops.attention_weights(fused, query, key), fused.attention_weights(query, key))


def test_dtype(classes, lesson, randn, one_line):
    x = randn(B, L, D).bfloat16()
    fused = classes.FusedMultiHeadAttention(lesson.state_dict(), H, torch.bfloat16)
    found = fused.forward(x)
    assert found.dtype == torch.bfloat16
    exact = lesson.bfloat16().double()(x.double(), x.double(), x.double())
    assert (found.double() - exact).abs().max() < 0.05 * exact.abs().max()
    one_line(ValueError, "expected dtype bfloat16 .* found float32", lambda: fused.forward(x.float()))


def test_what_it_is_made_of(fused, lesson):
    assert fused.d_model() == D
    assert fused.num_heads() == H
    weights = fused.state_dict()
    assert list(weights) == list(lesson.state_dict())
    for name, value in lesson.state_dict().items():
        assert torch.equal(weights[name], value)


def test_later_changes_do_not_reach_it(fused, lesson, randn):
    x = randn(B, L, D)
    before = fused.forward(x)
    for parameter in lesson.parameters():
        parameter.zero_()
    for tensor in fused.state_dict().values():
        tensor.zero_()
    assert torch.equal(fused.forward(x), before)
    assert fused.state_dict()["W_q.weight"].any()


def test_describe(fused, randn):
    x = randn(B, L, D)
    told = fused.describe(x, x, x, causal=True)
    assert told.startswith("float32 on cpu: ") and "\n" not in told


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_dot_product_attention(ops, randn, check, dtype):
    from lesson import scaled_dot_product_attention

    query, key, value = (randn(B, H, length, 8).to(dtype) for length in (L, S, S))
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(4)) < 0.7
    mask[0, 0, 2] = False  # a fully blocked row is the mean of the values
    causal = torch.ones(L, S, dtype=torch.bool).tril()

    def expected(mask=None):
        return scaled_dot_product_attention(query, key, value, mask)[0]

    check(ops.scaled_dot_product_attention(query, key, value), expected())
    check(ops.scaled_dot_product_attention(query, key, value, mask), expected(mask))
    check(ops.scaled_dot_product_attention(query, key, value, causal=True), expected(causal))
    rows = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value)]
    check(ops.scaled_dot_product_attention(*rows, mask=mask), expected(mask))


def test_multi_head_attention(ops, lesson, randn, check):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.ones(L, S, dtype=torch.bool).tril()
    weights = list(lesson.state_dict().values())
    check(ops.multi_head_attention(query, key, value, weights, H), lesson(query, key, value))
    check(ops.multi_head_attention(query, key, value, weights, H, mask), lesson(query, key, value, mask))
    check(
        ops.multi_head_attention(query, key, value, weights, H, causal=True), lesson(query, key, value, mask)
    )


def test_autocast_plays_no_part(ops, fused, lesson, randn):
    x = randn(B, L, D)
    weights = list(lesson.state_dict().values())
    expected = fused.forward(x), ops.multi_head_attention(x, x, x, weights, H)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fused.forward(x), expected[0])
        assert torch.equal(ops.multi_head_attention(x, x, x, weights, H), expected[1])

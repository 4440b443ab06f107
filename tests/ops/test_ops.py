"""libmha_ops.so, the library that Python loads: its values are the lesson's, its errors are Python's."""

import pytest
import torch

from lesson import MultiHeadAttention

B, L, S, D, H = 2, 7, 11, 24, 3


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def lesson(randn):
    module = MultiHeadAttention(D, H).eval()
    for parameter in module.parameters():
        parameter.copy_(randn(*parameter.shape) * D**-0.5)
    return module


@pytest.fixture
def fused(classes, lesson):
    return classes.FusedMultiHeadAttention(lesson.state_dict(), H)


def check(found, expected):
    assert expected.abs().max() > 0.1  # a result that says something
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_lesson_is_bit_exact(classes, lesson, randn):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(4)) < 0.7
    ours = classes.MultiHeadAttention(lesson.state_dict(), H)
    assert ours.attention_weights() is None
    for arguments in ((query, key, value), (query, key, value, mask)):
        assert torch.equal(ours.forward(*arguments), lesson(*arguments))
        assert torch.equal(ours.attention_weights(), lesson.attention_weights)


def test_fused_forward(fused, lesson, randn):
    x = randn(B, L, D)
    mask = torch.ones(L, L, dtype=torch.bool).tril()
    check(fused.forward(x), lesson(x, x, x))
    check(fused.forward(x, mask), lesson(x, x, x, mask))
    check(fused.forward(x, causal=True), lesson(x, x, x, mask))
    padding = torch.arange(L) < 4
    check(fused.forward(x, mask=padding, causal=True), lesson(x, x, x, mask & padding))


def test_fused_cross_and_attend(fused, lesson, randn):
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    mask = torch.ones(L, S, dtype=torch.bool).tril()  # top left: query 0 sees key 0 only
    check(fused.cross(query, key), lesson(query, key, key))
    check(fused.cross(query, key, causal=True), lesson(query, key, key, mask))
    check(fused.attend(query, key, value), lesson(query, key, value))
    check(fused.attend(query, key, value, mask=mask), lesson(query, key, value, mask))


def test_fused_attention_weights(fused, lesson, randn):
    query, key = randn(B, L, D), randn(B, S, D)
    lesson(query, key, key)
    check(fused.attention_weights(query, key), lesson.attention_weights)


def test_dtype(classes, lesson, randn):
    x = randn(B, L, D).bfloat16()
    fused = classes.FusedMultiHeadAttention(lesson.state_dict(), H, torch.bfloat16)
    found = fused.forward(x)
    assert found.dtype == torch.bfloat16
    exact = lesson.bfloat16().double()(x.double(), x.double(), x.double())
    assert (found.double() - exact).abs().max() < 0.05 * exact.abs().max()
    with pytest.raises(ValueError, match="expected dtype bfloat16 .* found float32"):
        fused.forward(x.float())


def test_later_changes_do_not_reach_it(fused, lesson, randn):
    x = randn(B, L, D)
    before = fused.forward(x)
    for parameter in lesson.parameters():
        parameter.zero_()
    assert torch.equal(fused.forward(x), before)


def test_describe(fused, randn):
    x = randn(B, L, D)
    told = fused.describe(x, x, x, causal=True)
    assert told.startswith("float32 on cpu: ") and "\n" not in told


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fused, x: fused.forward(x[0]), r"query: expected 3 dimensions .* found shape \(7, 24\)"),
        (
            lambda fused, x: fused.forward(x, torch.ones(3, 3)),
            r"mask: expected a shape that broadcasts .* found \(3, 3\)",
        ),
        (lambda fused, x: fused.cross(x, x[:1]), r"key: expected batch 2 .* found shape \(1, 7, 24\)"),
        (
            lambda fused, x: fused.attend(x, x, x[:, :3]),
            r"value: expected length 7 .* found shape \(2, 3, 24\)",
        ),
        (
            lambda fused, x: fused.attention_weights(x, x.double()),
            "key: expected dtype float32 .* found float64",
        ),
        (lambda fused, x: fused.describe(x, x, x[..., :5]), "value: expected last dimension 24"),
    ],
)
def test_errors_of_calls_are_one_line(fused, randn, call, message):
    with pytest.raises(ValueError, match=message) as raised:
        call(fused, randn(B, L, D))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["FusedMultiHeadAttention", "MultiHeadAttention"])
@pytest.mark.parametrize(
    ("change", "num_heads", "message"),
    [
        (lambda weights: weights.pop("W_o.bias"), H, 'missing "W_o.bias"'),
        (lambda weights: weights.pop("W_q.weight"), H, 'W_q.weight"'),
        (lambda weights: weights.update(more=torch.ones(1)), H, 'unexpected "more"'),
        (lambda weights: weights.update({"W_k.bias": torch.ones(3)}), H, r"W_k.bias.*\(24,\).*\(3,\)"),
        (lambda weights: None, 5, "d_model must be divisible by num_heads"),
    ],
)
def test_errors_of_constructors_are_one_line(classes, lesson, name, change, num_heads, message):
    weights = dict(lesson.state_dict())
    change(weights)
    with pytest.raises(ValueError, match=message) as raised:
        getattr(classes, name)(weights, num_heads)
    assert "\n" not in str(raised.value)

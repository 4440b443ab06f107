"""Kernels for shapes: what calls return without values to compute, and PyTorch's own checks of operators."""

import pytest
import torch
from torch.library import opcheck

from sizes import B, D, H, L, S


def same_layout(found, expected):
    assert found.device.type == "meta"
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


def on_meta(arguments):
    return [each.to("meta") if isinstance(each, torch.Tensor) else each for each in arguments]


@pytest.fixture
def calls(ops, classes, fused, lesson, randn):
    """Operators that return a tensor, each with arguments."""
    query, key, value = randn(B, L, D), randn(B, S, D), randn(B, S, D)
    heads = [tensor.view(B, -1, H, D // H).transpose(1, 2) for tensor in (query, key, value)]
    mask = torch.arange(S) < 8
    cache = classes.KeyValueCache(fused, B, 64)
    return {
        "attend": (ops.attend, (fused, query, key, value, mask, True)),
        "attention_weights": (ops.attention_weights, (fused, query, key, mask)),
        "attend_memory": (ops.attend_memory, (fused.project_memory(key), query)),
        "prefill": (ops.prefill, (cache, query, [7, 3])),
        "step": (ops.step, (cache, query[:, :1].contiguous())),
        "scaled_dot_product_attention": (ops.scaled_dot_product_attention, (*heads, mask, True)),
        "multi_head_attention": (
            ops.multi_head_attention,
            (query, key, value, list(lesson.state_dict().values()), H, mask),
        ),
    }


NAMES = [
    "attend",
    "attention_weights",
    "attend_memory",
    "prefill",
    "step",
    "scaled_dot_product_attention",
    "multi_head_attention",
]


@pytest.mark.parametrize("name", NAMES)
def test_layout_is_that_of_values(calls, name):
    call, arguments = calls[name]
    meta = on_meta(arguments)
    if name == "multi_head_attention":
        meta[3] = on_meta(meta[3])
    same_layout(call(*meta), call(*arguments))


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_checks(calls, name):
    call, arguments = calls[name]
    checks = ["test_autograd_registration", "test_faketensor"]
    if name not in ("prefill", "step"):  # of which no call gives what the call before gave
        checks.append("test_aot_dispatch_dynamic")
    if isinstance(arguments[0], torch.Tensor):  # this one cannot compare script objects
        checks.append("test_schema")
    results = opcheck(call, arguments, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


def test_positions_need_a_shape_that_fits(classes, fused, randn, one_line):
    cache = classes.KeyValueCache(fused, B, 4)
    x = randn(B, 2, D).to("meta")
    one_line(ValueError, r"x: expected length 1, found shape \(2, 2, 24\)", lambda: cache.step(x))
    one_line(ValueError, "x: expected batch 2", lambda: cache.prefill(x[:1]))
    one_line(ValueError, "x: expected last dimension 24", lambda: cache.prefill(x[..., :3]))
    assert cache.prefill(x).shape == x.shape
    assert cache.lengths() == [0, 0]  # nothing was stored

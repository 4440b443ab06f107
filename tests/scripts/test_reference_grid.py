"""The grid's list covers what it promises; a few of its cases are run."""

import pytest
import torch

from reference_case import export_case
from reference_grid import grid_cases
from reference_inputs import make_inputs, make_module

CASES = grid_cases()


def values(field):
    return {getattr(case, field) for case in CASES}


def some(**fields):
    return [case for case in CASES if all(getattr(case, name) == value for name, value in fields.items())]


def test_names_are_unique_and_plain():
    names = [case.name for case in CASES]
    assert len(CASES) >= 230
    assert len(set(names)) == len(names)
    # Cases may differ on file systems that ignore case, and names stay short enough for any.
    assert len({name.lower() for name in names}) == len(names)
    assert all(
        len(name) < 120 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.") for name in names
    )


def test_coverage_of_the_fields():
    assert values("dtype") == {"float32", "float64", "bfloat16", "float16"}
    assert values("attention") == {"self", "cross", "distinct", "shared_qk"}
    assert values("batch") >= {1, 2, 32}
    assert values("query_len") >= {0, 1, 50, 257} and values("key_len") >= {0, 1, 50, 257}
    assert {case.d_model // case.num_heads for case in CASES} >= {1, 3, 6, 64, 80, 128, 512}
    assert values("threads") == {1, 2}
    assert values("mask") >= {
        "none",
        "causal",
        "causal_bottom_right",
        "padding",
        "random",
        "full_row",
        "all_blocked",
    }
    assert values("mask") >= {"additive"}
    assert values("mask_shape") >= {"ls", "b11s", "b1ls", "bhls", "s", "scalar", "l1", "b1l1", "bls"}
    assert values("mask_dtype") >= {"bool", "uint8", "int8", "int64", "float32", "bfloat16", "special"}
    assert values("mask_layout") == {"contiguous", "expanded", "transposed", "every_second"}
    assert values("layout") >= {
        "length_first",
        "features_first",
        "every_second_row",
        "padded",
        "expanded_batch",
    }
    assert values("values") >= {"nan_query", "inf_query", "nan_last_key", "nan_last_value", "inf_last_value"}
    assert values("values") >= {"beyond_fill", "large", "overflow", "subnormal"}
    assert values("weights") >= {"init", "nan", "inf", "zeros", "subnormal"}


def test_coverage_of_combinations():
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        assert (
            some(dtype=dtype, mask="none")
            and some(dtype=dtype, weights="init")
            and some(dtype=dtype, grads=False)
        )
        assert bool(some(dtype=dtype, mask="causal")) == (dtype != "float16")
        assert {case.dropout for case in some(dtype=dtype, mode="train")} >= {0.0, 0.1, 0.5}
    assert not [case for case in some(dtype="float16") if case.mask != "none"]
    for mask in ("causal", "causal_bottom_right", "padding"):
        assert {
            case.query_len < case.key_len for case in some(mask=mask) if case.query_len != case.key_len
        } == {
            True,
            False,
        }
    for mode in ("eval", "train"):
        assert some(mode=mode, batch=32, query_len=50, key_len=50, d_model=512, num_heads=8)
    assert sum(case.grads for case in CASES) > len(CASES) * 3 / 4


def test_heads_divide_and_lengths_agree():
    for case in CASES:
        assert case.d_model % case.num_heads == 0, case.name
        assert case.query_len == case.key_len or case.attention in ("cross", "distinct"), case.name


def test_every_input_can_be_made():
    """Shapes, dtypes, layouts and masks are what the names say."""
    for case in CASES:
        inputs = make_inputs(case)
        assert inputs["query"].shape == (case.batch, case.query_len, case.d_model), case.name
        if "key" in inputs:
            assert inputs["key"].shape == (case.batch, case.key_len, case.d_model), case.name
        if case.layout != "contiguous" and case.layout_of == "all":
            assert not inputs["query"].is_contiguous(), case.name
        scores = torch.Size((case.batch, case.num_heads, case.query_len, case.key_len))
        if case.mask != "none":
            assert torch.broadcast_shapes(inputs["mask"].shape, scores) == scores, case.name
        if case.mask_layout == "expanded":
            assert 0 in inputs["mask"].stride(), case.name


def test_inputs_follow_from_the_case(same_bits):
    for case in CASES[:: len(CASES) // 20]:
        once, again = make_inputs(case), make_inputs(case)
        assert all(same_bits(once[name], again[name]) for name in once)


def test_special_values_are_where_they_are_said_to_be():
    (case,) = some(values="nan_last_value", attention="distinct", mode="eval")
    inputs = make_inputs(case)
    assert inputs["value"][0, -1].isnan().any() and not inputs["key"].isnan().any()
    assert (inputs["mask"][..., -1] == 0).all()
    (case,) = some(values="beyond_fill", mask="causal", dtype="float32")
    x = make_inputs(case)["query"]
    module = make_module(case)
    assert (module.W_q(x) @ module.W_k(x).mT).min() < -1e10
    (case,) = some(mask_dtype="special", mode="eval")
    mask = make_inputs(case)["mask"]
    assert mask.isnan().any() and (mask == 0).any() and torch.signbit(mask[mask == 0]).any()
    for case in some(values="subnormal"):
        x = make_inputs(case)["query"]
        assert (x.abs().max() < torch.finfo(x.dtype).smallest_normal) or x.dtype == torch.float16, case.name


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.query_len == 0 or case.key_len == 0]
    + some(mask_layout="expanded")[:2]
    + some(layout="expanded_all")[:1]
    + some(values="huge"),
    ids=lambda case: case.name,
)
def test_odd_cases_run(case, tmp_path, read):
    """Every case runs in a full grid; these are the ones that need care."""
    path = tmp_path / "case.safetensors"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(case.threads)
        export_case(
            make_module(case), make_inputs(case), path, mode=case.mode, seed=case.seed, grads=case.grads
        )
    finally:
        torch.set_num_threads(threads)
    written = read(path)
    assert written["outputs/output"].shape == (case.batch, case.query_len, case.d_model)
    assert len(written.names("steps")) == (7 if case.mask == "none" else 8)
    output = written["outputs/output"]
    assert output.numel() == 0 or not output.isnan().all()

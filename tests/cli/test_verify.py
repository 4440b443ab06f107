"""`mha verify`: what it finds, what it says about it, what it takes from the command line."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

PARAMETERS = [f"{layer}.{kind}" for layer in ("W_q", "W_k", "W_v", "W_o") for kind in ("weight", "bias")]
STEPS = ["Q", "K", "V", "scores", "masked_scores", "softmax", "attention_weights", "context"]
OUTPUTS = ["outputs/attention_weights", "outputs/output"]  # in the order of computation

# What is compared of `train_case`, in the order of computation.
COMPARED = [
    *(f"init/{name}" for name in PARAMETERS),
    *(f"steps/{name}" for name in STEPS),
    *OUTPUTS,
    *(f"grads/{name}" for name in ("query", "key", "value", *PARAMETERS)),
]


def test_eval_case_is_bit_exact(eval_run):
    assert eval_run.status == 0
    assert list(eval_run.rows()) == [f"steps/{name}" for name in STEPS if name != "masked_scores"] + OUTPUTS
    assert all(" bit-exact " in row for row in eval_run.rows().values())
    assert eval_run.report().splitlines()[-1] == "verdict: bit-exact (9 tensors, 3,200 elements)"
    assert "first divergence" not in eval_run.out


def test_train_case_is_bit_exact_with_its_gradients(train_run):
    assert train_run.status == 0
    assert list(train_run.rows()) == COMPARED
    assert train_run.report().splitlines()[-1].startswith(f"verdict: bit-exact ({len(COMPARED)} tensors, ")


def test_every_dtype_is_bit_exact(mha, export):
    dtypes = ["float64", "bfloat16", "float16"]
    run = mha("verify", *(export(dtype=dtype, grads=False).path for dtype in dtypes), "--json", "-")
    assert run.status == 0
    for dtype, case in zip(dtypes, run.json()["cases"]):
        assert case["verdict"] == "bit-exact" and len(case["tensors"]) == 9
        assert {tensor["dtype"] for tensor in case["tensors"]} == {dtype}


def test_the_report_says_what_was_compared_where(eval_run, eval_case):
    lines = eval_run.report().splitlines()
    assert lines[0] == f"case         {eval_case.path}"
    assert lines[1].startswith("module       mha::MultiHeadAttention(d_model=32, num_heads=8, dropout=0.1)")
    assert lines[1].endswith(", eval, float32, cpu, 1 thread")
    assert eval_case.metadata["torch_version"] in lines[2] and eval_case.metadata["cpu_model"] in lines[2]
    assert lines[2].endswith(": as in the case")
    assert lines[3:5] == ["required     bits", ""]


def test_the_table_shows_shape_dtype_and_amount(train_run):
    rows = train_run.rows()
    for name, shape, total in [
        ("steps/Q", "(2, 8, 5, 4)", "320"),
        ("steps/scores", "(2, 8, 5, 5)", "400"),
        ("outputs/output", "(2, 5, 32)", "320"),
        ("grads/W_o.bias", "(32,)", "32"),
        ("grads/W_o.weight", "(32, 32)", "1,024"),
    ]:
        assert f"  {shape} " in rows[name] and "  float32  " in rows[name]
        assert rows[name].endswith(f" 0 / {total}")


def test_several_cases_take_a_line_each_and_a_totals_line(mha, eval_case, train_case):
    run = mha("verify", eval_case.path, train_case.path, eval_case.path)
    assert run.status == 0
    lines = run.report().splitlines()
    assert len(lines) == 4
    for line, case in zip(lines, (eval_case, train_case, eval_case)):
        assert line.startswith("bit-exact ") and f"  {case.path}  (" in line
    assert lines[-1] == "verdict: bit-exact (3 cases: 3 bit-exact)"


def test_a_failing_case_among_many_shows_its_whole_table(mha, eval_case, edited, flip_lowest_bit):
    flipped, _ = flip_lowest_bit(eval_case.tensors["steps/V"])
    bad = edited(eval_case, {"steps/V": flipped})
    run = mha("verify", eval_case.path, bad, eval_case.path)
    assert run.status == 1
    lines = run.report().splitlines()
    assert lines[0].startswith("bit-exact ") and lines[1] == f"case         {bad}"
    assert len(run.rows()) == 9 and " MISMATCH " in run.rows()["steps/V"]
    assert lines[-2].startswith("bit-exact ")  # It does not stop at the first failure.
    assert lines[-1] == "verdict: MISMATCH (3 cases: 2 bit-exact, 1 MISMATCH)"


@pytest.fixture(scope="module")
def mutants(mha, train_case, write, flip_lowest_bit, tmp_path_factory):
    """For each compared tensor: the run on a case that has one bit of it flipped, and where."""
    folder = tmp_path_factory.mktemp("mutants")

    def run(name: str):
        stored = name.replace("init/", "weights/")
        flipped, index = flip_lowest_bit(train_case.tensors[stored])
        path = folder / f"{name.replace('/', '_')}.safetensors"
        write(path, train_case.tensors | {stored: flipped}, train_case.metadata)
        return mha("verify", path, "--json", "-"), index

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(COMPARED, pool.map(run, COMPARED)))


@pytest.mark.parametrize("name", COMPARED)
def test_one_flipped_bit_anywhere_is_found(mutants, name):
    run, index = mutants[name]
    assert run.status == 1
    report = run.json()
    assert report["verdict"] == report["cases"][0]["verdict"] == "MISMATCH"
    assert report["cases"][0]["first_divergence"]["name"] == name
    tensor = run.tensors()[name]
    assert tensor["verdict"] == "MISMATCH" and tensor["index"] == index
    assert tensor["mismatched"] == 1 and tensor["max_ulp"] == 1
    if not name.startswith("init/"):  # Another weight changes what follows, another result does not.
        assert sum(other["verdict"] != "bit-exact" for other in run.tensors().values()) == 1


def test_one_flipped_bit_of_what_goes_in_is_found(mha, train_case, edited, flip_lowest_bit):
    names = ["inputs/query", "inputs/value", "grad_outputs/output"]
    paths = [
        edited(train_case, {name: flip_lowest_bit(train_case.tensors[name])[0]}, name=f"{i}.safetensors")
        for i, name in enumerate(names)
    ]
    run = mha("verify", *paths, "--json", "-")
    assert run.status == 1
    first = [case["first_divergence"]["name"] for case in run.json()["cases"]]
    assert first[:2] == ["steps/Q", "steps/V"] and first[2].startswith("grads/")


def test_a_flipped_bit_in_the_output(mha, eval_case, edited, flip_lowest_bit):
    flipped, index = flip_lowest_bit(eval_case.tensors["outputs/output"])
    run = mha("verify", edited(eval_case, {"outputs/output": flipped}))
    assert run.status == 1
    row = run.rows()["outputs/output"]
    assert " MISMATCH " in row and " 1 / 320 " in row and row.endswith(f"worst at {tuple(index)}")
    assert "\nfirst divergence: outputs/output" in run.report()
    assert run.report().splitlines()[-1].startswith("verdict: MISMATCH (9 tensors, ")


# value, max_abs in the JSON, and what the table says besides the index.
NOT_FINITE = [
    (float("nan"), "nan", "NaN 0 and inf 0 here, 1 and 0 in the reference"),
    (float("inf"), "inf", "NaN 0 and inf 0 here, 0 and 1 in the reference"),
]


@pytest.mark.parametrize("require", ["bit-exact", "tolerance"])
@pytest.mark.parametrize(("value", "max_abs", "remark"), NOT_FINITE, ids=["nan", "inf"])
def test_a_number_that_is_not_finite_never_passes(
    mha, eval_case, edited, with_element, value, max_abs, remark, require
):
    wrong = with_element(eval_case.tensors["steps/scores"], (1, 7, 2, 3), value)
    path = edited(eval_case, {"steps/scores": wrong})
    run = mha("verify", path, "--require", require, "--json", "-")
    assert run.status == 1
    assert run.json()["cases"][0]["first_divergence"]["name"] == "steps/scores"
    tensor = run.tensors()["steps/scores"]
    assert tensor["index"] == [1, 7, 2, 3] and tensor["mismatched"] == 1 and tensor["max_abs"] == max_abs
    (row,) = (line for line in run.err.splitlines() if line.startswith("  steps/scores "))
    assert " MISMATCH " in row and "worst at (1, 7, 2, 3)" in row and remark in row


def test_the_sign_of_a_zero_is_a_bit(mha, train_case, edited, with_element):
    weights = train_case.tensors["outputs/attention_weights"]
    assert weights[0, 0, 0, 1] == 0  # The causal mask hides it.
    path = edited(train_case, {"outputs/attention_weights": with_element(weights, (0, 0, 0, 1), -0.0)})
    run = mha("verify", path, "--json", "-")
    assert run.status == 1
    assert run.json()["cases"][0]["first_divergence"]["name"] == "outputs/attention_weights"
    tensor = run.tensors()["outputs/attention_weights"]
    assert tensor["index"] == [0, 0, 0, 1] and tensor["mismatched"] == 1
    assert tensor["max_abs"] == 0 and tensor["max_ulp"] == 0
    assert "worst at (0, 0, 0, 1)" in run.err


def test_the_hint_does_not_ask_for_steps_that_are_there(mha, eval_case, edited, with_element):
    wrong = with_element(eval_case.tensors["outputs/output"], (1, 2, 3), 1e3)
    run = mha("verify", edited(eval_case, {"outputs/output": wrong}))
    assert run.status == 1 and "\nfirst divergence: outputs/output" in run.report()
    assert "export the case with" not in run.report()


def test_another_shape_or_dtype_is_not_comparable(mha, eval_case, edited):
    weights, output = (eval_case.tensors[name] for name in OUTPUTS)
    other = {"outputs/output": output[:, :4], "outputs/attention_weights": weights.double()}
    run = mha("verify", edited(eval_case, other))
    assert run.status == 1
    assert run.rows()["outputs/output"].endswith("the reference has shape (2, 4, 32)")
    assert run.rows()["outputs/attention_weights"].endswith("the reference is float64")
    assert "\nfirst divergence: outputs/attention_weights: the reference is float64\n" in run.report()
    assert run.report().splitlines()[-1].startswith("verdict: not comparable ")


# Requirement and environment


def test_require_tolerance_lets_a_rounding_pass(mha, eval_case, edited, flip_lowest_bit):
    flipped, index = flip_lowest_bit(eval_case.tensors["outputs/output"])
    run = mha("verify", edited(eval_case, {"outputs/output": flipped}), "--require", "tolerance")
    assert run.status == 0
    assert "\nrequired     tolerance\n" in run.report()
    row = run.rows()["outputs/output"]
    assert " within tolerance " in row and row.endswith(f"worst at {tuple(index)}")
    assert run.report().splitlines()[-1].startswith("verdict: within tolerance ")


def test_require_tolerance_lets_nothing_larger_pass(mha, eval_case, edited):
    bias = eval_case.tensors["weights/W_o.bias"]
    run = mha("verify", edited(eval_case, {"weights/W_o.bias": bias + 1e-3}), "--require", "tolerance")
    assert run.status == 1
    assert " bit-exact " in run.rows()["steps/context"]
    row = run.rows()["outputs/output"]
    assert " MISMATCH " in row and "allowed" in row  # By how much it is beyond what is allowed.


def test_a_reference_that_is_itself_wrong_does_not_widen_the_tolerance(
    mha, eval_case, edited, with_element
):
    # The float64 twin shows that it is the reference that is off. That must not pass as its rounding error.
    wrong = with_element(eval_case.tensors["outputs/output"], (1, 2, 3), 1e3)
    run = mha("verify", edited(eval_case, {"outputs/output": wrong}), "--require", "tolerance")
    assert run.status == 1 and " MISMATCH " in run.rows()["outputs/output"]


def test_a_tolerance_in_the_case_is_used(mha, eval_case, edited, with_element):
    output = eval_case.tensors["outputs/output"]
    wrong = {"outputs/output": with_element(output, (0, 0, 0), output[0, 0, 0].item() + 1e-3)}
    wide = edited(eval_case, wrong, {"tolerance": "1e-2"}, name="wide.safetensors")
    narrow = edited(eval_case, wrong, {"tolerance": "1e-4"}, name="narrow.safetensors")
    run = mha("verify", wide, narrow, "--json", "-")
    assert run.status == 1
    assert [case["verdict"] for case in run.json()["cases"]] == ["within tolerance", "MISMATCH"]


# What the metadata says, and what the report must then say, in this order.
OTHER_ENVIRONMENTS = {
    "version": (
        {"torch_version": "1.13.1", "cpu_model": ""},
        ["LibTorch version: the case has 1.13.1, ", "processor: the case has none recorded, "],
    ),
    "build": (
        {"build": "PyTorch built with:\n  - GCC 4.2\n", "cpu_model": "Some Other Processor"},
        ["LibTorch build: the case has GCC 4.2, ", "processor: the case has Some Other Processor, "],
    ),
}


@pytest.mark.parametrize("other", OTHER_ENVIRONMENTS)
def test_another_environment_is_listed_and_asks_for_tolerance(
    mha, eval_case, edited, flip_lowest_bit, other
):
    metadata, said = OTHER_ENVIRONMENTS[other]
    flipped, _ = flip_lowest_bit(eval_case.tensors["outputs/output"])
    run = mha("verify", edited(eval_case, {"outputs/output": flipped}, metadata), "--json", "-")
    assert run.status == 0
    (case,) = run.json()["cases"]
    differences = case["environment"]["differences"]
    assert len(differences) == len(said) and all(map(str.startswith, differences, said))
    assert case["verdict"] == "within tolerance" and case["first_divergence"]["name"] == "outputs/output"
    indented = "".join(f"\n             {difference}" for difference in differences)
    assert f": not the case's{indented}\nrequired     tolerance\n" in run.err


def test_bits_can_be_required_in_another_environment(mha, eval_case, edited, flip_lowest_bit):
    flipped, _ = flip_lowest_bit(eval_case.tensors["outputs/output"])
    path = edited(eval_case, {"outputs/output": flipped}, {"cpu_model": "Some Other Processor"})
    run = mha("verify", path, "--require", "bit-exact")
    assert run.status == 1 and "\nrequired     bits\n" in run.report()


def test_other_threads_are_listed_and_ask_for_tolerance(mha, train_case):
    run = mha("verify", train_case.path, "--threads", "2", "--json", "-")
    assert run.status == 0
    assert ", 2 threads\n" in run.err and "\nrequired     tolerance\n" in run.err
    (case,) = run.json()["cases"]
    assert case["environment"]["num_threads"] == 2
    assert case["environment"]["differences"] == ["threads: the case has 1, here it is 2"]
    assert "\n             threads: the case has 1, here it is 2\n" in run.err


def test_a_case_of_two_threads_runs_on_two(mha, export):
    run = mha("verify", export(threads=2).path)
    assert run.status == 0
    assert ", 2 threads\n" in run.report() and "\nrequired     bits\n" in run.report()


def test_a_case_of_cuda_can_be_compared_on_the_cpu(mha, eval_case, edited):
    run = mha("verify", edited(eval_case, metadata={"device": "cuda"}), "--device", "cpu")
    assert run.status == 0
    assert "\n             device: the case has cuda, here it is cpu\n" in run.report()
    assert "\nrequired     tolerance\n" in run.report()


# Weights from elsewhere


@pytest.mark.parametrize(
    ("stored", "prefix"),
    [
        ("encoder.0.attn.", "encoder.0.attn."),
        ("module.encoder.0.attn.", "encoder.0.attn"),
        ("_orig_mod.encoder.0.attn.", "encoder.0.attn."),
        ("module._orig_mod.encoder.0.attn.", "encoder.0.attn"),
        ("encoder.0.attn._orig_mod.", "encoder.0.attn."),
        ("module.encoder.0.attn._orig_mod.", "module.encoder.0.attn._orig_mod."),
    ],
)
def test_weights_under_a_prefix(mha, eval_case, edited, write, tmp_path, stored, prefix):
    names = {stored + name: tensor for name, tensor in eval_case.weights().items()}
    other = {"encoder.1.attn." + name: tensor + 1 for name, tensor in eval_case.weights().items()}
    weights = write(tmp_path / "weights.safetensors", names | other)
    case = edited(eval_case, without="weights/")
    run = mha("verify", case, "--weights", weights, "--prefix", prefix)
    assert run.status == 0 and "\nverdict: bit-exact " in run.report()


@pytest.mark.parametrize("layout", ["pytorch", "auto"])
def test_weights_in_another_layout(mha, eval_case, edited, write, tmp_path, layout):
    ours = eval_case.weights()
    theirs = {f"attn.out_proj.{kind}": ours[f"W_o.{kind}"] for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        theirs[f"attn.in_proj_{kind}"] = torch.cat([ours[f"{layer}.{kind}"] for layer in ("W_q", "W_k", "W_v")])
    weights = write(tmp_path / "weights.safetensors", theirs | {"attn.norm.weight": ours["W_o.bias"]})
    case = edited(eval_case, without="weights/")
    run = mha("verify", case, "--weights", weights, "--prefix", "attn", "--layout", layout)
    assert run.status == 0 and "\nverdict: bit-exact " in run.report()
    assert f"weights      {weights}, layout pytorch, other names ignored: 1\n" in run.report()


def test_a_layout_that_is_not_the_weights(mha, eval_case):
    error = mha("verify", eval_case.path, "--layout", "bert").error()
    assert 'layout "bert": expected "self.query.weight"' in error and '"" (lesson)' in error
    assert "--layout" in mha("verify", eval_case.path, "--layout", "nonsense").error()


def test_weights_override_those_of_the_case(mha, eval_case, write, tmp_path):
    weights = eval_case.weights()
    transposed = write(tmp_path / "w.safetensors", weights | {"W_k.weight": weights["W_k.weight"].t()})
    run = mha("verify", eval_case.path, "--weights", transposed)
    assert run.status == 1
    assert " bit-exact " in run.rows()["steps/Q"] and " MISMATCH " in run.rows()["steps/K"]
    assert "\nfirst divergence: steps/K: W_k.weight is transposed" in run.report()


def test_the_case_may_name_its_weights_file(mha, eval_case, edited, write, tmp_path):
    names = {"attn." + name: tensor for name, tensor in eval_case.weights().items()}
    write(tmp_path / "w.safetensors", names)  # Relative to the case, wherever one stands.
    case = edited(eval_case, metadata={"weights_file": "w.safetensors", "prefix": "attn"}, without="weights/")
    run = mha("verify", case)
    assert run.status == 0 and "\nverdict: bit-exact " in run.report()


def test_a_fresh_module_whose_weights_are_in_a_file(mha, train_case, edited, write, tmp_path):
    weights = write(tmp_path / "w.safetensors", train_case.weights())
    run = mha("verify", edited(train_case, without="weights/"), "--weights", weights)
    assert run.status == 0 and "\nverdict: bit-exact " in run.report()


def test_no_weights_anywhere_is_an_error(mha, eval_case, edited):
    error = mha("verify", edited(eval_case, without="weights/")).error()
    assert "edited.safetensors: " in error and "--weights" in error


def test_a_wrong_prefix_is_an_error_that_names_those_there_are(mha, eval_case, write, tmp_path):
    names = {"encoder.0.attn." + name: tensor for name, tensor in eval_case.weights().items()}
    weights = write(tmp_path / "w.safetensors", names)
    for arguments in (["--prefix", "encoder.7.attn"], ["--prefix", "encoder"], []):
        error = mha("verify", eval_case.path, "--weights", weights, *arguments).error()
        assert '"encoder.0.attn"' in error


@pytest.mark.parametrize("problem", ["missing", "shape", "prefix"])
def test_an_error_about_the_weights_names_their_file(mha, eval_case, write, tmp_path, problem):
    tensors = eval_case.weights()
    if problem == "missing":
        del tensors["W_o.bias"]
    elif problem == "shape":
        tensors["W_o.bias"] = torch.zeros(31)
    weights = write(tmp_path / "my-weights.safetensors", tensors)
    prefix = ["--prefix", "attn"] if problem == "prefix" else []
    error = mha("verify", eval_case.path, "--weights", weights, *prefix).error()
    assert problem == "prefix" or '"W_o.bias"' in error
    assert str(weights) in error


def test_num_heads_override_those_of_the_case(mha, eval_case, edited):
    case = edited(eval_case, metadata={"num_heads": "4"})
    run = mha("verify", case)
    assert run.status == 1
    assert run.rows()["steps/Q"].endswith("the reference has shape (2, 8, 5, 4)")
    run = mha("verify", case, "--num-heads", "8")
    assert run.status == 0 and "num_heads=8" in run.report()


def test_num_heads_that_do_not_divide_d_model(mha, eval_case):
    error = mha("verify", eval_case.path, "--num-heads", "5").error()
    assert "num_heads 5" in error and "d_model 32" in error

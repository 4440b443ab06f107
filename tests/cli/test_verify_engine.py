"""`mha verify --engine`: the fused engine's outputs against a case, and what it cannot be asked."""

import pytest

OUTPUTS = ["outputs/attention_weights", "outputs/output"]


def test_the_fused_engine_passes_by_tolerance(mha, eval_case):
    run = mha("verify", eval_case.path, "--engine", "fused")
    assert run.status == 0
    assert list(run.rows()) == OUTPUTS
    lines = run.report().splitlines()
    assert lines[1].startswith("module       mha::FusedMultiHeadAttention(d_model=32, num_heads=8), float32 on cpu: ")
    # One tensor is passed three times: one product.
    assert "query + key + value" in lines[1] and lines[1].endswith(", 1 thread")
    assert lines[3] == "required     tolerance"
    assert lines[-1].endswith("(2 tensors, 720 elements)")


def test_the_report_names_the_engine(mha, eval_case):
    for engine in ("lesson", "fused"):
        run = mha("verify", eval_case.path, "--engine", engine, "--json", "-")
        assert run.status == 0
        (case,) = run.json()["cases"]
        assert case["engine"] == engine
    assert case["required"] == "tolerance" and [tensor["name"] for tensor in case["tensors"]] == OUTPUTS


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_dtype(mha, export, dtype):
    cases = [
        export(dtype=dtype, grads=False),
        export(dtype=dtype, attention="cross", key_len=7),
    ]
    run = mha("verify", *(case.path for case in cases), "--engine", "fused", "--json", "-")
    assert run.status == 0
    assert all({tensor["dtype"] for tensor in case["tensors"]} == {dtype} for case in run.json()["cases"])


def test_other_weights_are_found(mha, eval_case, edited):
    for name in ("W_q.weight", "W_v.bias", "W_o.bias"):
        weights = {f"weights/{name}": eval_case.tensors[f"weights/{name}"] + 0.01}
        run = mha("verify", edited(eval_case, weights), "--engine", "fused")
        assert run.status == 1
        assert " MISMATCH " in run.rows()["outputs/output"]
        assert "\nfirst divergence: outputs/" in run.report()


def test_weights_from_elsewhere(mha, eval_case, edited, write, tmp_path):
    names = {"encoder.0.attn." + name: tensor for name, tensor in eval_case.weights().items()}
    weights = write(tmp_path / "weights.safetensors", names)
    case = edited(eval_case, without="weights/")
    run = mha("verify", case, "--weights", weights, "--prefix", "encoder.0.attn", "--engine", "fused")
    assert run.status == 0
    assert f"\nweights      {weights}\n" in run.report()


def test_num_heads_count(mha, eval_case):
    run = mha("verify", eval_case.path, "--engine", "fused", "--num-heads", "4")
    assert run.status == 1 and "num_heads=4" in run.report()


def test_threads_count(mha, eval_case):
    run = mha("verify", eval_case.path, "--engine", "fused", "--threads", "2")
    assert run.status == 0 and ", 2 threads\n" in run.report()


def test_a_train_mode_case_is_refused(mha, train_case):
    error = mha("verify", train_case.path, "--engine", "fused").error()
    assert str(train_case.path) in error
    assert error.endswith("expected an eval-mode case for the fused engine, which is for inference, found mode train")


def test_a_train_mode_case_does_not_keep_others_from_being_verified(mha, eval_case, train_case):
    run = mha("verify", train_case.path, eval_case.path, "--engine", "fused", "--json", "-")
    assert run.status == 2 and "found mode train" in run.err
    (line,) = (line for line in run.err.splitlines() if line.startswith("within tolerance "))
    assert str(eval_case.path) in line


def test_bits_are_refused(mha, eval_case):
    error = mha("verify", eval_case.path, "--engine", "fused", "--require", "bit-exact").error()
    assert "--require" in error and "expected tolerance" in error and "found bit-exact" in error
    run = mha("verify", eval_case.path, "--engine", "fused", "--require", "tolerance")
    assert run.status == 0


def test_an_unknown_engine_is_refused_with_those_there_are(mha, eval_case):
    error = mha("verify", eval_case.path, "--engine", "eager").error()
    assert "eager" in error and "lesson" in error and "fused" in error

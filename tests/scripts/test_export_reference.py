"""`export_case`: what a file holds, and that it is computed as its reader will compute it."""

import copy
import platform
import sys

import pytest
import torch

from export_reference import export_case
from lesson import MultiHeadAttention
from reference_inputs import fresh_lesson_module

STEPS = {"Q", "K", "V", "scores", "softmax", "attention_weights", "context"}
WEIGHTS = {f"W_{layer}.{kind}" for layer in "qkvo" for kind in ("weight", "bias")}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "case.safetensors"


def test_what_a_case_holds(make, randn, path, read):
    module = make()
    inputs = {
        "query": randn(2, 5, 24),
        "key": randn(2, 7, 24),
        "value": randn(2, 7, 24),
        "mask": torch.ones(5, 7),
    }
    export_case(
        module, inputs, path, mode="train", seed=4, source="a test", metadata={"mine": "1", "mode": "other"}
    )
    case = read(path)
    assert case.names("weights") == WEIGHTS
    assert case.names("inputs") == set(inputs)
    assert case.names("steps") == STEPS | {"masked_scores"}
    assert case.names("outputs") == {"output", "attention_weights"}
    assert case.names("grad_outputs") == {"output"}
    assert case.names("grads") == WEIGHTS | {"query", "key", "value"}
    assert case.names("float64") == {"output", "attention_weights"} | {
        f"grads/{name}" for name in case.names("grads")
    }
    assert case["steps/Q"].shape == (2, 3, 5, 8)
    assert case["steps/K"].shape == (2, 3, 7, 8)
    for name, tensor in inputs.items():
        assert torch.equal(case[f"inputs/{name}"], tensor)

    told = case.metadata
    expected = {
        "format": "mha.reference/1",
        "module": "MultiHeadAttention",
        "d_model": "24",
        "num_heads": "3",
        "dropout": "0.1",
        "mode": "train",
        "dtype": "float32",
        "device": "cpu",
        "seed": "4",
        "torch_version": torch.__version__.split("+")[0],
        "build": torch.__config__.show(),
        "num_threads": str(torch.get_num_threads()),
        "source": "a test",
        "mine": "1",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert "init_seed" not in told
    assert not any(name.startswith("strides/") for name in told)
    if sys.platform == "linux" and platform.machine() == "x86_64":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            assert f": {told['cpu_model']}\n" in file.read()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_bits_are_those_of_a_plain_run(make, randn, path, read, same_bits, mode, dtype):
    """Run again from the file alone, as a user would write it, without any capture."""
    x = randn(2, 9, 24, dtype=dtype)
    export_case(make(dropout=0.3).to(dtype), {"query": x}, path, mode=mode, seed=6)
    case = read(path)

    module = MultiHeadAttention(24, 3, float(case.metadata["dropout"])).to(dtype).train(mode == "train")
    module.load_state_dict({name: case[f"weights/{name}"] for name in case.names("weights")})
    x = case["inputs/query"].clone().requires_grad_()
    torch.manual_seed(6)
    output = module(x, x, x)
    output.backward(case["grad_outputs/output"].clone())
    assert same_bits(output, case["outputs/output"])
    assert same_bits(module.attention_weights, case["outputs/attention_weights"])
    assert same_bits(module.attention_weights, case["steps/attention_weights"])
    assert case.names("grads") == WEIGHTS | {"query"}
    assert same_bits(x.grad, case["grads/query"])
    for name, parameter in module.named_parameters():
        assert same_bits(parameter.grad, case[f"grads/{name}"])


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_float64_twin_is_close(make, randn, path, read, mode):
    """In training too: the dropout pattern does not depend on the dtype."""
    export_case(make(dropout=0.5), {"query": randn(2, 9, 24)}, path, mode=mode)
    case = read(path)
    assert case["float64/output"].dtype == torch.float64
    pairs = {"float64/output": "outputs/output", "float64/attention_weights": "outputs/attention_weights"}
    pairs |= {f"float64/grads/{name}": f"grads/{name}" for name in case.names("grads")}
    assert len(pairs) == 11
    for twin, name in pairs.items():
        # The gradient of W_k.bias vanishes but for rounding: softmax does not see what all keys share.
        torch.testing.assert_close(case[name].double(), case[twin], rtol=1e-4, atol=1e-5)
        assert (case[name].double() != case[twin]).any()


def test_float64_has_no_twin(make, randn, path, read):
    export_case(make().double(), {"query": randn(2, 5, 24).double()}, path)
    assert not read(path).names("float64")


def test_leaving_parts_out(make, randn, path, read):
    export_case(make(), {"query": randn(2, 5, 24)}, path, grads=False, float64=False)
    case = read(path)
    assert not case.names("grads") | case.names("grad_outputs") | case.names("float64")
    assert case.names("steps") == STEPS


def test_aliases(make, randn, path, read, same_bits):
    """The very same tensor is stored once, and its gradient is the sum over its uses."""
    x, y = randn(2, 5, 24), randn(2, 5, 24)
    equal = x.clone()
    cases = {
        "self": ({"query": x}, {"query"}),
        "self, said": ({"query": x, "key": x, "value": x}, {"query"}),
        "key is value": ({"query": x, "key": y, "value": y}, {"query", "key"}),
        "key is value, not said": ({"query": x, "key": y}, {"query", "key"}),
        "query is key": ({"query": x, "value": y}, {"query", "value"}),
        "equal, but another tensor": ({"query": x, "key": equal}, {"query", "key"}),
        "value is query": ({"query": x, "key": y, "value": x}, {"query", "key", "value"}),
        "no mask": ({"query": x, "mask": None}, {"query"}),
    }
    read_cases = {}
    for name, (inputs, stored) in cases.items():
        export_case(make(), inputs, path, overwrite=True)
        case = read_cases[name] = read(path)
        assert case.names("inputs") == stored, name
        assert case.names("grads") == WEIGHTS | stored, name
    assert same_bits(read_cases["self"]["grads/query"], read_cases["self, said"]["grads/query"])
    apart = read_cases["equal, but another tensor"]
    assert same_bits(read_cases["self"]["outputs/output"], apart["outputs/output"])
    torch.testing.assert_close(read_cases["self"]["grads/query"], apart["grads/query"] + apart["grads/key"])


def test_strides(make, randn, path, read, same_bits):
    """Strides are told where they are not the plain ones, and kept: they change bits."""
    whole = randn(5, 2, 32)
    query = whole.transpose(0, 1)[..., :24]
    key = randn(1, 7, 24).expand(2, 7, 24)
    value = randn(2, 7, 24)
    mask = torch.ones(2, 1, 1, 7).expand(2, 3, 5, 7)
    export_case(make(), {"query": query, "key": key, "value": value, "mask": mask}, path)
    case = read(path)
    strides = {name: value for name, value in case.metadata.items() if name.startswith("strides/")}
    assert strides == {
        "strides/inputs/query": "32,64,1",
        "strides/inputs/key": "0,24,1",
        "strides/inputs/mask": "7,0,0,1",
    }
    assert case["inputs/key"].shape == (2, 7, 24)
    assert torch.equal(case["inputs/query"], query)

    rebuilt = torch.empty_strided((2, 5, 24), (32, 64, 1)).copy_(case["inputs/query"])
    expanded = torch.empty(1, 7, 24).copy_(case["inputs/key"][:1]).expand(2, 7, 24)
    module = make().eval()
    output = module(rebuilt, expanded, value.clone(), mask)
    assert same_bits(output, case["outputs/output"])
    assert case["grads/key"].shape == (2, 7, 24)


def test_overlapping_inputs_are_refused(make, path):
    windows = torch.randn(100).as_strided((2, 3, 24), (2, 1, 3))
    with pytest.raises(
        ValueError, match=r"query: elements overlap in memory \(sizes \(2, 3, 24\), strides \(2, 1, 3\)"
    ):
        export_case(make(), {"query": windows}, path)
    assert not list(path.parent.iterdir())


def test_nothing_of_the_user_is_changed(make, randn, path):
    module = make().train()
    x = randn(2, 5, 24).requires_grad_()
    module(x, x, x).sum().backward()
    module.W_v.weight.requires_grad_(False)
    weights, grad, attention_weights = (
        copy.deepcopy(module.state_dict()),
        module.W_q.weight.grad.clone(),
        None,
    )
    attention_weights, x_grad = module.attention_weights, x.grad.clone()
    state = torch.get_rng_state()
    export_case(module, {"query": x}, path, mode="eval", seed=9)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training and module.dropout.training
    assert module.attention_weights is attention_weights
    assert torch.equal(module.W_q.weight.grad, grad) and torch.equal(x.grad, x_grad)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    assert not module.W_v.weight.requires_grad
    assert not module.W_q._forward_hooks


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(make, randn, path, read, context):
    with context():
        export_case(make(), {"query": randn(2, 5, 24)}, path)
    assert read(path).names("grads") == WEIGHTS | {"query"}


def test_frozen_parameters_have_gradients(make, randn, path, read):
    module = make()
    module.W_q.requires_grad_(False)
    export_case(module, {"query": randn(2, 5, 24)}, path)
    case = read(path)
    assert case.names("weights") == WEIGHTS
    assert case.names("grads") == WEIGHTS | {"query"}
    assert not module.W_q.weight.requires_grad


def test_a_class_with_other_parameters_is_refused(make, randn, path):
    class Extra(MultiHeadAttention):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.spare = torch.nn.Parameter(torch.ones(2))

    class Unbiased(MultiHeadAttention):
        def __init__(self, d_model, *arguments):
            super().__init__(d_model, *arguments)
            self.W_q = torch.nn.Linear(d_model, d_model, bias=False)

    for cls, differing in ((Extra, "spare"), (Unbiased, "W_q.bias")):
        with pytest.raises(TypeError, match=f"missing or surplus: {differing}$"):
            export_case(make(cls=cls), {"query": randn(2, 5, 24)}, path)
    assert not path.exists()


@pytest.mark.parametrize("key", ["prefix", "layout", "tolerance", "init_seed", "strides/inputs/query"])
def test_metadata_that_would_change_the_case_is_refused(make, randn, path, key):
    with pytest.raises(ValueError, match="would change the meaning"):
        export_case(make(), {"query": randn(2, 5, 24)}, path, metadata={key: "1"})


def test_a_class_that_hides_its_steps(make, randn, path, read):
    class Fused(MultiHeadAttention):
        def forward(self, query, key, value, mask=None):
            Q, K, V = (
                layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for layer, x in zip((self.W_q, self.W_k, self.W_v), (query, key, value))
            )
            return self.W_o(
                torch.nn.functional.scaled_dot_product_attention(Q, K, V).transpose(1, 2).flatten(2)
            )

    with pytest.warns(UserWarning, match="Fused does not show.*: scores, softmax, attention_weights$"):
        export_case(make(cls=Fused), {"query": randn(2, 5, 24)}, path)
    case = read(path)
    assert case.names("steps") == {"Q", "K", "V", "context"}
    assert case.names("outputs") == {"output"}
    assert case.metadata["source"].endswith("Fused")


def test_init_seed_is_checked(make, randn, path, read):
    fresh = fresh_lesson_module(24, 3, 0.1, 7, torch.bfloat16, "cpu")
    x = randn(2, 5, 24).bfloat16()
    export_case(fresh, {"query": x}, path, init_seed=7)
    assert read(path).metadata["init_seed"] == "7"
    with pytest.raises(ValueError, match="not those of a module freshly made after seed 8"):
        export_case(fresh, {"query": x}, path, init_seed=8, overwrite=True)


def test_fresh_module_is_what_a_user_makes(same_bits):
    torch.manual_seed(7)
    expected = MultiHeadAttention(24, 3).to(torch.bfloat16)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        fresh = fresh_lesson_module(24, 3, 0.1, 7, torch.bfloat16, "cpu")
    finally:
        torch.set_default_dtype(default)
    assert all(map(same_bits, fresh.parameters(), expected.parameters()))


def test_seed_makes_dropout(make, randn, path, read):
    inputs = {"query": randn(2, 5, 24)}
    weights = []
    for seed in (0, 1, 0):
        export_case(make(dropout=0.5), inputs, path, mode="train", seed=seed, overwrite=True)
        weights.append(read(path)["steps/attention_weights"])
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])


def test_existing_files_are_kept(make, randn, path):
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="case.safetensors exists already"):
        export_case(make(), {"query": randn(2, 5, 24)}, path)
    assert path.read_bytes() == b"precious"
    export_case(make(), {"query": randn(2, 5, 24)}, path, overwrite=True)
    assert path.stat().st_size > 1000
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_nothing(make, randn, path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        export_case(make(), {"query": randn(2, 5, 24)}, path)
    assert not list(path.parent.iterdir())


def test_wrong_arguments(make, randn, path):
    x = randn(2, 5, 24)
    wrong = [
        ({"inputs": {"key": x}}, ValueError, "inputs must be 'query'"),
        ({"inputs": {"query": x, "attn_mask": x}}, ValueError, "'attn_mask'"),
        (
            {"inputs": {"query": x[0]}},
            ValueError,
            r"query must be \(batch, length, d_model\); found shape \(5, 24\)",
        ),
        ({"mode": "test"}, ValueError, "mode must be 'eval' or 'train'; found 'test'"),
        ({"seed": -1}, ValueError, "seed must be in"),
        ({"module": torch.nn.Linear(2, 2)}, TypeError, "Linear lacks d_model, num_heads, W_q"),
        ({"inputs": {"query": x.half()}}, RuntimeError, "dtype"),
        ({"path": path.parent / "no" / "c.safetensors"}, FileNotFoundError, "there is no folder"),
        ({"path": path.parent}, IsADirectoryError, "is a folder"),
    ]
    for change, kind, message in wrong:
        arguments = {"module": make(), "inputs": {"query": x}, "path": path} | change
        with pytest.raises(kind, match=message):
            export_case(**arguments)
        assert not list(path.parent.iterdir())


def test_a_class_that_returns_more(make, randn, path):
    class Pair(MultiHeadAttention):
        def forward(self, query, key, value, mask=None):
            return super().forward(query, key, value, mask), self.attention_weights

    with pytest.raises(TypeError, match="Pair must return the output alone; found tuple"):
        export_case(make(cls=Pair), {"query": randn(2, 5, 24)}, path)

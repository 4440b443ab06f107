"""The command: its options, its files beside a case, the weights it reads, its errors."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import export_reference
from export_reference import main
from lesson import MultiHeadAttention
from reference_inputs import Case

SMALL = ["--batch", "2", "--seq-len", "5", "--d-model", "24", "--num-heads", "3"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "case.safetensors"


@pytest.fixture
def fails(capsys, tmp_path):
    """Runs the command, which must exit with 2, one line and no new file; returns the line."""

    def fails(*arguments):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert exit_.value.code == 2
        assert captured.out == ""
        assert captured.err.count("\n") == 1 and captured.err.startswith("export_reference.py: error: ")
        assert sorted(tmp_path.iterdir()) == before
        return captured.err

    return fails


def command(scripts, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", str(scripts / "export_reference.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_processes_write_the_same_bytes(scripts, tmp_path):
    options = [*SMALL, "--mode", "train", "--mask", "causal", "--threads", "1"]
    files = [tmp_path / "one.safetensors", tmp_path / "other.safetensors"]
    for file in files:
        result = command(scripts, *options, "--out", file)
        assert result.returncode == 0 and result.stderr == ""
        assert str(file) in result.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_bad_usage_in_a_process(scripts, tmp_path):
    result = command(scripts, "--out", tmp_path / "c.safetensors", "--num-heads", "7")
    assert result.returncode == 2
    assert (
        result.stderr
        == "export_reference.py: error: --num-heads 7 does not divide the 512 features of the model\n"
    )


def test_defaults_are_the_lessons_question(monkeypatch, path):
    seen = {}
    monkeypatch.setattr(export_reference, "make_module", lambda case: seen.setdefault("case", case))
    monkeypatch.setattr(export_reference, "export_case", lambda *_, **__: path.write_bytes(b""))
    assert main(["--out", str(path)]) == 0
    assert seen["case"] == Case(
        batch=32,
        query_len=50,
        key_len=50,
        d_model=512,
        num_heads=8,
        weights="init",
        threads=torch.get_num_threads(),
    )


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    assert all(word in text for word in ("examples:", "--grid", "--prefix", "encoder.0.attn", "exit status"))
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("mask", ["causal", "padding", "random", "full-row"])
def test_masks(path, read, mask):
    main([*SMALL, "--cross", "--key-len", "7", "--mask", mask, "--out", str(path)])
    case = read(path)
    blocked = (case["inputs/mask"] == 0).expand(2, 1, 5, 7)
    weights = case["outputs/attention_weights"]
    assert blocked.any() and not blocked.all()
    rows = blocked.all(-1, keepdim=True)
    assert rows.any() == (mask == "full-row")
    assert (weights[(blocked & ~rows).expand_as(weights)] == 0).all()
    assert case.metadata["mask"] == mask


def test_options_reach_the_file(path, read):
    options = "--dtype float64 --dropout 0.25 --mode train --seed 3 --threads 1 --cross --no-grads"
    main([*SMALL, *options.split(), "--out", str(path), "--force"])
    case = read(path)
    told = {
        name: case.metadata[name] for name in ("dtype", "dropout", "mode", "seed", "init_seed", "num_threads")
    }
    assert told == {
        "dtype": "float64",
        "dropout": "0.25",
        "mode": "train",
        "seed": "3",
        "init_seed": "3",
        "num_threads": "1",
    }
    assert case.names("inputs") == {"query", "key"} and not case.names("grads")
    assert case.metadata["source"] == " ".join(["export_reference.py", *SMALL, options])
    torch.manual_seed(3)
    assert torch.equal(case["weights/W_q.weight"], MultiHeadAttention(24, 3).W_q.weight.double())


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_files_beside_the_case(path, read, same_bits):
    kinds = ["torchscript", "state_dict", "safetensors"]
    main([*SMALL, "--mask", "causal", "--mode", "train", "--out", str(path), "--also", *kinds])
    case = read(path)
    weights = {name: case[f"weights/{name}"] for name in case.names("weights")}
    names = ["case.torchscript.pt", "case.state_dict.pt", "case.weights.safetensors", "case.safetensors"]
    assert {file.name for file in path.parent.iterdir()} == set(names)
    state_dict = torch.load(path.with_name(names[1]), weights_only=True)
    alone = load_file(path.with_name(names[2]))
    traced = torch.jit.load(path.with_name(names[0]))
    for found in (state_dict, alone, traced.state_dict()):
        assert set(found) == set(weights)
        assert all(same_bits(found[name], weights[name]) for name in weights)

    module = MultiHeadAttention(24, 3).eval()
    module.load_state_dict(weights)
    # Three tensors, for a trace of one passed thrice would mix them up; and other sizes than the traced ones.
    arguments = [*torch.randn(3, 4, 6, 24).unbind(), torch.ones(6, 6).tril()]
    assert same_bits(traced(*arguments), module(*arguments))


def test_files_beside_the_case_are_kept(path, fails):
    beside = path.with_name("case.state_dict.pt")
    beside.write_bytes(b"precious")
    assert "case.state_dict.pt exists already" in fails(*SMALL, "--out", path, "--also", "state_dict")
    assert beside.read_bytes() == b"precious"
    assert main([*SMALL, "--out", str(path), "--also", "state_dict", "--force"]) == 0


@pytest.fixture
def trained(make):
    """A model's weights: two attention blocks and something else, by full names."""
    blocks = {f"encoder.{index}.attn": make(d_model=24).double() for index in (0, 1)}
    blocks["encoder.1.attn"].W_q.weight.data += 1
    names = {
        f"{name}.{key}": tensor
        for name, block in blocks.items()
        for key, tensor in block.state_dict().items()
    }
    return names | {"norm.weight": torch.ones(24)}


def wrapped(trained, prefix):
    return {prefix + name: tensor for name, tensor in trained.items()}


def compiled_inside(trained):
    return {name.replace(".attn.", ".attn._orig_mod."): tensor for name, tensor in trained.items()}


@pytest.mark.parametrize("prefix", ["encoder.1.attn", "encoder.1.attn."])
@pytest.mark.parametrize(
    "content",
    [
        lambda names: names,
        lambda names: wrapped(names, "module."),
        lambda names: wrapped(names, "_orig_mod.module."),
        compiled_inside,
        lambda names: {"model": names, "epoch": 3},
        lambda names: {"state_dict": wrapped(names, "module."), "optimizer": {"lr": 0.1}},
        lambda names: {"checkpoint": 1, "model": {"model_state_dict": names}},
    ],
)
def test_own_weights(path, tmp_path, read, trained, content, prefix):
    checkpoint = tmp_path / "checkpoint.bin"
    torch.save(content(trained), checkpoint)
    main(
        [
            "--weights",
            str(checkpoint),
            "--prefix",
            prefix,
            "--num-heads",
            "3",
            "--batch",
            "2",
            "--out",
            str(path),
        ]
    )
    case = read(path)
    assert case.metadata["d_model"] == "24" and "init_seed" not in case.metadata
    for name in case.names("weights"):
        assert torch.equal(case[f"weights/{name}"], trained[f"encoder.1.attn.{name}"].float())


def test_own_weights_in_other_formats(path, tmp_path, read, trained):
    save_file(wrapped(trained, "module."), tmp_path / "weights.pt")
    torch.save(trained, tmp_path / "legacy.safetensors", _use_new_zipfile_serialization=False)
    common = ["--num-heads", "3", "--batch", "2", "--seq-len", "5"]
    for name in ("weights.pt", "legacy.safetensors"):
        main(
            [
                *common,
                "--weights",
                str(tmp_path / name),
                "--prefix",
                "encoder.0.attn",
                "--out",
                str(path),
                "--force",
            ]
        )
        assert torch.equal(read(path)["weights/W_o.bias"], trained["encoder.0.attn.W_o.bias"].float())

    main([*SMALL, "--out", str(path), "--seed", "5", "--force", "--also", "torchscript"])
    weights = read(path)["weights/W_o.bias"]
    main([*common, "--weights", str(tmp_path / "case.torchscript.pt"), "--out", str(path), "--force"])
    assert torch.equal(read(path)["weights/W_o.bias"], weights)


def test_errors_about_weights(path, tmp_path, fails, trained):
    checkpoint, other = tmp_path / "model.pt", tmp_path / "other.pt"
    torch.save({"model": trained}, checkpoint)
    line = fails("--num-heads", "3", "--weights", checkpoint, "--prefix", "encoder.7.attn", "--out", path)
    assert "model.pt: expected encoder.7.attn.W_q.weight, " in line
    assert "found attention blocks under the prefixes 'encoder.0.attn.', 'encoder.1.attn.'" in line

    torch.save({f"layer{index}.weight": torch.ones(1) for index in range(20)}, other)
    line = fails("--num-heads", "3", "--weights", other, "--out", path)
    assert (
        "expected W_q.weight" in line
        and "found layer0.weight, layer1.weight" in line
        and "and 8 more" in line
    )

    torch.save([1, 2], other)
    assert "found no named tensors" in fails("--num-heads", "3", "--weights", other, "--out", path)

    odd = {name.removeprefix("encoder.0.attn."): tensor for name, tensor in trained.items()}
    torch.save(odd | {"W_k.bias": torch.ones(23)}, other)
    line = fails("--num-heads", "3", "--weights", other, "--out", path)
    assert "W_k.bias: expected floating-point numbers of shape (24,), found float32 of shape (23,)" in line
    torch.save(odd | {"W_k.bias": torch.ones(24, dtype=torch.int8)}, other)
    assert "found int8 of shape (24,)" in fails("--num-heads", "3", "--weights", other, "--out", path)

    torch.save(MultiHeadAttention(24, 3), other)
    assert "expected a torch.save, TorchScript or safetensors file with weights only" in fails(
        "--num-heads", "3", "--weights", other, "--out", path
    )
    for content in (b"", b"PK\x03\x04nonsense", b"\x05\0\0\0\0\0\0\0{}}}}", checkpoint.read_bytes()[:5000]):
        other.write_bytes(content)
        assert "other.pt: expected a torch.save" in fails("--num-heads", "3", "--weights", other, "--out", path)
    assert "No such file" in fails("--num-heads", "3", "--weights", tmp_path / "none.pt", "--out", path)
    assert "expected a regular file" in fails("--num-heads", "3", "--weights", tmp_path, "--out", path)
    assert "expected a regular file" in fails("--num-heads", "3", "--weights", "/dev/zero", "--out", path)


def test_errors_about_options(path, tmp_path, fails, trained):
    checkpoint = tmp_path / "model.pt"
    torch.save(trained, checkpoint)
    block = ["--weights", checkpoint, "--prefix", "encoder.0.attn", "--out", path]
    wrong = {
        "one of the arguments --out --grid is required": [],
        "not allowed with argument": ["--out", path, "--grid", tmp_path / "grid"],
        "--key-len 7 differs from --seq-len 50: that needs --cross": ["--key-len", "7", "--out", path],
        "--num-heads 7 does not divide the 512 features": ["--num-heads", "7", "--out", path],
        "--num-heads 5 does not divide the 24 features": [*block, "--num-heads", "5"],
        "--d-model 32: ": [*block, "--num-heads", "3", "--d-model", "32"],
        "--weights needs --num-heads": block,
        "must be at most 1024, found 1025": ["--threads", "1025", "--out", path],
        "float16 takes no --mask": ["--dtype", "float16", "--mask", "causal", "--out", path],
        "--prefix names a block in --weights": ["--prefix", "a", "--out", path],
        "must be positive, found 0": ["--batch", "0", "--out", path],
        "must not be negative, found -1": ["--seq-len", "-1", "--out", path],
        "must be in [0, 1], found 1.5": ["--dropout", "1.5", "--out", path],
        "invalid number value: 'many'": ["--batch", "many", "--out", path],
        "invalid choice: 'int8'": ["--dtype", "int8", "--out", path],
        "must be in [0, 2**63)": ["--seed", str(2**63), "--out", path],
        "there is no folder": ["--out", tmp_path / "no" / "case.safetensors"],
        "is a folder": ["--out", tmp_path],
    }
    for message, arguments in wrong.items():
        assert message in fails(*arguments)
    if not torch.cuda.is_available():
        assert "PyTorch finds no CUDA device" in fails("--device", "cuda", "--out", path)


def test_overwriting_needs_force(path, fails):
    path.write_bytes(b"precious")
    assert "case.safetensors exists already and is not overwritten" in fails(*SMALL, "--out", path)
    assert path.read_bytes() == b"precious"


def test_grid(tmp_path, monkeypatch, capsys, read, fails):
    """A grid of three cases, for the full one takes its time."""
    cases = [
        Case(query_len=3, key_len=3),
        Case(query_len=3, key_len=3, mode="train", threads=2),
        Case(weights="init"),
    ]
    monkeypatch.setattr(export_reference, "grid_cases", lambda: cases)
    folder = tmp_path / "deep" / "grid"
    assert main(["--grid", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("3 cases, ") and captured.out.count("\n") == 1 and captured.err == ""
    assert {file.name for file in folder.iterdir()} == {f"{case.name}.safetensors" for case in cases}
    for case in cases:
        told = read(folder / f"{case.name}.safetensors").metadata
        assert (told["case"], told["num_threads"]) == (case.name, str(case.threads))
        assert told.get("init_seed") == ("0" if case.weights == "init" else None)
    assert "exists already" in fails("--grid", folder)
    assert main(["--grid", str(folder), "--force"]) == 0

"""`mha inspect`: what a file holds, for people and for programs."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HOSTILE = "x\n\x1b[31m\u202e\x9b2J\r"


def inspected(mha, path, *arguments) -> dict:
    run = mha("inspect", path, "--json", *arguments)
    assert run.status == 0 and run.err == ""
    return run.json()


def bert(prefix: str, width: int = 8) -> dict[str, torch.Tensor]:
    layers = ["self.query", "self.key", "self.value", "output.dense"]
    weights = {f"{prefix}.{layer}.weight": torch.randn(width, width) for layer in layers}
    return weights | {f"{prefix}.{layer}.bias": torch.randn(width) for layer in layers}


def values(dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern is as good as another."""
    if dtype == torch.bool:
        return torch.tensor([[True, False, True], [False, False, True]])
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (2, 3 * size), dtype=torch.uint8).view(dtype)


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64),
]


@pytest.fixture
def zoo(tmp_path) -> tuple[Path, dict[str, torch.Tensor]]:
    tensors = {str(dtype).removeprefix("torch."): values(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.empty(0, 3), "one": torch.ones(1)}
    save_file(tensors, tmp_path / "zoo.safetensors", {"format": "pt", "note": "a\nb"})
    return tmp_path / "zoo.safetensors", tensors


def test_the_table(mha, zoo):
    path, tensors = zoo
    run = mha("inspect", path)
    assert run.status == 0
    head = run.report().splitlines()[:6]
    total = sum(tensor.nbytes for tensor in tensors.values())
    elements = sum(tensor.numel() for tensor in tensors.values())
    assert head == [
        f"file      {path}",
        "format    safetensors",
        f"size      {path.stat().st_size / 1024:.1f} KiB ({path.stat().st_size:,} bytes)",
        f"tensors   {len(tensors)} tensors, {elements} elements, {total} bytes",
        "metadata  format = pt",
        "          note = a\\x0ab",
    ]
    rows = run.rows()
    assert set(rows) == set(tensors)
    for name, tensor in tensors.items():
        shape = str(tuple(tensor.shape))
        dtype = str(tensor.dtype).removeprefix("torch.")
        assert rows[name].split() == [name, *shape.split(), dtype, str(tensor.nbytes), str(tensor.nbytes), "B"]
    assert run.report().endswith("\n\nno attention blocks found\n")


def test_json(mha, zoo):
    path, tensors = zoo
    found = inspected(mha, path)
    assert list(found) == ["file", "format", "metadata", "tensors", "attention"]
    assert found["file"] == str(path) and found["format"] == "safetensors"
    assert found["metadata"] == {"format": "pt", "note": "a\nb"} and found["attention"] == []
    assert {tensor["name"]: tensor for tensor in found["tensors"]} == {
        name: {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
        }
        for name, tensor in tensors.items()
    }


@pytest.fixture
def hashing(mha, zoo) -> None:
    run = mha("inspect", zoo[0], "--hash")
    if run.status == 2:
        assert run.error() == "mha: --hash: expected a tool that was built with OpenSSL, found one without"
        pytest.skip("the tool was built without OpenSSL")


def sha256(tensor: torch.Tensor) -> str:
    plain = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()


@pytest.mark.usefixtures("hashing")
def test_hashes_are_those_of_the_values(mha, zoo):
    path, tensors = zoo
    expected = {name: sha256(tensor) for name, tensor in tensors.items()}
    found = inspected(mha, path, "--hash")
    assert {tensor["name"]: tensor["sha256"] for tensor in found["tensors"]} == expected
    run = mha("inspect", path, "--hash")
    assert {name: row.split()[-1] for name, row in run.rows().items()} == expected


@pytest.mark.usefixtures("hashing")
def test_hashes_of_views_are_row_major(mha, tmp_path):
    base = torch.arange(24.0).view(4, 6)
    lazy = torch.randn(3, 2, dtype=torch.complex64).conj()
    tensors = {"base": base, "transposed": base.t(), "column": base[:, 2], "lazy": lazy}
    torch.save(tensors, tmp_path / "views.pt")
    loaded = torch.load(tmp_path / "views.pt")
    found = inspected(mha, tmp_path / "views.pt", "--hash")
    assert {tensor["name"]: tensor["sha256"] for tensor in found["tensors"]} == {
        name: sha256(tensor.resolve_conj()) for name, tensor in loaded.items()
    }


def test_shared_memory_is_noted(mha, tmp_path):
    base = torch.arange(6.0)
    torch.save({"a": base, "b": base.view(2, 3), "c": base.clone(), "none": base[:0]}, tmp_path / "tied.pt")
    run = mha("inspect", tmp_path / "tied.pt")
    rows = run.rows()
    assert rows["b"].endswith('   shares memory with "a"')
    assert all("shares" not in rows[name] for name in ("a", "c", "none"))
    found = {tensor["name"]: tensor for tensor in inspected(mha, tmp_path / "tied.pt")["tensors"]}
    assert found["b"]["shares_memory_with"] == "a"
    assert all("shares_memory_with" not in found[name] for name in ("a", "c", "none"))


# Attention


def block_rows(run) -> list[str]:
    lines = run.report().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("  prefix "))
    return [line for line in lines[begin + 1 :] if line.startswith("  ") and "mha convert" not in line]


def test_attention_blocks(mha, write, tmp_path):
    grouped = {f"dec.{name}_proj.weight": torch.randn(8 if name in "qo" else 4, 8) for name in "qkvo"}
    path = write(tmp_path / "m.safetensors", bert("enc.0.attention") | bert("enc.1.attention", 16) | grouped)
    run = mha("inspect", path)
    assert "\n3 attention blocks found\n" in run.report()
    rows = {row.split()[0]: row for row in block_rows(run)}
    assert rows["enc.0.attention"].split() == ["enc.0.attention", "bert", "8"]
    assert rows["enc.1.attention"].split() == ["enc.1.attention", "bert", "16"]
    assert rows["dec"].split()[:3] == ["dec", "llama", "8"]
    assert "cannot be the lesson's: found grouped key/value heads (2 query heads" in rows["dec"]
    assert "rotary embedding" in rows["dec"]
    assert run.report().endswith(
        "\nto write a block by the lesson's names:\n"
        f"  mha convert {path} attention.safetensors --prefix enc.0.attention\n"
    )
    blocks = {block["prefix"]: block for block in inspected(mha, path)["attention"]}
    assert list(blocks["dec"]) == ["prefix", "layout", "d_model", "num_heads", "caveat", "problem"]
    assert blocks["dec"]["problem"].startswith("found grouped key/value heads")
    assert blocks["enc.0.attention"] == {
        "prefix": "enc.0.attention",
        "layout": "bert",
        "d_model": 8,
        "num_heads": None,
        "caveat": "",
        "problem": "",
    }


def test_a_block_without_a_prefix(mha, write, tmp_path):
    path = write(tmp_path / "m.safetensors", {n.removeprefix("x."): t for n, t in bert("x").items()})
    run = mha("inspect", path)
    assert [row.split() for row in block_rows(run)] == [["(root)", "bert", "8"]]
    assert run.report().endswith(f"  mha convert {path} attention.safetensors --prefix ''\n")


def test_a_block_that_fits_two_layouts(mha, write, tmp_path):
    both = {f"a.{name}.weight": torch.randn(8, 8) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj")}
    path = write(tmp_path / "m.safetensors", both)
    run = mha("inspect", path)
    assert "\n1 attention block found\n" in run.report()
    rows = {row.split()[1]: row for row in block_rows(run)}
    assert "fits bart too: choose with --layout" in rows["llama"]
    assert "fits llama too: choose with --layout" in rows["bart"]
    assert " --prefix a --layout llama\n" in run.report()


def test_a_block_that_needs_num_heads(mha, write, tmp_path):
    path = write(tmp_path / "m.safetensors", {f"a.{name}.weight": torch.randn(8, 8) for name in "qkvo"})
    run = mha("inspect", path)
    assert "   needs --num-heads; projections only: " in block_rows(run)[0]
    assert run.report().endswith(" --prefix a --num-heads N\n")


def test_num_heads_from_the_config_beside(mha, write, tmp_path):
    path = write(tmp_path / "m.safetensors", bert("a"))
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "num_attention_heads": 2}')
    run = mha("inspect", path)
    assert block_rows(run)[0].split() == ["a", "bert", "8", "2"]
    assert inspected(mha, path)["attention"][0]["num_heads"] == 2
    (tmp_path / "config.json").write_text('{"num_attention_heads": 3}')
    run = mha("inspect", path)
    assert run.status == 0 and block_rows(run)[0].split() == ["a", "bert", "8"]
    assert (
        f"\nnum_heads is not known: {tmp_path}/config.json: num_attention_heads: "
        "expected a divisor of d_model 8, found 3\n" in run.report()
    )
    assert inspected(mha, path)["attention"][0]["num_heads"] is None


# Names and files of every kind


def test_hostile_names(mha, write, tmp_path):
    tensors = {HOSTILE: torch.ones(2), **bert(HOSTILE)}
    path = write(tmp_path / "m.safetensors", tensors, {HOSTILE: HOSTILE})
    run = mha("inspect", path)  # The fixture refuses control characters.
    assert run.status == 0 and "\\x1b[31m\\xe2\\x80\\xae" in run.out and "\u202e" not in run.out
    found = inspected(mha, path)
    assert {tensor["name"] for tensor in found["tensors"]} == set(tensors)
    assert found["attention"][0]["prefix"] == HOSTILE and found["metadata"] == {HOSTILE: HOSTILE}


def test_a_name_that_is_not_utf8(mha, tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"caf\u00e9": torch.ones(1)}, path)
    data = path.read_bytes()
    assert data.count("caf\u00e9".encode()) == 1
    path.write_bytes(data.replace("caf\u00e9".encode(), b"caf\xe9\xe9"))
    assert list(mha("inspect", path).rows()) == ["caf\\xe9\\xe9"]
    assert inspected(mha, path)["tensors"][0]["name"] == "caf\ufffd\ufffd"


def test_a_wide_name_keeps_the_columns(mha, write, tmp_path):
    path = write(tmp_path / "m.safetensors", {"\u00e9\u00e9\u00e9": torch.ones(1), "abc": torch.ones(1)})
    rows = mha("inspect", path).rows()
    assert rows["\u00e9\u00e9\u00e9"].index("(1,)") == rows["abc"].index("(1,)")


def test_a_file_name_that_a_shell_would_split(mha, write, tmp_path):
    path = write(tmp_path / "it's m.safetensors", bert("a"))
    assert f"  mha convert '{tmp_path}/it'\\''s m.safetensors' attention" in mha("inspect", path).report()


def test_a_file_without_tensors(mha, write, tmp_path):
    path = write(tmp_path / "m.safetensors", {})
    assert "tensors   0 tensors, 0 elements, 0 bytes\n\nno attention blocks found\n" in mha("inspect", path).report()
    assert inspected(mha, path)["tensors"] == []


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--hash"]], ids=" ".join)
def test_unreadable_files(mha, tmp_path, arguments):
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("no tensors here\n")
    os.mkfifo(tmp_path / "pipe.pt")
    for name, said in [
        ("absent.pt", "cannot open: No such file or directory"),
        ("empty.pt", "expected a weights file, found an empty file"),
        ("text.pt", "not a weights file"),
        ("pipe.pt", "expected a regular file, found a pipe"),
        (".", "expected a regular file, found a directory"),
    ]:
        error = mha("inspect", tmp_path / name, *arguments).error()
        assert error.startswith(f"mha: {tmp_path / name}: ") and said in error


def test_output_that_is_lost_is_no_success(zoo):
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        command = [os.environ["MHA_TOOL"], "inspect", zoo[0]]
        assert subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False).returncode == 2


def test_bad_usage(mha, zoo):
    assert "FILE" in mha("inspect").error()
    assert "--jso" in mha("inspect", zoo[0], "--jso").error()
    assert "surplus" in mha("inspect", zoo[0], "surplus").error()


def test_many_tensors(mha, tmp_path):
    # By hand, for speed: 50,000 names over one byte each.
    count = 50_000
    entries = {
        f"layers.{i // 8}.block.{i % 8}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(count)
    }
    header = json.dumps(entries).encode()
    path = tmp_path / "many.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(count))
    run = mha("inspect", path)
    assert run.status == 0 and len(run.rows()) == count
    assert "tensors   50,000 tensors, 50,000 elements, 48.8 KiB (50,000 bytes)\n" in run.report()
    assert len(inspected(mha, path)["tensors"]) == count

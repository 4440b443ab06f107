"""`mha convert`: what becomes of files, whatever goes wrong."""

import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from attention_layouts import lesson_weights, pack
from safetensors.torch import save_file
from weights_files import LESSON_NAMES, assert_same_bits, load, names, under

# Files


@pytest.mark.parametrize("name", ["out", "out.txt", ".pt", "out.safetensors/", "out.json"])
def test_a_suffix_that_is_not_known(mha, model, tmp_path, name):
    error = mha("convert", model(pack("bert", lesson_weights())), f"{tmp_path}/{name}").error()
    assert error.startswith(
        f"mha: {tmp_path}/{name}: expected a name that ends in .safetensors, .pt, .pth, .bin or .ckpt, found "
    )
    assert names(tmp_path) == {"model.safetensors"}


def test_an_existing_file_is_not_replaced_unasked(mha, model, tmp_path):
    path = model(pack("bert", lesson_weights()))
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    assert mha("convert", path, out).error() == (
        f"mha: {out}: expected a new file, found one that exists (--force replaces it)"
    )
    assert out.read_text() == "precious"
    assert mha("convert", path, out, "--force").status == 0
    assert set(load(out)) == set(LESSON_NAMES)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("way", ["itself", "link", "hard link", "other spelling"])
def test_a_file_onto_itself(mha, tmp_path, way, suffix):
    lesson = lesson_weights()
    path = tmp_path / f"model{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(pack("bert", lesson), path)
    out = tmp_path / f"other{suffix}"
    if way == "link":
        out.symlink_to(path)
    elif way == "hard link":
        out.hardlink_to(path)
    elif way == "other spelling":
        out = f"{tmp_path}/../{tmp_path.name}/model{suffix}"
    else:
        out = path
    before = names(tmp_path)
    assert "--force" in mha("convert", path, out).error()
    assert mha("convert", path, out, "--force").status == 0
    assert_same_bits(load(Path(out)), lesson)
    assert names(tmp_path) == before and (way != "link" or Path(out).is_symlink())


def test_an_unreadable_input_keeps_the_output(mha, model, tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    (tmp_path / "empty.pt").touch()
    for name in ("absent.pt", "empty.pt", "."):
        error = mha("convert", tmp_path / name, out, "--force").error()
        assert error.startswith(f"mha: {tmp_path / name}: ")
    assert out.read_text() == "precious" and names(tmp_path) == {"out.safetensors", "empty.pt"}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_disk_that_is_full(model, tmp_path, suffix):
    path = model(pack("bert", {name: torch.ones(64, 64) for name in LESSON_NAMES if "weight" in name} | {
        name: torch.ones(64) for name in LESSON_NAMES if "bias" in name
    }))
    out = tmp_path / f"out{suffix}"
    out.write_text("precious")

    def no_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    run = subprocess.run(
        [os.environ["MHA_TOOL"], "convert", path, out, "--force"],
        capture_output=True,
        check=False,
        preexec_fn=no_space,
        restore_signals=False,  # Python ignores SIGXFSZ, and so does what it starts: the write fails.
        text=True,
    )
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == f"mha: {out}: cannot write: File too large\n"
    assert out.read_text() == "precious" and names(tmp_path) == {"model.safetensors", out.name}


def test_a_device_is_not_written_to(mha, model, tmp_path):
    path = model(pack("bert", lesson_weights()))
    out = tmp_path / "full.pt"
    out.symlink_to("/dev/full")
    assert mha("convert", path, out, "--force").error() == (
        f"mha: {out}: expected a file to write, found something that is not a regular file"
    )
    assert out.is_symlink() and names(tmp_path) == {"model.safetensors", "full.pt"}


def test_a_folder_is_not_replaced(mha, model, tmp_path):
    path = model(pack("bert", lesson_weights()))
    (tmp_path / "folder.pt").mkdir()
    error = mha("convert", path, tmp_path / "folder.pt", "--force").error()
    assert error == f"mha: {tmp_path}/folder.pt: expected a file to write, found a directory"


def test_a_folder_that_is_not_there(mha, model, tmp_path):
    out = tmp_path / "absent" / "out.pt"
    error = mha("convert", model(pack("bert", lesson_weights())), out).error()
    assert error == f"mha: {out}: cannot create: No such file or directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(mha, model, tmp_path):
    path = model(pack("bert", lesson_weights()))
    (tmp_path / "folder").mkdir(mode=0o555)
    out = tmp_path / "folder" / "out.pt"
    assert mha("convert", path, out).error() == f"mha: {out}: cannot create: Permission denied"


def test_what_the_format_cannot_hold(mha, tmp_path):
    torch.save({"x": torch.ones(2, dtype=torch.complex128)}, tmp_path / "in.pt")
    out = tmp_path / "out.safetensors"
    error = mha("convert", tmp_path / "in.pt", out, "--keep-names").error()
    assert error.startswith(f'mha: {out}: tensor "x": ') and "complex128" in error
    assert names(tmp_path) == {"in.pt"}


# Arguments


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "IN"),
        (["in.pt"], "OUT"),
        (["in.pt", "out.pt", "surplus"], "surplus"),
        (["in.pt", "out.pt", "--layout", "nonsense"], "--layout"),
        (["in.pt", "out.pt", "--num-heads", "0"], "--num-heads"),
        (["in.pt", "out.pt", "--keep-names", "--layout", "bert"], "--layout"),
        (["in.pt", "out.pt", "--keep-names", "--num-heads", "2"], "--num-heads"),
    ],
)
def test_bad_usage(mha, tmp_path, arguments, named):
    error = mha("convert", *arguments, cwd=tmp_path).error()
    assert named in error and "mha --help" in error


def test_what_inspect_proposes_works(mha, model, tmp_path):
    lesson = lesson_weights()
    model(under("a b", pack("bert", lesson)))
    command = mha("inspect", "model.safetensors", cwd=tmp_path).report().splitlines()[-1].strip()
    assert command == "mha convert model.safetensors attention.safetensors --prefix 'a b'"
    shell = command.replace("mha", '"$MHA_TOOL"', 1)
    assert subprocess.run(shell, shell=True, cwd=tmp_path, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert_same_bits(load(tmp_path / "attention.safetensors"), lesson)

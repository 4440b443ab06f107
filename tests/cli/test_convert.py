"""`mha convert`: one attention block by the lesson's names, or another format."""

import json
import math
import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from attention_layouts import HEADS, LAYOUTS, WIDTH, compute, lesson_computes, lesson_weights, pack
from safetensors import safe_open
from safetensors.torch import load_file, save_file

SUFFIXES = [".safetensors", ".SafeTensors", ".pt", ".pth", ".bin", ".ckpt", ".PT"]
HEADS_TEXT = str(HEADS)
NAMES = [f"W_{layer}.{kind}" for layer in "qkvo" for kind in ("weight", "bias")]


def load(path: Path) -> dict[str, torch.Tensor]:
    """As Python reads it."""
    return load_file(path) if path.suffix.lower() == ".safetensors" else torch.load(path, weights_only=True)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found[name], tensor) if each.numel()]
        assert not bits or torch.equal(*bits), name


def under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def model(write, tmp_path):
    """Writes `model.safetensors` and returns its path."""

    def model(tensors, said=None) -> Path:
        return write(tmp_path / "model.safetensors", {n: t.contiguous() for n, t in tensors.items()}, said)

    return model


# Layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_the_same_afterwards(mha, model, tmp_path, layout):
    torch.manual_seed(3)
    lesson = lesson_weights(biased=layout != "t5")
    packed = pack(layout, lesson)
    out = tmp_path / "out.safetensors"
    run = mha("convert", model(under("layers.1.attn", packed)), out, "--num-heads", HEADS_TEXT)
    assert run.status == 0
    said = f'found    layout {layout} under "layers.1.attn", d_model {WIDTH}, num_heads {HEADS}\n'
    assert said in run.report()
    assert_same_bits(load(out), lesson)  # Exact for T5 too: the root of 4 features a head is 2.
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(lesson_computes(load(out), x), compute(layout, packed, x))





def test_t5_is_scaled_by_a_root_that_is_rounded_once(mha, model, tmp_path):
    packed = pack("t5", lesson_weights(torch.float32))
    out = tmp_path / "out.safetensors"
    assert mha("convert", model(packed), out, "--num-heads", "8").status == 0
    expected = (packed["q.weight"].double() * math.sqrt(WIDTH / 8)).float()
    assert_same_bits({"q": load(out)["W_q.weight"]}, {"q": expected})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_that_is_written(mha, model, tmp_path, suffix, dtype):
    lesson = lesson_weights(dtype)
    out = tmp_path / f"out{suffix}"
    run = mha("convert", model(pack("bert", lesson)), out)
    assert run.status == 0 and names(tmp_path) == {"model.safetensors", out.name}
    assert_same_bits(load(out), lesson)
    assert out.stat().st_size < sum(tensor.nbytes for tensor in lesson.values()) + 4096  # No more is in it.
    if suffix.lower() != ".safetensors":
        assert list(load(out)) == NAMES
    # Back again.
    assert mha("convert", out, tmp_path / "back.safetensors").status == 0
    assert_same_bits(load(tmp_path / "back.safetensors"), lesson)


def test_the_same_input_gives_the_same_bytes(mha, model, tmp_path):
    path = model(pack("bart", lesson_weights()))
    for name in ("a.safetensors", "b.safetensors", "a.pt", "b.pt"):
        assert mha("convert", path, tmp_path / name).status == 0
    for suffix in ("safetensors", "pt"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_the_report_and_the_metadata(mha, model, tmp_path):
    packed = pack("llama", lesson_weights(torch.float32))
    kept = {name: tensor for name, tensor in packed.items() if name != "q_proj.bias"}
    path = model(under("a", kept) | {"a.q_norm.weight": torch.ones(4), "b.weight": torch.ones(1)})
    out = tmp_path / "out.safetensors"
    run = mha("convert", path, out)
    assert run.status == 0
    caveat = (
        "projections only: the model rotates query and key by position (rotary embedding) and may attend within a "
        "sliding window; the model normalises query and key, which is left out"
    )
    size = out.stat().st_size
    assert run.report().splitlines() == [
        f"read     {path} (safetensors)",
        f'found    layout llama under "a", d_model {WIDTH}, num_heads unknown',
        "zero     W_q.bias (not in the file)",
        'ignored  1 other name: "a.q_norm.weight"',
        f"caveat   {caveat}",
        f"written  {out}: 8 tensors, 1,088 elements, {size / 1024:.1f} KiB ({size:,} bytes)",
    ]
    assert not load(out)["W_q.bias"].any()
    assert metadata(out) == {
        "format": "pt",
        "source_layout": "llama",
        "source_prefix": "a",
        "d_model": str(WIDTH),
        "caveat": caveat,
    }


def test_many_other_names_are_counted(mha, model, tmp_path):
    other = {f"extra.{i}": torch.ones(1) for i in range(9)}
    run = mha("convert", model(pack("bert", lesson_weights()) | other), tmp_path / "out.pt", "--prefix", "")
    listed = ", ".join(f'"extra.{i}"' for i in range(5))
    assert f"\nignored  9 other names: {listed} and 4 more\n" in run.report()


# Other formats


def test_from_torchscript(mha, tmp_path):
    from lesson import MultiHeadAttention

    module = MultiHeadAttention(WIDTH, HEADS).eval()
    x = torch.randn(1, 3, WIDTH)
    torch.jit.trace(module, (x, x, x), check_trace=False).save(tmp_path / "model.ts")
    out = tmp_path / "out.safetensors"
    run = mha("convert", tmp_path / "model.ts", out)
    assert run.report().startswith(f"read     {tmp_path}/model.ts (torchscript)\nfound    layout lesson under no prefix, ")
    assert_same_bits(load(out), module.state_dict())


@pytest.mark.parametrize("zip_archive", [True, False], ids=["torch-save", "torch-save-legacy"])
def test_from_torch_save(mha, tmp_path, zip_archive):
    lesson = lesson_weights(torch.bfloat16)
    checkpoint = {"model": under("a", pack("timm", lesson)), "epoch": 3}
    torch.save(checkpoint, tmp_path / "model.pt", _use_new_zipfile_serialization=zip_archive)
    out = tmp_path / "out.pt"
    run = mha("convert", tmp_path / "model.pt", out)
    assert (" (torch-save)\n" if zip_archive else " (torch-save-legacy)\n") in run.report()
    assert 'layout timm under "model.a", ' in run.report()
    assert_same_bits(load(out), lesson)


def test_from_shards(mha, write, tmp_path):
    lesson = lesson_weights()
    packed = under("a", pack("bart", lesson))
    shards = {"model-1-of-2.safetensors": {}, "model-2-of-2.safetensors": {}}
    for number, (name, tensor) in enumerate(packed.items()):
        shards[list(shards)[number % 2]][name] = tensor
    for shard, tensors in shards.items():
        write(tmp_path / shard, tensors)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    run = mha("convert", index, tmp_path / "block.safetensors")
    assert f"read     {index} (safetensors-index)\n" in run.report()
    assert_same_bits(load(tmp_path / "block.safetensors"), lesson)
    assert mha("convert", index, tmp_path / "whole.pt", "--keep-names").status == 0
    assert_same_bits(load(tmp_path / "whole.pt"), packed)
    size = index.stat().st_size
    assert f"\nsize      {size} bytes, the index alone\n" in mha("inspect", index).report()


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_checksums_are_compared_on_request(mha, tmp_path, command):
    path = tmp_path / "model.pt"
    torch.save({name: torch.full_like(tensor, 3) for name, tensor in lesson_weights().items()}, path)
    arguments = [command, path, *([tmp_path / "out.pt"] if command == "convert" else [])]
    assert mha(*arguments, "--verify-checksums").status == 0
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((4,), 3.0, dtype=torch.float64).numpy().tobytes())] ^= 1
    path.write_bytes(data)
    force = ["--force"] if command == "convert" else []
    assert mha(*arguments, *force).status == 0
    assert mha(*arguments, *force, "--verify-checksums").error().startswith(f"mha: {path}: ")


# The block


def test_several_blocks_ask_for_a_prefix(mha, model, tmp_path):
    tensors = {}
    for i in range(7):
        tensors |= under(f"layer.{i}.attention", pack("bert", lesson_weights()))
    path = model(tensors)
    out = tmp_path / "out.safetensors"
    listed = ", ".join(f'"layer.{i}.attention" (bert)' for i in range(5))
    assert mha("convert", path, out).error() == (
        f"mha: {path}: expected one attention block, found 7: {listed} and 2 more; choose with --prefix"
    )
    assert not out.exists()
    for prefix in ("layer.6.attention", "layer.6.attention."):
        assert mha("convert", path, out, "--prefix", prefix, "--force").status == 0
        chosen = {n.removeprefix("layer.6.attention."): t for n, t in tensors.items() if ".6." in n}
        assert_same_bits(pack("bert", load(out)), chosen)
    error = mha("convert", path, tmp_path / "o.pt", "--prefix", "layer.9").error()
    assert error.startswith(f'mha: {path}: expected the weights of an attention block under the prefix "layer.9", ')
    assert '"layer.0.attention" (bert)' in error and "and 2 more" in error


def test_a_layout_chooses_among_blocks(mha, model, tmp_path):
    lesson = lesson_weights()
    other = pack("gpt2", lesson_weights())
    path = model(under("a", pack("bert", lesson)) | under("b", other) | under("c", other))
    out = tmp_path / "out.safetensors"
    assert mha("convert", path, out, "--layout", "bert").status == 0
    assert_same_bits(load(out), lesson)
    assert 'found 2: "b" (gpt2), "c" (gpt2)' in mha("convert", path, tmp_path / "o.pt", "--layout", "gpt2").error()


def test_a_block_without_a_prefix_among_others(mha, model, tmp_path):
    lesson = lesson_weights()
    path = model(pack("bert", lesson) | under("x", pack("bert", lesson_weights())))
    out = tmp_path / "out.safetensors"
    assert 'found 2: "" (bert), "x" (bert); choose' in mha("convert", path, out).error()
    run = mha("convert", path, out, "--prefix", "")
    assert "layout bert under no prefix, " in run.report()
    assert_same_bits(load(out), lesson)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_are_no_part_of_a_prefix(mha, model, tmp_path, wrapper):
    lesson = lesson_weights()
    path = model({wrapper + name: tensor for name, tensor in under("a", pack("bert", lesson)).items()})
    for number, prefix in enumerate([[], ["--prefix", "a"], ["--prefix", wrapper + "a"]]):
        out = tmp_path / f"{number}.safetensors"
        assert mha("convert", path, out, *prefix).status == 0
        assert_same_bits(load(out), lesson)


def test_no_attention(mha, model, tmp_path):
    path = model({"embedding": torch.ones(3)})
    assert mha("convert", path, tmp_path / "out.pt").error() == (
        f"mha: {path}: expected an attention block, found none in any layout; mha inspect shows what is there, "
        "--keep-names converts it as it is"
    )
    assert names(tmp_path) == {"model.safetensors"}


def test_two_layouts_fit(mha, model, tmp_path):
    lesson = lesson_weights()
    path = model(pack("llama", lesson) | pack("bart", lesson))
    assert mha("convert", path, tmp_path / "out.pt").error() == (
        f'mha: {path}: expected one layout, found the names of layout "llama", layout "bart": choose one with --layout'
    )
    out = tmp_path / "out.safetensors"
    assert mha("convert", path, out, "--layout", "bart").status == 0
    assert_same_bits(load(out), lesson)


def test_what_cannot_be_the_lessons(mha, model, tmp_path):
    grouped = {f"{name}_proj.weight": torch.randn(8 if name in "qo" else 4, 8) for name in "qkvo"}
    path = model(grouped)
    error = mha("convert", path, tmp_path / "out.pt").error()
    assert error.startswith(
        f'mha: {path}: expected weights that fit the lesson; layout "llama": found grouped key/value heads (2 query heads'
    )
    assert names(tmp_path) == {"model.safetensors"}


# The number of heads


NEEDED = (
    'layout "gpt-neox": expected the number of heads, by --num-heads or in a config.json beside the file, found neither'
)


def test_num_heads_where_they_are_needed(mha, model, tmp_path):
    lesson = lesson_weights()
    path = model(pack("gpt-neox", lesson))
    out = tmp_path / "out.safetensors"
    assert mha("convert", path, out).error() == f"mha: {path}: {NEEDED}"
    assert mha("convert", path, out, "--num-heads", "5").error() == (
        f'mha: {path}: layout "gpt-neox": expected num_heads that divides d_model {WIDTH}, found 5'
    )
    config = tmp_path / "config.json"
    config.write_text('{"num_attention_heads": %d}' % HEADS)
    run = mha("convert", path, out)
    assert f", num_heads {HEADS} (config.json)\n" in run.report()
    assert_same_bits(load(out), lesson)
    assert metadata(out)["num_heads"] == str(HEADS)
    # What is said explicitly counts, whatever the config tells.
    config.write_text('{"num_attention_heads": 2}')
    assert mha("convert", path, out, "--num-heads", HEADS_TEXT, "--force").status == 0
    assert_same_bits(load(out), lesson)


def test_num_heads_beside_a_link(mha, model, tmp_path):
    # As in a cache whose files are links into a heap of blobs.
    path = model(pack("gpt-neox", lesson_weights()))
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot" / "model.safetensors"
    link.symlink_to(path)
    (tmp_path / "snapshot" / "config.json").write_text('{"num_attention_heads": %d}' % HEADS)
    assert "(config.json)" in mha("convert", link, tmp_path / "out.pt").report()


BROKEN = {
    "{": "expected valid JSON, found something else at its byte 2",
    "[1]": "expected a JSON object, found an array",
    "[" * 100_000: "expected a JSON object, found an array",
    '{"a":' * 100_000: "expected JSON nested at most 64 deep, found deeper",
    '{"n_head": "four"}': 'n_head: expected a positive integer, found "four"',
    '{"n_head": 0}': "n_head: expected a positive integer, found 0",
    '{"num_heads": [2, 4]}': "num_heads: expected a positive integer, found an array",
    '{"n_heads": 3}': f"n_heads: expected a divisor of d_model {WIDTH}, found 3",
    '{"encoder_attention_heads": 4, "decoder_attention_heads": 2}': (
        "expected one number of heads, found encoder_attention_heads 4 and decoder_attention_heads 2"
    ),
    '{"num_attention_heads": 4, "hidden_size": 32}': (
        f"expected the config of a model of d_model {WIDTH}, found only num_attention_heads, of models of other or "
        "unknown widths"
    ),
    '{"num_attention_heads": 4, "head_dim": 8}': f"head_dim: expected num_heads * d_k to be d_model {WIDTH}, found 4 * 8",
    " " * (5 << 20): "expected a config of at most 4194304 bytes, found more",
}


@pytest.mark.parametrize("text", BROKEN, ids=[f"{i}" for i in range(len(BROKEN))])
def test_a_config_of_no_use(mha, model, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    path = model(under("a", pack("gpt-neox", lesson_weights())) | under("b", pack("bert", lesson_weights())))
    out = tmp_path / "out.safetensors"
    problem = f"{tmp_path}/config.json: {BROKEN[text]}"
    assert mha("convert", path, out, "--prefix", "a").error() == f"mha: {problem}; give --num-heads"
    assert not out.exists()
    # Where it is not needed it is only told.
    run = mha("convert", path, out, "--prefix", "b")
    assert run.status == 0 and f", num_heads unknown ({problem})\n" in run.report()
    assert "num_heads" not in metadata(out)


# Names kept


@pytest.fixture
def mixed() -> dict[str, torch.Tensor]:
    return {
        "a.w": torch.randn(2, 3, dtype=torch.bfloat16),
        "a.b.flag": torch.tensor([True, False]),
        "a.scalar": torch.tensor(7),
        "ab.w": torch.ones(0, 4),
        "\u00e9 \n": torch.randn(3),
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_are_kept(mha, model, tmp_path, mixed, suffix):
    out = tmp_path / f"out{suffix}"
    run = mha("convert", model(mixed, {"note": "x"}), out, "--keep-names")
    assert run.status == 0 and "\nkept     5 of 5 tensors, names unchanged\n" in run.report()
    assert_same_bits(load(out), mixed)
    if suffix.lower() == ".safetensors":
        assert metadata(out) == {"note": "x", "format": "pt"}


@pytest.mark.parametrize("prefix", ["a", "a."])
def test_names_are_kept_under_a_prefix(mha, model, tmp_path, mixed, prefix):
    out = tmp_path / "out.safetensors"
    run = mha("convert", model(mixed), out, "--keep-names", "--prefix", prefix)
    assert "\nkept     3 of 5 tensors, names unchanged\n" in run.report()
    assert_same_bits(load(out), {name: tensor for name, tensor in mixed.items() if name.startswith("a.")})


def test_names_kept_of_a_checkpoint(mha, tmp_path, mixed):
    torch.save({"model": mixed, "epoch": 3, "names": ["x"]}, tmp_path / "checkpoint.pt")
    out = tmp_path / "out.safetensors"
    assert mha("convert", tmp_path / "checkpoint.pt", out, "--keep-names").status == 0
    assert_same_bits(load(out), under("model", mixed))


def test_names_under_a_prefix_that_is_not_there(mha, model, tmp_path, mixed):
    path = model(mixed)
    assert mha("convert", path, tmp_path / "out.pt", "--keep-names", "--prefix", "b").error() == (
        f'mha: {path}: expected names under the prefix "b", found none among 5 tensors'
    )


def test_hostile_names(mha, model, tmp_path):
    hostile = "x\n\x1b[31m\u202e\x9b2J\r"
    lesson = lesson_weights()
    path = model(under(hostile, pack("bert", lesson) | {"more" + hostile: torch.ones(1)}))
    run = mha("convert", path, tmp_path / "out.safetensors")
    assert run.status == 0 and "\u202e" not in run.report()
    assert_same_bits(load(tmp_path / "out.safetensors"), lesson)
    assert metadata(tmp_path / "out.safetensors")["source_prefix"] == hostile


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
    assert set(load(out)) == set(NAMES)


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
    path = model(pack("bert", {name: torch.ones(64, 64) for name in NAMES if "weight" in name} | {
        name: torch.ones(64) for name in NAMES if "bias" in name
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

"""`mha convert`: one attention block by the lesson's names, or another format."""

import json
import math

import pytest
import torch
from attention_layouts import HEADS, LAYOUTS, WIDTH, compute, lesson_computes, lesson_weights, pack
from weights_files import LESSON_NAMES, SUFFIXES, assert_same_bits, load, metadata, names, under

# Layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_the_same_afterwards(mha, model, tmp_path, layout):
    torch.manual_seed(3)
    lesson = lesson_weights(biased=layout != "t5")
    packed = pack(layout, lesson)
    out = tmp_path / "out.safetensors"
    run = mha("convert", model(under("layers.1.attn", packed)), out, "--num-heads", str(HEADS))
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
        assert list(load(out)) == LESSON_NAMES
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

"""`mha convert`: where the number of heads comes from."""

import pytest
from attention_layouts import HEADS, WIDTH, lesson_weights, pack
from weights_files import assert_same_bits, load, metadata, under

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
    assert mha("convert", path, out, "--num-heads", str(HEADS), "--force").status == 0
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

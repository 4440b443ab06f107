"""Every layout that transformers and torch have, block by block against the models' own attention.

Small models with random weights, saved as people save them; each block is found by `auto` and its prefix.
What a model does more than the lesson is made to do nothing: rotary embedding by no angle, no relative bias.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from model_attention import Parts, randomise, record, write_safetensors

transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")

D_MODEL, HEADS, LENGTH = 24, 3, 7  # d_k 8: T5's sqrt(d_k) is not exact

TOKENS = torch.arange(3 * LENGTH).view(3, LENGTH) * 5 % 89 + 3
KEPT = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [1]])).long()
TEXT = {"input_ids": TOKENS, "attention_mask": KEPT}
WITH_DECODER = TEXT | {"decoder_input_ids": TOKENS[:, :5], "decoder_attention_mask": KEPT[:, :5]}
PICTURE = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8).sin()}

BERT = Parts("self", "self.query", "self.key", "self.value", "output.dense")
DISTILBERT = Parts("", "q_lin", "k_lin", "v_lin", "out_lin")
HF_VIT = Parts("attention", "attention.query", "attention.key", "attention.value", "output.dense")
GPT2 = Parts("", "c_attn", "c_attn", "c_attn", "c_proj")
LLAMA = Parts("", "q_proj", "k_proj", "v_proj", "o_proj")
BART = Parts("", "q_proj", "k_proj", "v_proj", "out_proj")
T5 = Parts("", "q", "k", "v", "o")
GPT_NEOX = Parts("", "query_key_value", "query_key_value", "query_key_value", "dense")


def _as_it_is(arguments: dict[str, Any]) -> None:
    """Nothing to take away."""


def _no_rotation(arguments: dict[str, Any]) -> None:
    cos, sin = arguments["position_embeddings"]
    arguments["position_embeddings"] = (torch.ones_like(cos), torch.zeros_like(sin))


def _no_alibi(arguments: dict[str, Any]) -> None:
    arguments["alibi"] = torch.zeros_like(arguments["alibi"])


@dataclass
class Model:
    """A family: its class, the settings of a small one, and which of its modules are attention blocks."""

    cls: str
    attention: tuple[str, ...]
    parts: Parts
    layout: str
    blocks: int
    settings: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=lambda: TEXT)
    change: Callable[[dict[str, Any]], None] = _as_it_is
    nested: dict[str, dict[str, Any]] = field(default_factory=dict)
    masked: int | None = None  # blocks that are given a mask; all when not said

    def make(self) -> torch.nn.Module:
        cls = getattr(transformers, self.cls)
        config = cls.config_class(**self.settings, **self.nested)
        config._attn_implementation = "eager"
        config.use_cache = False
        model = cls(config)
        randomise(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "relative_attention_bias" in name:
                    parameter.zero_()
        return model.eval()


SIZES = {
    "hidden_size": D_MODEL,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
}
WORDS = {
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PATCHES = {"image_size": 8, "patch_size": 4}
SEQ2SEQ = {
    "d_model": D_MODEL,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    **WORDS,
}
ENCODED = torch.linspace(-3, 3, 3 * LENGTH * D_MODEL).view(3, LENGTH, D_MODEL).sin()

MODELS = {
    "BERT": Model("BertForMaskedLM", ("BertAttention",), BERT, "bert", 2, SIZES | WORDS),
    "BERT decoder": Model(
        "BertLMHeadModel",
        ("BertAttention",),
        BERT,
        "bert",
        4,
        SIZES | WORDS | {"is_decoder": True, "add_cross_attention": True},
        TEXT | {"encoder_hidden_states": ENCODED, "encoder_attention_mask": KEPT.flip(0)},
    ),
    "RoBERTa": Model("RobertaModel", ("RobertaAttention",), BERT, "bert", 2, SIZES | WORDS),
    "ELECTRA": Model(
        "ElectraForPreTraining",
        ("ElectraAttention",),
        BERT,
        "bert",
        2,
        SIZES | WORDS | {"embedding_size": 16},
    ),
    "DistilBERT": Model(
        "DistilBertModel",
        ("MultiHeadSelfAttention",),
        DISTILBERT,
        "distilbert",
        2,
        {"dim": D_MODEL, "n_heads": HEADS, "n_layers": 2, "hidden_dim": 32, **WORDS},
    ),
    "ViT": Model(
        "ViTModel", ("ViTAttention",), HF_VIT, "hf-vit", 2, SIZES | PATCHES, PICTURE, masked=0
    ),
    "GPT-2": Model(
        "GPT2LMHeadModel",
        ("GPT2Attention",),
        GPT2,
        "gpt2",
        2,
        {"n_embd": D_MODEL, "n_head": HEADS, "n_layer": 2, "n_positions": 32, "vocab_size": 100},
    ),
    "LLaMA": Model(
        "LlamaForCausalLM", ("LlamaAttention",), LLAMA, "llama", 2, SIZES | WORDS, change=_no_rotation
    ),
    "Mistral": Model(
        "MistralModel",
        ("MistralAttention",),
        LLAMA,
        "llama",
        2,
        SIZES | WORDS | {"num_key_value_heads": HEADS},
        change=_no_rotation,
    ),
    "Qwen2": Model(
        "Qwen2ForCausalLM",
        ("Qwen2Attention",),
        LLAMA,
        "llama",
        2,
        SIZES | WORDS | {"num_key_value_heads": HEADS},
        change=_no_rotation,
    ),
    "BART": Model(
        "BartForConditionalGeneration",
        ("BartAttention",),
        BART,
        "bart",
        3,
        SEQ2SEQ | {"decoder_start_token_id": 2, "forced_eos_token_id": 2},
        WITH_DECODER,
    ),
    "Whisper": Model(
        "WhisperForConditionalGeneration",
        ("WhisperAttention",),
        BART,
        "bart",
        3,
        SEQ2SEQ
        | {
            "num_mel_bins": 4,
            "max_source_positions": LENGTH,
            "max_target_positions": 16,
            "decoder_start_token_id": 1,
            "begin_suppress_tokens": None,
        },
        {
            "input_features": torch.linspace(-3, 3, 3 * 4 * 2 * LENGTH).view(3, 4, 2 * LENGTH).sin(),
            "decoder_input_ids": TOKENS[:, :5],
        },
        masked=1,
    ),
    "CLIP": Model(
        "CLIPModel",
        ("CLIPAttention",),
        BART,
        "bart",
        4,
        {"projection_dim": 8},
        {"input_ids": TOKENS[:2], "attention_mask": KEPT[:2], **PICTURE},
        nested={"text_config": SIZES | WORDS, "vision_config": SIZES | PATCHES},
        masked=2,
    ),
    "OPT": Model(
        "OPTForCausalLM",
        ("OPTAttention",),
        BART,
        "bart",
        2,
        SIZES | WORDS | {"ffn_dim": 32, "word_embed_proj_dim": D_MODEL},
    ),
    "T5": Model(
        "T5ForConditionalGeneration",
        ("T5Attention",),
        T5,
        "t5",
        6,
        {
            "d_model": D_MODEL,
            "d_kv": D_MODEL // HEADS,
            "d_ff": 32,
            "num_heads": HEADS,
            "num_layers": 2,
            "vocab_size": 100,
        },
        WITH_DECODER,
    ),
    "MPNet": Model(
        "MPNetModel", ("MPNetSelfAttention",), T5, "mpnet", 2, SIZES | WORDS
    ),
    "GPT-NeoX": Model(
        "GPTNeoXForCausalLM",
        ("GPTNeoXAttention",),
        GPT_NEOX,
        "gpt-neox",
        2,
        SIZES | WORDS,
        change=_no_rotation,
    ),
    "BLOOM": Model(
        "BloomForCausalLM",
        ("BloomAttention",),
        GPT_NEOX,
        "gpt-neox",
        2,
        {"hidden_size": D_MODEL, "n_head": HEADS, "n_layer": 2, "vocab_size": 100},
        change=_no_alibi,
    ),
}


def _make(family: Model) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return family.make()


@pytest.mark.parametrize("name", MODELS)
def test_model(verify_blocks, reported, tmp_path, name):
    family = MODELS[name]
    model = _make(family)
    prefixes = [
        prefix for prefix, module in model.named_modules() if type(module).__name__ in family.attention
    ]
    assert len(prefixes) == family.blocks
    computed = record(
        model,
        lambda model: model(**family.inputs, output_attentions=True),
        family.parts,
        prefixes,
        HEADS,
        family.change,
    )
    masks = [block.inputs["mask"] for block in computed.values() if "mask" in block.inputs]
    assert len([mask for mask in masks if not mask.all()]) == (
        family.blocks if family.masked is None else family.masked
    )
    for block in computed.values():
        assert block.attention_weights.max() > 0.3  # far from uniform
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    torch.save(model, tmp_path / "model.pt")
    for file in ("model.safetensors", "pytorch_model.bin"):
        verify_blocks(f"{name} {file[-4:]}", computed, tmp_path / file, tmp_path, layout=family.layout)
    status, _ = reported("diff", tmp_path / "model.pt", tmp_path / "pytorch_model.bin")
    assert status == 0


@pytest.fixture
def case(tmp_path) -> Path:
    """A case that says nothing but d_model."""
    metadata = {"format": "mha.reference/1", "module": "MultiHeadAttention", "d_model": str(D_MODEL)}
    metadata |= {"num_heads": str(HEADS), "dropout": "0", "mode": "eval", "dtype": "float32"}
    tensors = {"inputs/query": torch.ones(1, 1, D_MODEL), "outputs/output": torch.ones(1, 1, D_MODEL)}
    write_safetensors(tmp_path / "case.safetensors", tensors, metadata, overwrite=True)
    return tmp_path / "case.safetensors"


OTHERS = {
    "grouped heads": (
        Model("MistralModel", (), LLAMA, "", 0, SIZES | WORDS | {"num_key_value_heads": 1}),
        "layers.0.self_attn",
        "grouped key/value heads (3 query heads share a key and a value head",
    ),
    "wide heads": (
        Model("LlamaModel", (), LLAMA, "", 0, SIZES | WORDS | {"head_dim": 16}),
        "layers.0.self_attn",
        "heads of 48 features in all for a d_model of 24",
    ),
    "T5 of narrow heads": (
        Model("T5EncoderModel", (), T5, "", 0, {"d_model": D_MODEL, "d_kv": 4, "num_heads": HEADS}),
        "encoder.block.0.layer.0.SelfAttention",
        "heads of 12 features in all for a d_model of 24",
    ),
    "GPT-2's cross attention": (
        Model(
            "GPT2Model", (), GPT2, "", 0, {"n_embd": D_MODEL, "n_head": HEADS, "add_cross_attention": True}
        ),
        "h.0.crossattention",
        "a packed weight of two parts (key and value of a cross-attention",
    ),
    "BigCode's one key head": (
        Model("GPTBigCodeModel", (), GPT2, "", 0, {"n_embd": D_MODEL, "n_head": HEADS}),
        "h.0.attn",
        "grouped key/value heads (query has 24 rows, key and value have 8 each",
    ),
    "VideoMAE's biases": (
        Model("VideoMAEModel", (), HF_VIT, "", 0, SIZES | PATCHES | {"num_frames": 2}),
        "encoder.layer.0.attention",
        "biases kept apart from their layers",
    ),
    "Japanese GPT-NeoX's bias": (
        Model("GPTNeoXJapaneseModel", (), GPT_NEOX, "", 0, SIZES | WORDS),
        "layers.1.attention",
        "biases kept apart from their layers",
    ),
    "ALBERT": (
        Model("AlbertModel", (), BERT, "", 0, SIZES | WORDS | {"embedding_size": 8}),
        "encoder.albert_layer_groups.0.albert_layers.0.attention",
        "found none in any layout",
    ),
    "DeBERTa": (
        Model("DebertaModel", (), BERT, "", 0, SIZES | WORDS),
        "encoder.layer.0.attention",
        "found none in any layout",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_the_lesson_is_refused(refused, case, tmp_path, name):
    family, prefix, expected = OTHERS[name]
    torch.save(_make(family).state_dict(), tmp_path / "pytorch_model.bin")
    options = ("--weights", tmp_path / "pytorch_model.bin", "--prefix", prefix, "--layout", "auto")
    assert expected in refused("verify", case, *options)

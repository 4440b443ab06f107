"""Layouts of modules that are not in transformers: torch's own, and small ones packed as those are.

What the weights mean is in these few lines: how the heads are taken out of the projections.
"""

import math
from typing import Any

import pytest
import torch
from torch import nn

from model_attention import Computed, computed_by, randomise, write_safetensors

D_MODEL, HEADS, LENGTH = 24, 3, 7
D_K = D_MODEL // HEADS
KEPT = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [1]])
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Attention between `heads`, which takes (B, H, L, d_k) from the input, and the layer called `last`."""

    last: str

    def heads(self, x: torch.Tensor) -> Heads:
        raise NotImplementedError

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self.heads(x)
        scores = query @ key.transpose(-2, -1) / math.sqrt(D_K)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        context = (weights @ value).permute(0, 2, 1, 3).reshape(x.shape)
        return self.get_submodule(self.last)(context), weights


class Separate(Attention):
    """A layer for each of query, key, value and output, by any names."""

    def __init__(self, names: str, *, bias: bool, output_bias: bool | None = None) -> None:
        super().__init__()
        *self.first, self.last = names.split()
        for name in self.first:
            self._add(name, bias)
        self._add(self.last, bias if output_bias is None else output_bias)

    def _add(self, path: str, bias: bool) -> None:
        *parents, name = path.split(".")
        place: nn.Module = self
        for parent in parents:
            if not hasattr(place, parent):
                place.add_module(parent, nn.Module())
            place = getattr(place, parent)
        place.add_module(name, nn.Linear(D_MODEL, D_MODEL, bias=bias))

    def heads(self, x: torch.Tensor) -> Heads:
        query, key, value = (
            self.get_submodule(name)(x).unflatten(-1, (HEADS, D_K)).transpose(1, 2) for name in self.first
        )
        return query, key, value


class Packed(Attention):
    """One layer for query, key and value."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.first, self.last = names.split()
        self.add_module(self.first, nn.Linear(D_MODEL, 3 * D_MODEL))
        self.add_module(self.last, nn.Linear(D_MODEL, D_MODEL))

    def heads(self, x: torch.Tensor) -> Heads:
        query, key, value = self.get_submodule(self.first)(x).split(D_MODEL, dim=-1)
        return tuple(part.unflatten(-1, (HEADS, D_K)).transpose(1, 2) for part in (query, key, value))


class WithCausalBuffer(Packed):
    """nanoGPT keeps its causal mask as a buffer called bias."""

    def __init__(self, names: str) -> None:
        super().__init__(names)
        self.register_buffer("bias", CAUSAL.float().view(1, 1, LENGTH, LENGTH))


class HeadByHead(Packed):
    """One layer for all, the three parts of a head beside each other."""

    def heads(self, x: torch.Tensor) -> Heads:
        parts = self.get_submodule(self.first)(x).unflatten(-1, (HEADS, 3 * D_K)).transpose(1, 2)
        query, key, value = parts.chunk(3, dim=-1)
        return query, key, value


WRITTEN = {
    "annotated-transformer": lambda: Separate("linears.0 linears.1 linears.2 linears.3", bias=True),
    "timm": lambda: Packed("qkv proj"),
    "nanogpt": lambda: WithCausalBuffer("c_attn c_proj"),
    "meta-llama": lambda: Separate("wq wk wv wo", bias=False),
    "torchtune": lambda: Separate("q_proj k_proj v_proj output_proj", bias=False),
    "x-transformers": lambda: Separate("to_q to_k to_v to_out", bias=False),
    "diffusers": lambda: Separate("to_q to_k to_v to_out.0", bias=False, output_bias=True),
    "qkv-layer": lambda: HeadByHead("qkv_layer linear_layer"),
}


def _input(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(3, length, D_MODEL, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("layout", WRITTEN)
def test_written_module(verify_blocks, tmp_path, layout):
    layer = nn.ModuleDict({"attn": WRITTEN[layout](), "norm": nn.LayerNorm(D_MODEL)})
    model = nn.ModuleDict({"encoder": layer})
    randomise(model)
    x, mask = _input(), KEPT[:, None, None, :] & CAUSAL
    attention = layer["attn"]
    computed = computed_by(
        lambda dtype: attention.to(dtype)(x.to(dtype), mask), {"query": x, "mask": mask}, HEADS
    )
    attention.float()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    verify_blocks(layout, {"encoder.attn": computed}, tmp_path / "model.pt", tmp_path, layout=layout)


def _multihead(module: nn.MultiheadAttention, inputs: dict[str, torch.Tensor]) -> Computed:
    """What torch's own module computes; it wants True where attention is not allowed."""
    key = inputs.get("key", inputs["query"])
    blocked = ~inputs["mask"].expand(3, HEADS, inputs["query"].shape[1], key.shape[1])

    def run(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        module.to(dtype)
        return module(
            inputs["query"].to(dtype),
            key.to(dtype),
            inputs.get("value", key).to(dtype),
            attn_mask=blocked.flatten(0, 1),
            need_weights=True,
            average_attn_weights=False,
        )

    computed = computed_by(run, inputs, HEADS)
    module.float()
    return computed


def test_torch_transformer(verify_blocks, tmp_path):
    model = nn.Transformer(D_MODEL, HEADS, 2, 1, 32, batch_first=True).eval()
    randomise(model)
    x, memory = _input(5), _input(LENGTH).flip(0)
    padding, causal = KEPT[:, None, None, :], CAUSAL[:5, :5][None, None]
    inputs = {
        "encoder.layers.0.self_attn": {"query": memory, "mask": padding},
        "encoder.layers.1.self_attn": {"query": memory, "mask": padding},
        "decoder.layers.0.self_attn": {"query": x, "mask": causal},
        "decoder.layers.0.multihead_attn": {"query": x, "key": memory, "mask": padding},
    }
    computed = {prefix: _multihead(model.get_submodule(prefix), each) for prefix, each in inputs.items()}
    torch.save(model.state_dict(), tmp_path / "model.pt")
    verify_blocks("torch", computed, tmp_path / "model.pt", tmp_path, layout="pytorch")


def test_torch_attention_of_three_inputs_saved_alone(verify_blocks, tmp_path):
    module = nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True)
    randomise(module)
    inputs: dict[str, Any] = {"query": _input(5), "key": _input(LENGTH), "value": _input(LENGTH).flip(1)}
    computed = _multihead(module, inputs | {"mask": KEPT[:, None, None, :]})
    torch.save(module, tmp_path / "module.pt")
    verify_blocks("torch", {"": computed}, tmp_path / "module.pt", tmp_path, layout="pytorch")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kdim": 4}, "keys and values of other widths than the query"),
        ({"kdim": 48, "vdim": 36}, "keys and values of other widths than the query"),
        ({"add_bias_kv": True}, "a learned key and value added to every sequence (add_bias_kv)"),
    ],
)
def test_torch_attention_that_cannot_be_the_lesson(refused, tmp_path, settings, expected):
    module = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True, **settings)
    torch.save(module.state_dict(), tmp_path / "module.pt")
    metadata = {"format": "mha.reference/1", "module": "MultiHeadAttention", "d_model": str(D_MODEL)}
    metadata |= {"num_heads": str(HEADS), "dropout": "0", "mode": "eval", "dtype": "float32"}
    tensors = {"inputs/query": torch.ones(1, 1, D_MODEL), "outputs/output": torch.ones(1, 1, D_MODEL)}
    write_safetensors(tmp_path / "case.safetensors", tensors, metadata, overwrite=True)
    case = tmp_path / "case.safetensors"
    assert expected in refused("verify", case, "--weights", tmp_path / "module.pt", "--layout", "auto")

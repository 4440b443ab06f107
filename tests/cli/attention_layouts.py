"""One attention in the layouts of other modules, each with the computation of those modules."""

import math

import torch
import torch.nn.functional as F

WIDTH = 16
HEADS = 4
LAYERS = ("W_q", "W_k", "W_v", "W_o")

State = dict[str, torch.Tensor]

# The names of query, key, value and output.
SEPARATE = {
    "lesson": LAYERS,
    "annotated-transformer": ("linears.0", "linears.1", "linears.2", "linears.3"),
    "bert": ("self.query", "self.key", "self.value", "output.dense"),
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin"),
    "hf-vit": ("attention.query", "attention.key", "attention.value", "output.dense"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "meta-llama": ("wq", "wk", "wv", "wo"),
    "torchtune": ("q_proj", "k_proj", "v_proj", "output_proj"),
    "bart": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "t5": ("q", "k", "v", "o"),
    "mpnet": ("q", "k", "v", "o"),
    "x-transformers": ("to_q", "to_k", "to_v", "to_out"),
    "diffusers": ("to_q", "to_k", "to_v", "to_out.0"),
}
# The names of query, key and value together, and of the output.
STACKED = {"timm": ("qkv", "proj"), "gpt2": ("c_attn", "c_proj"), "nanogpt": ("c_attn", "c_proj")}
HEAD_BY_HEAD = {"gpt-neox": ("query_key_value", "dense"), "qkv-layer": ("qkv_layer", "linear_layer")}
LAYOUTS = [*SEPARATE, *STACKED, *HEAD_BY_HEAD, "pytorch", "pytorch-separate"]


def lesson_weights(dtype: torch.dtype = torch.float64, *, biased: bool = True) -> State:
    weights = {f"{layer}.weight": torch.randn(WIDTH, WIDTH).to(dtype) for layer in LAYERS}
    return weights | {f"{layer}.bias": (torch.randn if biased else torch.zeros)(WIDTH).to(dtype) for layer in LAYERS}


def pack(layout: str, lesson: State) -> State:
    """The lesson's weights as a module of that layout saves them."""
    parts = {kind: [lesson[f"{layer}.{kind}"] for layer in LAYERS] for kind in ("weight", "bias")}
    if layout in SEPARATE:
        names = SEPARATE[layout]
        packed = {f"{name}.{kind}": part for kind in parts for name, part in zip(names, parts[kind])}
        if layout == "t5":  # Its query holds what the lesson divides by later; it has no biases.
            packed = {f"{name}.weight": packed[f"{name}.weight"] for name in names}
            packed["q.weight"] = packed["q.weight"] / math.sqrt(WIDTH // HEADS)
        return packed
    if layout in STACKED:
        together, output = STACKED[layout]
        packed = {}
        for kind, (*qkv, out) in parts.items():
            packed |= {f"{together}.{kind}": torch.cat(qkv), f"{output}.{kind}": out}
        if layout == "gpt2":
            packed = {name: tensor.t() if tensor.dim() == 2 else tensor for name, tensor in packed.items()}
        return packed
    if layout in HEAD_BY_HEAD:
        together, output = HEAD_BY_HEAD[layout]
        packed = {}
        for kind, (*qkv, out) in parts.items():
            heads = torch.stack([part.unflatten(0, (HEADS, -1)) for part in qkv], dim=1)
            packed |= {f"{together}.{kind}": heads.flatten(0, 2), f"{output}.{kind}": out}
        return packed
    *qkv, out = parts["weight"]
    packed = {"in_proj_bias": torch.cat(parts["bias"][:3]), "out_proj.weight": out, "out_proj.bias": parts["bias"][3]}
    if layout == "pytorch":
        return packed | {"in_proj_weight": torch.cat(qkv)}
    return packed | dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), qkv))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """(batch, length, width) each: heads apart, attention, heads together."""
    heads = [tensor.unflatten(-1, (HEADS, -1)).transpose(1, 2) for tensor in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, scale=scale).transpose(1, 2).flatten(2)


def compute(layout: str, packed: State, x: torch.Tensor) -> torch.Tensor:
    """What a module of that layout computes from its own weights: self-attention of (batch, length, width)."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, packed[f"{name}.weight"], packed.get(f"{name}.bias"))

    if layout in SEPARATE:
        query, key, value, output = SEPARATE[layout]
        scale = 1.0 if layout == "t5" else None
        return linear(output, _attend(linear(query, x), linear(key, x), linear(value, x), scale))
    if layout == "gpt2":
        qkv = x @ packed["c_attn.weight"] + packed["c_attn.bias"]
        return _attend(*qkv.split(WIDTH, dim=2)) @ packed["c_proj.weight"] + packed["c_proj.bias"]
    if layout in STACKED:
        together, output = STACKED[layout]
        return linear(output, _attend(*linear(together, x).split(WIDTH, dim=2)))
    if layout in HEAD_BY_HEAD:
        together, output = HEAD_BY_HEAD[layout]
        q, k, v = linear(together, x).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, dim=-1)
        return linear(output, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    x = x.transpose(0, 1)
    output, _ = F.multi_head_attention_forward(
        *(x, x, x, WIDTH, HEADS, packed.get("in_proj_weight"), packed["in_proj_bias"], None, None, False, 0.0),
        packed["out_proj.weight"],
        packed["out_proj.bias"],
        need_weights=False,
        use_separate_proj_weight=layout == "pytorch-separate",
        q_proj_weight=packed.get("q_proj_weight"),
        k_proj_weight=packed.get("k_proj_weight"),
        v_proj_weight=packed.get("v_proj_weight"),
    )
    return output.transpose(0, 1)


def lesson_computes(weights: State, x: torch.Tensor) -> torch.Tensor:
    """The lesson's own module with these weights."""
    from lesson import MultiHeadAttention

    module = MultiHeadAttention(WIDTH, HEADS).to(x.dtype).eval()
    module.load_state_dict(weights)
    return module(x, x, x)

"""Describes reference cases and makes their modules and inputs: everything follows from the description."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lesson import MultiHeadAttention

# Inputs draw from other random streams than the weights and the dropout of the same seed.
_INPUT_STREAM = 1_000_003
_WEIGHT_STREAM = 2_000_003


@dataclass(frozen=True)
class Case:
    """One reference case of the lesson's module. `name` says what differs from the plainest case."""

    dtype: str = "float32"
    mode: str = "eval"
    dropout: float = 0.1
    # self: one tensor thrice. cross: key is value. distinct: three tensors. shared_qk: query is key.
    attention: str = "self"
    batch: int = 2
    # Two vectors of 16 and one over.
    query_len: int = 33
    key_len: int = 33
    d_model: int = 48
    num_heads: int = 3
    mask: str = "none"
    mask_shape: str = "ls"
    mask_dtype: str = "bool"
    mask_layout: str = "contiguous"
    layout: str = "contiguous"
    # Which input has that layout: all, query, key or value.
    layout_of: str = "all"
    values: str = "normal"
    weights: str = "random"
    threads: int = 1
    grads: bool = True
    device: str = "cpu"
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name without suffix."""
        mask = f"mask_{self.mask}_{self.mask_shape}" if self.mask != "none" else ""
        mask += f"_{self.mask_dtype}" if self.mask_dtype != "bool" else ""
        mask += f"_{self.mask_layout}" if self.mask_layout != "contiguous" else ""
        parts = [
            self.dtype,
            self.mode + (f"_p{self.dropout:g}" if self.mode == "train" else ""),
            self.attention,
            mask,
            f"{self.layout_of}_{self.layout}" if self.layout != "contiguous" else "",
            f"values_{self.values}" if self.values != "normal" else "",
            f"weights_{self.weights}" if self.weights != "random" else "",
            f"b{self.batch}",
            f"l{self.query_len}",
            f"s{self.key_len}" if self.key_len != self.query_len else "",
            f"d{self.d_model}",
            f"h{self.num_heads}",
            f"t{self.threads}" if self.threads != 1 else "",
            "nograd" if not self.grads else "",
            f"seed{self.seed}" if self.seed else "",
        ]
        return "-".join(part for part in parts if part)

    @property
    def init_seed(self) -> int | None:
        """The seed that a freshly made module of these weights was made after, if it was."""
        return self.seed if self.weights == "init" else None


def fresh_lesson_module(
    d_model: int, num_heads: int, dropout: float, seed: int, dtype: torch.dtype, device: torch.device | str
) -> MultiHeadAttention:
    """The module as made after `torch.manual_seed(seed)`: in float32 on the CPU, then converted."""
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            module = MultiHeadAttention(d_model, num_heads, dropout)
    finally:
        torch.set_default_dtype(default)
    return module.to(device=device, dtype=dtype)


def make_module(case: Case) -> MultiHeadAttention:
    """The module of `case`, its weights set."""
    dtype = getattr(torch, case.dtype)
    module = fresh_lesson_module(case.d_model, case.num_heads, case.dropout, case.seed, dtype, case.device)
    if case.weights == "init":
        return module
    generator = torch.Generator().manual_seed(case.seed + _WEIGHT_STREAM)
    tiny = {torch.float64: 1e-309, torch.float16: 1e-6}.get(dtype, 1e-39)
    scale = {"large": 1e3, "subnormal": tiny, "zeros": 0.0}.get(case.weights, 1.0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # Projections that keep the variance: the attention is then neither uniform nor one-hot.
            spread = case.d_model**-0.5 if name.endswith("weight") else 0.1
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread * scale
            if case.weights == "identity":
                values = torch.eye(case.d_model) if name.endswith("weight") else torch.zeros(case.d_model)
            parameter.copy_(values)
        if case.weights == "nan":
            module.W_o.weight[1, 1] = float("nan")
        elif case.weights == "inf":
            module.W_v.bias[0] = float("inf")
        elif case.weights == "negative_zeros":
            module.W_v.weight.fill_(-0.0)
            module.W_o.bias.fill_(-0.0)
    return module


def make_inputs(case: Case) -> dict[str, torch.Tensor]:
    """What the module of `case` is called with; aliases are the same object, or absent."""
    generator = torch.Generator().manual_seed(case.seed + _INPUT_STREAM)
    stored = {
        "self": {"query": case.query_len},
        "cross": {"query": case.query_len, "key": case.key_len},
        "distinct": {"query": case.query_len, "key": case.key_len, "value": case.key_len},
        "shared_qk": {"query": case.query_len, "value": case.key_len},
    }[case.attention]
    inputs = {}
    for name, length in stored.items():
        tensor = torch.randn(case.batch, length, case.d_model, generator=generator, dtype=torch.float64)
        tensor = _with_values(name, tensor, case).to(getattr(torch, case.dtype))
        if case.layout_of in ("all", name):
            tensor = lay_out(tensor, case.layout)
        inputs[name] = tensor
    if case.mask != "none":
        inputs["mask"] = make_mask(case, generator)
    if case.device != "cpu":
        inputs = {name: tensor.to(case.device) for name, tensor in inputs.items()}
    return inputs


_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "neginf": float("-inf")}

# Factors on standard normal numbers.
_SCALES = {
    "zeros": 0.0,
    "negative_zeros": -0.0,
    "large": 50.0,  # Sharp attention; in float16 the scores stay below its largest number.
    "overflow": 70.0,  # In float16 a few scores become infinite.
    "beyond_fill": 1e6,  # Scores below the -1e9 that masked ones get.
    "huge": 5e18,  # In float32 and bfloat16 a few scores become infinite.
}


def _with_values(name: str, tensor: torch.Tensor, case: Case) -> torch.Tensor:
    if case.values == "normal":
        return tensor
    if case.values == "subnormal":
        return tensor * {"float64": 1e-309, "float16": 1e-6}.get(case.dtype, 1e-39)
    if case.values == "equal_rows":
        return tensor[:, :1].expand_as(tensor).clone()
    if case.values in _SCALES:
        scale = _SCALES[case.values]
        return tensor * scale if scale else torch.full_like(tensor, scale)
    # `nan_query`: one element of it; `nan_last_key`: one at the last position, which padding masks.
    special, _, where = case.values.partition("_")
    if where.removeprefix("last_") == name:
        tensor[0, -1 if where.startswith("last_") else 1, 2] = _SPECIAL[special]
    return tensor


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """`tensor` (batch, length, features) in another memory layout; expanded ones repeat their first slice."""
    batch, length, features = tensor.shape

    def inside(size: tuple[int, ...], index: tuple) -> torch.Tensor:
        # What lies around the slice must never be read: poison it.
        whole = torch.full(size, float("nan"), dtype=tensor.dtype)
        whole[index] = tensor
        return whole[index]

    every_second = slice(None, None, 2)
    layouts: dict[str, Callable[[], torch.Tensor]] = {
        "contiguous": lambda: tensor,
        "length_first": lambda: tensor.transpose(0, 1).contiguous().transpose(0, 1),
        "features_first": lambda: tensor.transpose(1, 2).contiguous().transpose(1, 2),
        "every_second_row": lambda: inside((batch, 2 * length, features), (slice(None), every_second)),
        "every_second_feature": lambda: inside((batch, length, 2 * features), (..., every_second)),
        "padded": lambda: inside(
            (batch, length + 3, features + 5), (slice(None), slice(1, length + 1), slice(0, features))
        ),
        "expanded_batch": lambda: tensor[:1].expand_as(tensor),
        "expanded_length": lambda: tensor[:, :1].expand_as(tensor),
        "expanded_features": lambda: tensor[..., :1].expand_as(tensor),
        "expanded_all": lambda: tensor[:1, :1, :1].expand_as(tensor),
    }
    return layouts[layout]()


def make_mask(case: Case, generator: torch.Generator) -> torch.Tensor:
    """The mask of `case`, in its shape, dtype and layout."""
    size = (case.batch, case.num_heads, case.query_len, case.key_len)
    allowed = _shaped(_allowed(case, size, generator), case.mask_shape)
    mask = _as_dtype(allowed, case.mask_dtype, additive=case.mask == "additive")
    if case.mask_layout == "expanded":
        return mask.expand(size)
    if case.mask_layout == "transposed":
        return mask.transpose(-2, -1).contiguous().transpose(-2, -1)
    if case.mask_layout == "every_second":
        return mask.repeat_interleave(2, dim=-1)[..., ::2]
    return mask


def _allowed(case: Case, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Which key each query may see, for every batch and head."""
    batch, _, query_len, key_len = size
    full = torch.ones(size, dtype=torch.bool)
    if case.mask in ("causal", "additive"):
        return full.tril()
    if case.mask == "causal_bottom_right":
        return full.tril(key_len - query_len)
    if case.mask == "padding":
        # The last key is masked everywhere, and every batch row has a length of its own.
        lengths = torch.tensor([max(1, key_len - 1 - row * key_len // (2 * batch)) for row in range(batch)])
        return (torch.arange(key_len) < lengths[:, None])[:, None, None, :].expand(size)
    if case.mask in ("random", "full_row"):
        allowed = torch.rand(size, generator=generator) < 0.7
        if case.mask == "full_row":
            allowed[:, :, query_len // 2 : query_len // 2 + 1] = False
        return allowed
    return {"all_blocked": ~full, "none_blocked": full}[case.mask]


def _shaped(allowed: torch.Tensor, shape: str) -> torch.Tensor:
    """One letter a dimension, right-aligned: `b11s` is (batch, 1, 1, key_len); others are dropped."""
    if (
        shape == "bls"
    ):  # Three dimensions: the batch meets the heads. PyTorch takes it when they are equally many.
        return allowed[:, 0].contiguous()
    shape = shape.removeprefix("scalar")
    for dim, letter in enumerate(shape.rjust(4, "1")):
        if letter == "1":
            allowed = allowed.narrow(dim, 0, 1)
    return allowed.reshape(allowed.shape[4 - len(shape) :]).contiguous()


def _as_dtype(allowed: torch.Tensor, dtype: str, *, additive: bool) -> torch.Tensor:
    if additive:
        return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))
    if dtype == "special":  # Anything but a zero attends, NaN too; a negative zero is a zero.
        numbers = torch.tensor([float("nan"), float("inf"), -2.0, 1e-45])
        blocked = torch.tensor([0.0, -0.0])
        index = torch.arange(allowed.numel()).view(allowed.shape)
        return torch.where(allowed, numbers[index % 4], blocked[index % 2])
    mask = allowed.to(getattr(torch, dtype))
    if dtype in (
        "uint8",
        "int8",
        "int64",
    ):  # Not only ones: 255 as uint8, -1 else; 2**40 does not fit 32 bits.
        index = torch.arange(allowed.numel()).view(allowed.shape)
        mask = mask * torch.tensor([1, 2, -1 if dtype != "uint8" else 255]).to(mask.dtype)[index % 3]
        mask = mask * 2**40 if dtype == "int64" else mask
    return mask

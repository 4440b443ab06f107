"""What the engines of the benchmarks are given: shapes, kinds of masks, inputs, weights and the float64 result."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from lesson import MultiHeadAttention

SELF, MASK_LS, MASK_B1LS, CAUSAL, CROSS, CURVE = (
    "self",
    "mask (L,S)",
    "mask (B,1,L,S)",
    "causal",
    "cross",
    "curve",
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# An error beyond this, relative to the largest output, is no rounding: the engine computes something else.
ABSURD = {"float32": 1e-3, "bfloat16": 1e-1}

# Longer outputs are compared in this many of their rows: the first ones, the last ones, and some between.
_ROWS = 512


@dataclass(frozen=True)
class Case:
    """One call of the module: sizes, and what is masked."""

    batch: int
    query_len: int
    key_len: int
    d_model: int
    num_heads: int
    kind: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.query_len, self.d_model, self.num_heads)

    def __str__(self) -> str:
        length = str(self.query_len)
        if self.key_len != self.query_len:
            length += f"x{self.key_len}"
        return f"({self.batch}, {length}, {self.d_model}, {self.num_heads}) {self.kind}"

    def flops(self) -> int:
        """W_q and W_o on L rows, W_k and W_v on S rows, and two products of L x S x D; causal needs half of those.

        For L = S: 8 B L D^2 + 4 B L^2 D. A mask saves nothing: its FLOPs are those of the unmasked call.
        """
        projections = 4 * self.batch * (self.query_len + self.key_len) * self.d_model**2
        products = 4 * self.batch * self.query_len * self.key_len * self.d_model
        return projections + (products // 2 if self.kind == CAUSAL else products)

    def scores_bytes(self) -> int:
        """(B, H, L, S) in float32."""
        return 4 * self.batch * self.num_heads * self.query_len * self.key_len


def _self_attention(shape: Sequence[int], kind: str = SELF) -> Case:
    batch, length, d_model, num_heads = shape
    return Case(batch, length, length, d_model, num_heads, kind)


_SHAPES = (
    (32, 50, 512, 8),
    (1, 128, 768, 12),
    (8, 512, 768, 12),
    (1, 2048, 512, 8),
    (4, 1024, 2048, 16),
    (1, 4096, 1024, 16),
)
_MASKED_SHAPES = ((8, 512, 768, 12), (1, 2048, 512, 8))


def standard_cases() -> list[Case]:
    cases = []
    for shape in _SHAPES:
        cases.append(_self_attention(shape))
        if shape in _MASKED_SHAPES:
            cases += [_self_attention(shape, kind) for kind in (MASK_LS, MASK_B1LS, CAUSAL)]
    return [*cases, Case(8, 64, 512, 768, 12, CROSS)]


def cases_of_shape(shape: Sequence[int]) -> list[Case]:
    """Every kind of case for one (B, L, D, H); cross-attention has twice as many keys as queries."""
    batch, length, d_model, num_heads = shape
    cases = [_self_attention(shape, kind) for kind in (SELF, MASK_LS, MASK_B1LS, CAUSAL)]
    return [*cases, Case(batch, length, 2 * length, d_model, num_heads, CROSS)]


def curve_cases() -> list[Case]:
    """Unmasked self-attention over the length of the sequence."""
    return [_self_attention((1, length, 512, 8), CURVE) for length in (128, 256, 512, 1024, 2048, 4096, 8192)]


def largest_deviation(found: torch.Tensor, expected: torch.Tensor) -> float:
    """NaN counts as infinite."""
    deviation = (found.double() - expected).abs().max().item()
    return deviation if deviation == deviation else float("inf")


class Problem:
    """A case with its tensors.

    All values are bfloat16 numbers, so that float32 and bfloat16 have the same exact result.
    """

    def __init__(self, case: Case, dtype: str, *, reference: torch.Tensor | None = None) -> None:
        self.case = case
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(20)
        self.module = MultiHeadAttention(case.d_model, case.num_heads, dropout=0).eval().to(DTYPES[dtype])
        for parameter in self.module.parameters():
            parameter.requires_grad_(False).copy_(self.randn(*parameter.shape, scale=case.d_model**-0.5))
        self.query = self.randn(case.batch, case.query_len, case.d_model)
        self.memory = self.query if case.kind != CROSS else self.randn(case.batch, case.key_len, case.d_model)
        self.mask = self._mask(self.generator)
        if reference is not None:
            self.reference = reference

    def randn(self, *sizes: int, scale: float = 1) -> torch.Tensor:
        numbers = torch.randn(*sizes, generator=self.generator) * scale
        return numbers.bfloat16().to(DTYPES[self.dtype])

    @property
    def causal(self) -> bool:
        return self.case.kind == CAUSAL

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The tensors of a call without mask: one for self-attention."""
        return (self.query,) if self.memory is self.query else (self.query, self.memory)

    @cached_property
    def mask_or_causal(self) -> torch.Tensor | None:
        """The mask, for engines without a causal rule of their own."""
        if not self.causal:
            return self.mask
        return torch.ones(self.case.query_len, self.case.key_len, dtype=torch.bool).tril()

    def _mask(self, generator: torch.Generator) -> torch.Tensor | None:
        """Bool, true keeps. Every query keeps the first key: peers disagree about rows that keep none."""
        batch, query_len, key_len = self.case.batch, self.case.query_len, self.case.key_len
        if self.case.kind not in (MASK_LS, MASK_B1LS):
            return None
        sizes = (query_len, key_len) if self.case.kind == MASK_LS else (batch, 1, query_len, key_len)
        mask = torch.rand(*sizes, generator=generator) < 0.8
        if self.case.kind == MASK_B1LS:  # and the ends of the sequences are padding
            lengths = torch.randint(key_len // 2, key_len + 1, (batch, 1, 1, 1), generator=generator)
            mask &= torch.arange(key_len) < lengths
        mask[..., 0] = True
        return mask

    @property
    def rows(self) -> torch.Tensor:
        """Which query rows are compared with the float64 result."""
        length = self.case.query_len
        if length <= _ROWS:
            return torch.arange(length)
        quarter = _ROWS // 4
        between = torch.linspace(quarter, length - quarter - 1, _ROWS // 2).long()
        return torch.cat([torch.arange(quarter), between, torch.arange(length - quarter, length)])

    @cached_property
    def reference(self) -> torch.Tensor:
        """`rows` of the lesson in float64."""
        module = copy.deepcopy(self.module).double()
        mask = self.mask_or_causal
        memory = self.memory.double()
        return module(
            self.query[:, self.rows].double(),
            memory,
            memory,
            None if mask is None else mask[..., self.rows, :],
        )

    def error(self, output: torch.Tensor) -> float:
        """The largest deviation of `output` from the float64 result."""
        if output.shape != self.query.shape:
            raise ValueError(
                f"expected an output of shape {tuple(self.query.shape)}, found {tuple(output.shape)}"
            )
        return largest_deviation(output[..., self.rows, :], self.reference)

    def is_absurd(self, error: float) -> bool:
        return error > ABSURD[self.dtype] * self.reference.abs().max().item()

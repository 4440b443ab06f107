"""The engines that `bench_peers.py` compares: ours, and PyTorch's. Those of other runtimes are in `bench_runtimes.py`.

An engine builds, for a problem, a call without arguments that returns the output. What a call can prepare once (packing
weights, compiling, bringing a mask into the peer's form) is prepared by building.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional as F

from bench_cases import DTYPES, Problem
from lesson import MultiHeadAttention

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Rewound:
    """A call that leaves another state than it found: `rewind`, which no clock sees, brings the earlier one back."""

    call: Call
    rewind: Callable[[], object]

    def __call__(self) -> torch.Tensor:
        self.rewind()
        return self.call()


LIBRARY = Path(__file__).resolve().parent.parent / "build/release/libmha_ops.so"


@dataclass(frozen=True)
class Setup:
    """How an engine is built."""

    threads: int
    # Whether temporaries stay allocated between calls, in engines that do so unless told not to.
    keep_buffers: bool = True


@dataclass(frozen=True)
class Engine:
    """`build` makes a call. `packages` are those that it needs beside torch, by their names in pip and in Python."""

    name: str
    about: str
    build: Callable[[Problem, Setup], Call]
    packages: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = tuple(DTYPES)
    # Whether a call belongs to the number of threads that it was built with, or follows torch.set_num_threads.
    own_threads: bool = False
    # Whether the first call does what building should.
    builds_late: bool = False
    # Whether memory grows with L x S.
    holds_scores: bool = False

    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]


def load_library(path: Path) -> None:
    """Registers torch.classes.mha."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such library; build it (cmake --build --preset release --target mha_ops) or name it with --library"
        )
    torch.classes.load_library(str(path))


class OutputOnly(MultiHeadAttention):
    """The lesson without the attention weights that it keeps: compilers and exporters may drop them."""

    def forward(self, query, key, value, mask=None):
        output = super().forward(query, key, value, mask)
        self.attention_weights = None
        return output


class WithSdpa(MultiHeadAttention):
    """The lesson's module on PyTorch's fused attention."""

    def __init__(self, d_model: int, num_heads: int, causal: bool = False) -> None:
        super().__init__(d_model, num_heads, dropout=0)
        self.causal = causal

    def forward(self, query, key, value, mask=None):
        batch_size = query.shape[0]
        Q = self.W_q(query).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(key).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(value).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        output = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, is_causal=self.causal)
        return self.W_o(output.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model))


def with_weights(module: torch.nn.Module, problem: Problem) -> torch.nn.Module:
    module.load_state_dict(problem.module.state_dict())
    return module.eval().to(DTYPES[problem.dtype]).requires_grad_(False)


def output_only(problem: Problem) -> torch.nn.Module:
    return with_weights(OutputOnly(problem.case.d_model, problem.case.num_heads, dropout=0), problem)


def _with_sdpa(problem: Problem) -> torch.nn.Module:
    return with_weights(WithSdpa(problem.case.d_model, problem.case.num_heads, problem.causal), problem)


def _build_fused(problem: Problem, setup: Setup) -> Call:
    weights, case = problem.module.state_dict(), problem.case
    fused = torch.classes.mha.FusedMultiHeadAttention(weights, case.num_heads)
    query, memory, mask, causal = problem.query, problem.memory, problem.mask, problem.causal
    if memory is query:
        return lambda: fused.forward(query, mask, causal)
    return lambda: fused.cross(query, memory, mask, causal)


def _build_lesson(problem: Problem, setup: Setup) -> Call:
    lesson = torch.classes.mha.MultiHeadAttention(problem.module.state_dict(), problem.case.num_heads)
    query, memory, mask = problem.query, problem.memory, problem.mask_or_causal
    return lambda: lesson.forward(query, memory, memory, mask)


def _build_python_lesson(problem: Problem, setup: Setup) -> Call:
    module, query, memory, mask = problem.module, problem.query, problem.memory, problem.mask_or_causal
    return lambda: module(query, memory, memory, mask)


def _build_python_sdpa(problem: Problem, setup: Setup) -> Call:
    module, query, memory, mask = _with_sdpa(problem), problem.query, problem.memory, problem.mask
    return lambda: module(query, memory, memory, mask)


def _build_torch_module(problem: Problem, setup: Setup) -> Call:
    case, lesson = problem.case, problem.module
    module = torch.nn.MultiheadAttention(case.d_model, case.num_heads, batch_first=True)
    state = lesson.state_dict()
    stacked = {
        f"in_proj_{name}": torch.cat([state[f"{layer}.{name}"] for layer in ("W_q", "W_k", "W_v")])
        for name in ("weight", "bias")
    }
    module.load_state_dict(
        {**stacked, "out_proj.weight": state["W_o.weight"], "out_proj.bias": state["W_o.bias"]}
    )
    module.eval().to(DTYPES[problem.dtype]).requires_grad_(False)
    query, memory, causal = problem.query, problem.memory, problem.causal
    blocked = None if problem.mask_or_causal is None else ~problem.mask_or_causal
    if blocked is not None and blocked.dim() == 4:  # (B, 1, L, S) -> (B H, L, S)
        blocked = blocked.expand(-1, case.num_heads, -1, -1).flatten(0, 1).contiguous()
    options = {"need_weights": False, "attn_mask": blocked, "is_causal": causal}
    return lambda: module(query, memory, memory, **options)[0]


def compiled(module: torch.nn.Module) -> torch.nn.Module:
    options = {
        "freezing": True,  # packs the weights
        "cpp.dynamic_threads": True,
        # No check whether anything changed: PyTorch would compile the same again for another number of threads.
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
    }
    return torch.compile(module, dynamic=False, options=options)


def _compiled_call(module: torch.nn.Module, problem: Problem, mask: torch.Tensor | None) -> Call:
    fast, query, memory = compiled(module), problem.query, problem.memory
    return lambda: fast(query, memory, memory, mask)


def _build_compiled_lesson(problem: Problem, setup: Setup) -> Call:
    return _compiled_call(output_only(problem), problem, problem.mask_or_causal)


def _build_compiled_sdpa(problem: Problem, setup: Setup) -> Call:
    return _compiled_call(_with_sdpa(problem), problem, problem.mask)


def all_engines() -> list[Engine]:
    from bench_runtimes import RUNTIMES

    return [
        Engine("mha fused", "mha::FusedMultiHeadAttention of this library", _build_fused),
        Engine(
            "mha lesson",
            "mha::MultiHeadAttention of this library, bit for bit the Python lesson",
            _build_lesson,
            holds_scores=True,
        ),
        Engine(
            "Python lesson", "scripts/lesson.py in PyTorch, eager", _build_python_lesson, holds_scores=True
        ),
        Engine("Python SDPA", "the same on F.scaled_dot_product_attention", _build_python_sdpa),
        Engine(
            "PyTorch module",
            "torch.nn.MultiheadAttention in eval mode, need_weights=False",
            _build_torch_module,
            holds_scores=True,
        ),
        Engine(
            "compiled lesson",
            "torch.compile of the lesson, frozen, dynamic=False",
            _build_compiled_lesson,
            builds_late=True,
        ),
        Engine(
            "compiled SDPA",
            "torch.compile of the SDPA form, frozen, dynamic=False",
            _build_compiled_sdpa,
            builds_late=True,
        ),
        *RUNTIMES,
    ]


def forget_compiled() -> None:
    """To be called before another problem: `compiled` checks nothing that would tell it apart."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()

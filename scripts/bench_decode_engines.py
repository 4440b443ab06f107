"""The engines of `bench_decode.py`: ours, and PyTorch's. Those of other runtimes are in `bench_decode_runtimes.py`.

Small inputs without cache are for the engines of `bench_peers.py`.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from bench_cases import DTYPES, SELF, Problem
from bench_decode_cases import (
    ATTENTION,
    GENERATION,
    STEP,
    AttentionProblem,
    GenerationProblem,
    StepProblem,
    split_heads,
)
from bench_engines import Call, Engine, Rewound, Setup, all_engines, compiled, with_weights
from lesson import MultiHeadAttention, scaled_dot_product_attention

# Engines take turns after so many steps of a generation.
CHUNK = 50

# One position more: (B, 1, D) -> (B, 1, D).
Step = Callable[[torch.Tensor], torch.Tensor]


class ConcatenatedCache(MultiHeadAttention):
    """The lesson that projects only the new row, and concatenates its key and value with those that it has."""

    def step(self, x, keys, values):
        """Returns the output (B, 1, D), and keys and values (B, H, S, d_k) with the new ones."""
        Q, K, V = (split_heads(layer(x), self.num_heads) for layer in (self.W_q, self.W_k, self.W_v))
        keys, values = torch.cat([keys, K], 2), torch.cat([values, V], 2)
        output, _ = scaled_dot_product_attention(Q, keys, values)
        return self.W_o(output.transpose(1, 2).reshape(x.shape)), keys, values


class PreallocatedCache(MultiHeadAttention):
    """The same on PyTorch's fused attention, and on keys and values (B, H, capacity, d_k) that are written in place."""

    def step(self, x, keys, values, length):
        """`length` positions are in the cache already."""
        Q, K, V = (split_heads(layer(x), self.num_heads) for layer in (self.W_q, self.W_k, self.W_v))
        keys[:, :, length : length + 1] = K
        values[:, :, length : length + 1] = V
        output = F.scaled_dot_product_attention(Q, keys[:, :, : length + 1], values[:, :, : length + 1])
        return self.W_o(output.transpose(1, 2).reshape(x.shape))

    def forward(self, x, keys, values, length):
        """The form for compilers: `length` is a tensor (1,), and all shapes are those of every other step."""
        Q, K, V = (split_heads(layer(x), self.num_heads) for layer in (self.W_q, self.W_k, self.W_v))
        keys.index_copy_(2, length, K)
        values.index_copy_(2, length, V)
        seen = (torch.arange(keys.shape[2]) <= length)[None]  # (1, S)
        output = F.scaled_dot_product_attention(Q, keys, values, attn_mask=seen)
        return self.W_o(output.transpose(1, 2).reshape(x.shape))


def _module(cls: type[MultiHeadAttention], problem: Problem) -> MultiHeadAttention:
    return with_weights(cls(problem.case.d_model, problem.case.num_heads, dropout=0), problem)


def _fused(problem: Problem):
    return torch.classes.mha.FusedMultiHeadAttention(problem.module.state_dict(), problem.case.num_heads)


def _build_cache(problem: StepProblem, setup: Setup) -> Call:
    batch, length, query = problem.case.batch, problem.case.key_len, problem.query
    cache = torch.classes.mha.KeyValueCache(_fused(problem), batch, length)
    cache.prefill(problem.memory[:, :-1])

    def rewind() -> None:
        for item in range(batch):
            cache.truncate(item, length - 1)

    return Rewound(lambda: cache.step(query), rewind)


def _build_concatenated(problem: StepProblem, setup: Setup) -> Call:
    module, query, (keys, values) = _module(ConcatenatedCache, problem), problem.query, problem.past
    return lambda: module.step(query, keys, values)[0]


def _build_preallocated(problem: StepProblem, setup: Setup) -> Call:
    module, query, (keys, values) = _module(PreallocatedCache, problem), problem.query, problem.padded_past()
    length = problem.case.key_len - 1
    return lambda: module.step(query, keys, values, length)


def _build_compiled(problem: StepProblem, setup: Setup) -> Call:
    module, query, (keys, values) = _module(PreallocatedCache, problem), problem.query, problem.padded_past()
    step, length = compiled(module), torch.tensor([problem.case.key_len - 1])
    return lambda: step(query, keys, values, length)


def _build_our_attention(problem: AttentionProblem, setup: Setup) -> Call:
    attend, query, key, value = (
        torch.ops.mha.scaled_dot_product_attention,
        problem.query,
        problem.key,
        problem.value,
    )
    return lambda: attend(query, key, value)


def _build_lesson_attention(problem: AttentionProblem, setup: Setup) -> Call:
    query, key, value = problem.query, problem.key, problem.value
    return lambda: scaled_dot_product_attention(query, key, value)[0]


def _build_sdpa(problem: AttentionProblem, setup: Setup) -> Call:
    query, key, value = problem.query, problem.key, problem.value
    return lambda: F.scaled_dot_product_attention(query, key, value)


class Generation:
    """A call makes the next CHUNK steps, after the last ones the first again.

    `start` forgets all positions and returns a `Step`. A call returns the outputs of all steps so far, and `chunks`
    tells for each call which steps it has made.
    """

    def __init__(self, problem: GenerationProblem, start: Callable[[], Step]) -> None:
        steps = problem.case.query_len
        self.inputs = [problem.query[:, i : i + 1].contiguous() for i in range(steps)]
        self.outputs: dict[int, torch.Tensor] = {}
        self.chunks: list[int] = []
        self._start = start
        self._step: Step | None = None
        self._next = 0

    def __call__(self) -> dict[int, torch.Tensor]:
        first, inputs, outputs = self._next, self.inputs, self.outputs
        step = self._start() if first == 0 else self._step
        end = min(first + CHUNK, len(inputs))
        for i in range(first, end):
            outputs[i] = step(inputs[i])
        self._step, self._next = step, end % len(inputs)
        self.chunks.append(first // CHUNK)
        return outputs


def _generate_cache(problem: GenerationProblem, setup: Setup) -> Generation:
    cache = torch.classes.mha.KeyValueCache(_fused(problem), problem.case.batch, problem.case.query_len)

    def start() -> Step:
        cache.reset()
        return cache.step

    return Generation(problem, start)


def _generate_concatenated(problem: GenerationProblem, setup: Setup) -> Generation:
    module = _module(ConcatenatedCache, problem)

    def start() -> Step:
        keys = values = _memory(problem, 0)

        def step(x: torch.Tensor) -> torch.Tensor:
            nonlocal keys, values
            output, keys, values = module.step(x, keys, values)
            return output

        return step

    return Generation(problem, start)


def _generate_preallocated(problem: GenerationProblem, setup: Setup) -> Generation:
    module = _module(PreallocatedCache, problem)
    keys, values = (_memory(problem, problem.case.query_len) for _ in range(2))

    def start() -> Step:
        length = 0

        def step(x: torch.Tensor) -> torch.Tensor:
            nonlocal length
            output = module.step(x, keys, values, length)
            length += 1
            return output

        return step

    return Generation(problem, start)


def _memory(problem: Problem, capacity: int) -> torch.Tensor:
    case = problem.case
    sizes = (case.batch, case.num_heads, capacity, case.d_model // case.num_heads)
    return torch.zeros(sizes, dtype=DTYPES[problem.dtype])


OURS = ("mha fused", "mha cache", "mha attention")


def engines_by_kind() -> dict[str, Sequence[Engine]]:
    from bench_decode_runtimes import RUNTIMES

    cache = "mha::KeyValueCache of this library"
    concatenated = "scripts/lesson.py; key and value of the new row are concatenated with the earlier ones"
    preallocated = "the same on F.scaled_dot_product_attention and a preallocated cache"
    return {
        STEP: [
            Engine("mha cache", cache, _build_cache),
            Engine("Python lesson", concatenated, _build_concatenated),
            Engine("Python SDPA", preallocated, _build_preallocated),
            Engine(
                "compiled SDPA",
                "torch.compile of that, over the whole capacity with a mask",
                _build_compiled,
                builds_late=True,
            ),
            *RUNTIMES,
        ],
        ATTENTION: [
            Engine("mha attention", "torch.ops.mha.scaled_dot_product_attention", _build_our_attention),
            Engine("lesson attention", "the lesson's function", _build_lesson_attention),
            Engine("SDPA", "F.scaled_dot_product_attention", _build_sdpa),
        ],
        SELF: all_engines(),
        GENERATION: [
            Engine("mha cache", cache, _generate_cache),
            Engine("Python lesson", concatenated, _generate_concatenated),
            Engine("Python SDPA", preallocated, _generate_preallocated),
        ],
    }

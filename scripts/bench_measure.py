"""Time: engines take turns, so that what else the machine does falls on all alike. Memory: a process of its own."""

import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch.nn import functional as F

from bench_cases import DTYPES, Case, Problem
from bench_engines import Call, Engine, Rewound, Setup, forget_compiled, load_library

Key = TypeVar("Key")


@dataclass(frozen=True)
class Effort:
    """How long to measure: in each round every engine is called until `burst` seconds are over, at least once.

    An engine whose calls took `budget` seconds takes no further part. The first call with new weights or buffers is
    slower, and counts only when it took `once` seconds.
    """

    rounds: int
    burst: float
    budget: float
    once: float = float("inf")
    # Memory of every case, or only along the curve.
    all_memory: bool = True


def timed(call: Call) -> tuple[float, torch.Tensor]:
    """Seconds of the call, and its output."""
    if isinstance(call, Rewound):
        call.rewind()
        call = call.call
    begin = time.perf_counter()
    output = call()
    return time.perf_counter() - begin, output


def seconds(call: Call) -> float:
    return timed(call)[0]


def take_turns(
    calls: Mapping[Key, Call],
    samples: Mapping[Key, list[float]],
    effort: Effort,
    each_round: Callable[[], None],
) -> dict[Key, Exception]:
    """Adds the seconds of every call of every engine to its `samples`; returns what engines have thrown.

    The first engine of a round is another one each time. One that has thrown takes no further part.
    """
    failures: dict[Key, Exception] = {}
    keys = list(calls)
    for turn in range(effort.rounds):
        each_round()
        first = turn % max(1, len(keys))
        for key in keys[first:] + keys[:first]:
            if key in failures or (samples[key] and sum(samples[key]) >= effort.budget):
                continue
            begin = time.perf_counter()
            try:
                while True:
                    samples[key].append(seconds(calls[key]))
                    if time.perf_counter() - begin >= effort.burst:
                        break
            except Exception as failure:  # noqa: BLE001  whatever a peer throws, the others go on
                failures[key] = failure
    return failures


class Peak:
    """The most FLOPs per second of a matrix product with a bias: `F.linear`, and oneDNN's with packed weights.

    The best of all calls in the whole run counts.
    """

    _SIZES = ((2048, 1024, 1024), (1600, 512, 512), (4096, 768, 768))

    def __init__(self) -> None:
        self.best: dict[tuple[str, int], float] = {}
        self._products: dict[str, list[tuple[int, Callable[[], torch.Tensor]]]] = {}
        self._turn = 0

    def probe(self, dtype: str, threads: int) -> None:
        """Runs one of the products, with the first call for a dtype and number of threads each of them often."""
        torch.set_num_threads(threads)
        if dtype not in self._products:
            self._products[dtype] = list(self._make(DTYPES[dtype]))
        products = self._products[dtype]
        best = self.best.get((dtype, threads))
        if best is not None:
            self._turn += 1
            products = [products[self._turn % len(products)]]
        speeds = (flops / seconds(product) for flops, product in products * (1 if best else 20))
        self.best[dtype, threads] = max(best or 0.0, *speeds)

    def _make(self, dtype: torch.dtype) -> Iterator[tuple[int, Callable[[], torch.Tensor]]]:
        for rows, inner, columns in self._SIZES:
            x, weight, bias = (
                torch.randn(*sizes, dtype=dtype) for sizes in ((rows, inner), (columns, inner), (columns,))
            )
            flops = 2 * rows * inner * columns
            yield flops, partial(F.linear, x, weight, bias)
            try:
                packed = torch.ops.mkldnn._reorder_linear_weight(weight)
                product = partial(torch.ops.mkldnn._linear_pointwise, x, packed, bias, "none", [], "")
                product()
            except (AttributeError, RuntimeError):  # no oneDNN, or none of this dtype on this processor
                continue
            yield flops, product


def available_bytes() -> float:
    """Memory that a process may still take; infinite where the system does not say."""
    try:
        return _field("/proc/meminfo", "MemAvailable")
    except OSError:
        return float("inf")


def extra_bytes(call: Call) -> int | None:
    """What one call takes beyond what the process holds before it: its temporaries and its output. None: unknown.

    The first call does not count: what an engine makes then, and keeps, is not the call's.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    call()
    gc.collect()
    trim(0)
    try:
        before = _field("/proc/self/status", "VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
        call()
        return max(0, _field("/proc/self/status", "VmHWM") - before)
    except OSError:
        return None


def _field(path: str, name: str) -> int:
    for line in Path(path).read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {name}")


def memory_of(
    engine: Engine, dtype: str, threads: int, cases: Sequence[Case], library: Path
) -> list[int | None]:
    """`extra_bytes` of the engine for each case, measured in a process that runs nothing else."""
    request = {
        "engine": engine.name,
        "dtype": dtype,
        "threads": threads,
        "library": str(library),
        "cases": [asdict(case) for case in cases],
    }
    result = subprocess.run(
        [sys.executable, __file__], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    found: list[int | None] = [json.loads(line) for line in result.stdout.splitlines()]
    return found + [None] * (len(cases) - len(found))  # it may have run out of memory


def _answer(request: dict) -> None:
    """The process of `memory_of`: prints a line for each case."""
    from bench_engines import all_engines

    load_library(Path(request["library"]))
    engine = next(engine for engine in all_engines() if engine.name == request["engine"])
    setup = Setup(request["threads"], keep_buffers=False)
    torch.set_num_threads(setup.threads)
    with torch.inference_mode():
        for fields in request["cases"]:
            forget_compiled()
            try:
                call = engine.build(Problem(Case(**fields), request["dtype"]), setup)
                print(json.dumps(extra_bytes(call)), flush=True)
            except Exception:  # noqa: BLE001  the process that measures time tells what went wrong
                print("null", flush=True)


if __name__ == "__main__":
    _answer(json.load(sys.stdin))

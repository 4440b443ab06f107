"""One run of `bench_decode.py`: what is measured, how long, and the numbers that come of it."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bench_cases import Case, Problem
from bench_decode_cases import GENERATION, PROBLEMS, bytes_read, cases_of_shape, standard_cases
from bench_decode_engines import CHUNK, Generation
from bench_engines import Engine
from bench_measure import Effort, seconds
from bench_rounds import Entrant, Rounds, case_of, check_error, packages_of

FORMAT = "mha.bench.decode/1"


@dataclass(frozen=True)
class Plan:
    """How long to measure single calls; how many steps a generation has, and how often it is run."""

    calls: Effort
    steps: int
    passes: int


FULL = Plan(Effort(rounds=25, burst=0.03, budget=3.0), steps=1000, passes=3)
QUICK = Plan(Effort(rounds=5, burst=0.01, budget=0.5), steps=200, passes=2)


class Floor:
    """The least time in which so many bytes are read, by so many threads: the best of all readers in the whole run."""

    # Reading less, calling a reader is most of the time.
    LEAST = 2**20

    def __init__(self) -> None:
        self.best: dict[tuple[int, int], float] = {}
        self._readers: dict[int, list] = {}

    def probe(self, size: int, threads: int) -> None:
        if size < self.LEAST:
            return
        torch.set_num_threads(threads)
        if size not in self._readers:
            numbers = torch.zeros(size // 4)
            integers = numbers.view(torch.int32)
            self._readers[size] = [numbers.sum, integers.amax, integers.view(torch.int64).sum]
        found = min(seconds(reader) for reader in self._readers[size] * 10)
        self.best[size, threads] = min(found, self.best.get((size, threads), found))

    def milliseconds(self, size: int, threads: int) -> float | None:
        best = self.best.get((size, threads))
        return None if best is None else best * 1e3


class DecodeRun(Rounds):
    """Measures, and gathers what `--json` writes."""

    def __init__(
        self,
        engines: Mapping[str, Sequence[Engine]],
        *,
        shapes: Sequence[tuple[int, ...]] | None,
        threads: Sequence[int],
        dtypes: Sequence[str],
        only: re.Pattern[str],
        plan: Plan,
    ) -> None:
        cases = [case for shape in shapes or [] for case in cases_of_shape(shape)]
        super().__init__(
            cases if shapes else standard_cases(plan.steps), threads=threads, dtypes=dtypes, only=only
        )
        self.plan = plan
        self.floor = Floor()
        self.engines = {kind: self.installed(some) for kind, some in engines.items()}

    def engines_of(self, case: Case) -> list[Engine]:
        return self.engines[case.kind]

    def effort_of(self, case: Case) -> Effort:
        if case.kind != GENERATION:
            return self.plan.calls
        chunks = -(-case.query_len // CHUNK)
        return Effort(rounds=self.plan.passes * chunks, burst=0, budget=float("inf"))

    def threads_of(self, case: Case, dtype: str) -> list[int]:
        return self.threads[-1:] if case.kind == GENERATION else self.threads

    def problem(self, case: Case, dtype: str, reference: torch.Tensor | None) -> Problem:
        return PROBLEMS[case.kind](case, dtype, reference=reference)

    def each_round(self, problem: Problem, threads: int) -> None:
        self.floor.probe(bytes_read(problem.case, problem.dtype), threads)

    def row(self, problem: Problem, threads: int, engine: Engine, entrant: Entrant) -> dict:
        row = super().row(problem, threads, engine, entrant)
        if isinstance(entrant.call, Generation):
            row["max_error"] = problem.error(entrant.call.outputs)
            check_error(problem, row["max_error"])
            row["min_ms"], row["median_ms"] = _of_all_steps(entrant.call.chunks, entrant.samples)
        return row

    def measure(self) -> None:
        self.measure_cases()
        for row in self.rows:
            size = bytes_read(case_of(row), row["dtype"])
            row["floor_ms"] = self.floor.milliseconds(size, row["threads"])
        self.progress("")

    def results(self) -> dict:
        every = [engine for some in self.engines.values() for engine in some]
        return {
            "format": FORMAT,
            "machine": self.machine(packages_of(every)),
            "rows": self.rows,
            "skipped": self.skipped,
        }


def _of_all_steps(chunks: Sequence[int], samples: Sequence[float]) -> tuple[float, float]:
    """Milliseconds of a generation: the least, and the median, of each chunk, added up."""
    times: dict[int, list[float]] = {}
    for chunk, sample in zip(chunks[-len(samples) :], samples):
        times.setdefault(chunk, []).append(sample * 1e3)
    return sum(map(min, times.values())), sum(map(statistics.median, times.values()))

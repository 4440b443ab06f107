"""One run of `bench_peers.py`: which cases and engines, in which order, and the numbers that come of it."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench_cases import CURVE, Case, Problem, cases_of_shape, curve_cases, standard_cases
from bench_engines import Engine
from bench_measure import Effort, Peak, memory_of
from bench_rounds import Entrant, Rounds, case_of, packages_of

FORMAT = "mha.bench/1"

CURVE_ENGINES = ("mha fused", "Python lesson", "Python SDPA", "ONNXRuntime fused", "OpenVINO lesson")

FULL = Effort(rounds=7, burst=0.1, budget=3.0)
QUICK = Effort(rounds=2, burst=0.01, budget=0.06, once=0.4, all_memory=False)


class Run(Rounds):
    """Measures, and gathers what `--json` writes."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        shapes: Sequence[tuple[int, ...]] | None,
        threads: Sequence[int],
        dtypes: Sequence[str],
        only: re.Pattern[str],
        effort: Effort,
        library: Path,
    ) -> None:
        cases = [case for shape in shapes or [] for case in cases_of_shape(shape)]
        super().__init__(
            cases if shapes else standard_cases() + curve_cases(), threads=threads, dtypes=dtypes, only=only
        )
        self.effort = effort
        self.library = library
        self.peak = Peak()
        self.engines = self.installed(engines)

    def engines_of(self, case: Case) -> list[Engine]:
        return [engine for engine in self.engines if case.kind != CURVE or engine.name in CURVE_ENGINES]

    def effort_of(self, case: Case) -> Effort:
        return self.effort

    def threads_of(self, case: Case, dtype: str) -> list[int]:
        if case.kind != CURVE:
            return self.threads
        return self.threads[-1:] if dtype == "float32" else []

    def each_round(self, problem: Problem, threads: int) -> None:
        self.peak.probe(problem.dtype, threads)

    def measure(self) -> None:
        self.measure_cases()
        self._measure_memory()
        self.progress("")
        for row in self.rows:
            peak = self.peak.best[row["dtype"], row["threads"]] / 1e9
            row["percent_of_peak"] = 100 * row["gflops"] / peak

    def results(self) -> dict:
        peak = [
            {"dtype": dtype, "threads": threads, "gflops": flops / 1e9}
            for (dtype, threads), flops in self.peak.best.items()
        ]
        return {
            "format": FORMAT,
            "machine": {**self.machine([*packages_of(self.engines), "matplotlib"]), "peak": peak},
            "rows": self.rows,
            "skipped": self.skipped,
        }

    def row(self, problem: Problem, threads: int, engine: Engine, entrant: Entrant) -> dict:
        return {
            **super().row(problem, threads, engine, entrant),
            "gflops": problem.case.flops() / min(entrant.samples) / 1e9,
            "percent_of_peak": None,
            "extra_bytes": None,
        }

    def _measure_memory(self) -> None:
        rows = [row for row in self.rows if row["threads"] == self.threads[-1]]
        if not self.effort.all_memory:
            rows = [row for row in rows if row["case"] == CURVE]
        for engine in self.engines:
            for dtype in self.dtypes:
                mine = [row for row in rows if (row["engine"], row["dtype"]) == (engine.name, dtype)]
                if mine:
                    self.progress(f"memory: {engine.name} {dtype}")
                    cases = [case_of(row) for row in mine]
                    found = memory_of(engine, dtype, self.threads[-1], cases, self.library)
                    for row, extra in zip(mine, found):
                        row["extra_bytes"] = extra

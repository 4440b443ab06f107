"""One run of `bench_peers.py`: which cases and engines, in which order, and the numbers that come of it."""

import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from bench_cases import CURVE, Case, Problem, cases_of_shape, curve_cases, standard_cases
from bench_engines import Call, Engine, Setup, forget_compiled
from bench_measure import Effort, Peak, available_bytes, memory_of, take_turns
from reference_case import cpu_model

CURVE_ENGINES = ("mha fused", "Python lesson", "Python SDPA", "ONNXRuntime fused", "OpenVINO lesson")

FULL = Effort(rounds=7, burst=0.1, budget=3.0)
QUICK = Effort(rounds=2, burst=0.01, budget=0.06, once=0.4, all_memory=False)


def packages_of(engines: Sequence[Engine]) -> list[str]:
    """Of the engines and of the plot, by their names in pip."""
    return sorted({package for engine in engines for package in engine.packages} | {"matplotlib"})


@dataclass
class _Entrant:
    call: Call
    error: float
    samples: list[float]  # seconds of calls


class _Refused(Exception):
    """An engine takes no part; `here`: in this case, else in none of its kind."""

    def __init__(self, reason: str, *, here: bool = True) -> None:
        super().__init__(reason)
        self.here = here


class Run:
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
        self.cases = [case for shape in shapes or [] for case in cases_of_shape(shape)]
        if not shapes:
            self.cases = standard_cases() + curve_cases()
        self.threads = sorted(threads)
        self.dtypes = dtypes
        self.only = only
        self.effort = effort
        self.library = library
        self.peak = Peak()
        self.rows: list[dict] = []
        self.skipped: list[dict] = []
        self.load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self.engines = []
        for engine in engines:
            if missing := engine.missing():
                self._skip(engine, f"not installed: pip install {' '.join(missing)}")
            else:
                self.engines.append(engine)

    def measure(self) -> None:
        for number, case in enumerate(self.cases, 1):
            reference = None
            for dtype in self.dtypes:
                threads = self.threads
                if case.kind == CURVE:
                    threads = threads[-1:] if dtype == "float32" else []
                wanted = {count: self._wanted(case, dtype, count) for count in threads}
                if any(wanted.values()):
                    problem = Problem(case, dtype, reference=reference)
                    self._measure_problem(problem, wanted, f"[{number}/{len(self.cases)}] ")
                    reference = problem.reference
        self._measure_memory()
        self._progress("")
        for row in self.rows:
            peak = self.peak.best[row["dtype"], row["threads"]] / 1e9
            row["percent_of_peak"] = 100 * row["gflops"] / peak

    def results(self) -> dict:
        packages = ["torch", *packages_of(self.engines)]
        return {
            "format": "mha.bench/1",
            "machine": {
                "cpu_model": cpu_model(),
                "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                "cores": os.cpu_count(),
                "load_average": self.load_average,
                "packages": {name: _version(name) for name in packages if _version(name)},
                "peak": [
                    {"dtype": dtype, "threads": threads, "gflops": flops / 1e9}
                    for (dtype, threads), flops in self.peak.best.items()
                ],
            },
            "rows": self.rows,
            "skipped": self.skipped,
        }

    def _wanted(self, case: Case, dtype: str, threads: int) -> list[Engine]:
        return [
            engine
            for engine in self.engines
            if self.only.search(f"{case} {dtype} threads={threads} {engine.name}")
            and (case.kind != CURVE or engine.name in CURVE_ENGINES)
        ]

    def _measure_problem(self, problem: Problem, wanted: dict[int, list[Engine]], progress: str) -> None:
        """One case in one dtype, with every number of threads."""
        forget_compiled()
        shared: dict[str, Call] = {}  # calls that follow torch.set_num_threads
        for threads in sorted(wanted, reverse=True):
            torch.set_num_threads(threads)
            where = f"{problem.case} {problem.dtype} threads={threads}"
            entrants: dict[Engine, _Entrant] = {}
            for engine in wanted[threads]:
                self._progress(f"{progress}{where}: {engine.name}")
                try:
                    entrant = self._admit(engine, problem, Setup(threads), shared.get(engine.name))
                except _Refused as reason:
                    self._skip(engine, str(reason), where if reason.here else "")
                    continue
                entrants[engine] = entrant
                if not engine.own_threads:
                    shared[engine.name] = entrant.call
            self._progress(f"{progress}{where}: measuring {len(entrants)} engines")
            failures = take_turns(
                {engine: entrant.call for engine, entrant in entrants.items()},
                {engine: entrant.samples for engine, entrant in entrants.items()},
                self.effort,
                lambda: self.peak.probe(problem.dtype, threads),
            )
            for engine, entrant in entrants.items():
                if engine in failures:
                    self._skip(engine, _failed(failures[engine]), where)
                else:
                    self.rows.append(_row(problem, threads, engine, entrant))

    def _admit(self, engine: Engine, problem: Problem, setup: Setup, warm: Call | None) -> _Entrant:
        """Builds the call, unless there is a `warm` one, and compares its result with the reference."""
        if problem.dtype not in engine.dtypes:
            raise _Refused(f"no {problem.dtype} on CPUs", here=False)
        needed, available = 3 * problem.case.scores_bytes(), available_bytes()
        if engine.holds_scores and needed > available:
            raise _Refused(f"needs some {needed / 2**30:.0f} GiB, found {available / 2**30:.0f}")
        try:
            call = warm or engine.build(problem, setup)
            begin = time.perf_counter()
            output = call()
            first = time.perf_counter() - begin
            error = problem.error(output)
        except Exception as failure:  # noqa: BLE001  whatever a peer throws, the others go on
            raise _Refused(_failed(failure)) from failure
        if problem.is_absurd(error):
            raise _Refused(f"wrong, not timed: error {error:.1e}")
        counts = warm or (first >= self.effort.once and not engine.builds_late)
        return _Entrant(call, error, [first] if counts else [])

    def _measure_memory(self) -> None:
        rows = [row for row in self.rows if row["threads"] == self.threads[-1]]
        if not self.effort.all_memory:
            rows = [row for row in rows if row["case"] == CURVE]
        for engine in self.engines:
            for dtype in self.dtypes:
                mine = [row for row in rows if (row["engine"], row["dtype"]) == (engine.name, dtype)]
                if mine:
                    self._progress(f"memory: {engine.name} {dtype}")
                    cases = [_case_of(row) for row in mine]
                    found = memory_of(engine, dtype, self.threads[-1], cases, self.library)
                    for row, extra in zip(mine, found):
                        row["extra_bytes"] = extra

    def _skip(self, engine: Engine, reason: str, where: str = "") -> None:
        entry = {"engine": engine.name, "where": where, "reason": reason}
        if entry not in self.skipped:
            self.skipped.append(entry)

    def _progress(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text[:119]}", end="", file=sys.stderr, flush=True)


def _row(problem: Problem, threads: int, engine: Engine, entrant: _Entrant) -> dict:
    case, least = problem.case, min(entrant.samples)
    return {
        "shape": list(case.shape),
        "key_len": case.key_len,
        "case": case.kind,
        "dtype": problem.dtype,
        "threads": threads,
        "engine": engine.name,
        "min_ms": least * 1e3,
        "median_ms": statistics.median(entrant.samples) * 1e3,
        "calls": len(entrant.samples),
        "gflops": case.flops() / least / 1e9,
        "percent_of_peak": None,
        "max_error": entrant.error,
        "extra_bytes": None,
    }


def _failed(failure: Exception) -> str:
    first_line = str(failure).strip().partition("\n")[0]
    return f"failed: {type(failure).__name__}: {first_line}"


def _case_of(row: dict) -> Case:
    batch, query_len, d_model, num_heads = row["shape"]
    return Case(batch, query_len, row["key_len"], d_model, num_heads, row["case"])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

"""How a benchmark goes: case after case, and in each of them the engines by turns."""

import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import torch

from bench_cases import Case, Problem
from bench_engines import Call, Engine, Setup, forget_compiled
from bench_measure import Effort, available_bytes, take_turns, timed
from reference_case import cpu_model


def packages_of(engines: Sequence[Engine]) -> list[str]:
    """By their names in pip."""
    return sorted({package for engine in engines for package in engine.packages})


@dataclass
class Entrant:
    call: Call
    error: float
    samples: list[float]  # seconds of calls


class Refused(Exception):
    """An engine takes no part; `here`: in this case, else in none of its kind."""

    def __init__(self, reason: str, *, here: bool = True) -> None:
        super().__init__(reason)
        self.here = here


class Rounds:
    """Measures, and gathers `rows` and what was `skipped`. What a benchmark has of its own is in its methods."""

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        threads: Sequence[int],
        dtypes: Sequence[str],
        only: re.Pattern[str],
    ) -> None:
        self.cases = cases
        self.threads = sorted(threads)
        self.dtypes = dtypes
        self.only = only
        self.rows: list[dict] = []
        self.skipped: list[dict] = []
        self.load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None

    def engines_of(self, case: Case) -> Sequence[Engine]:
        raise NotImplementedError

    def effort_of(self, case: Case) -> Effort:
        raise NotImplementedError

    def threads_of(self, case: Case, dtype: str) -> Sequence[int]:
        return self.threads

    def problem(self, case: Case, dtype: str, reference: torch.Tensor | None) -> Problem:
        return Problem(case, dtype, reference=reference)

    def each_round(self, problem: Problem, threads: int) -> None:
        """Takes its turn with the engines."""

    def row(self, problem: Problem, threads: int, engine: Engine, entrant: Entrant) -> dict:
        """Of `rows`. May throw `Refused`."""
        return {
            "shape": list(problem.case.shape),
            "key_len": problem.case.key_len,
            "case": problem.case.kind,
            "dtype": problem.dtype,
            "threads": threads,
            "engine": engine.name,
            "min_ms": min(entrant.samples) * 1e3,
            "median_ms": statistics.median(entrant.samples) * 1e3,
            "calls": len(entrant.samples),
            "max_error": entrant.error,
        }

    def installed(self, engines: Sequence[Engine]) -> list[Engine]:
        """Those that can be used; of the others it is told that they are skipped."""
        found = []
        for engine in engines:
            if missing := engine.missing():
                self.skip(engine, f"not installed: pip install {' '.join(missing)}")
            else:
                found.append(engine)
        return found

    def machine(self, packages: Sequence[str]) -> dict:
        return {
            "cpu_model": cpu_model(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "load_average": self.load_average,
            "packages": {name: _version(name) for name in ["torch", *packages] if _version(name)},
        }

    def measure_cases(self) -> None:
        for number, case in enumerate(self.cases, 1):
            reference = None
            for dtype in self.dtypes:
                wanted = {
                    threads: self._wanted(case, dtype, threads) for threads in self.threads_of(case, dtype)
                }
                if any(wanted.values()):
                    problem = self.problem(case, dtype, reference)
                    self._measure_problem(problem, wanted, f"[{number}/{len(self.cases)}] ")
                    reference = problem.reference

    def _wanted(self, case: Case, dtype: str, threads: int) -> list[Engine]:
        return [
            engine
            for engine in self.engines_of(case)
            if self.only.search(f"{case} {dtype} threads={threads} {engine.name}")
        ]

    def _measure_problem(self, problem: Problem, wanted: dict[int, list[Engine]], progress: str) -> None:
        """One case in one dtype, with every number of threads."""
        forget_compiled()
        shared: dict[str, Call] = {}  # calls that follow torch.set_num_threads
        for threads in sorted(wanted, reverse=True):
            torch.set_num_threads(threads)
            where = f"{problem.case} {problem.dtype} threads={threads}"
            entrants: dict[Engine, Entrant] = {}
            for engine in wanted[threads]:
                self.progress(f"{progress}{where}: {engine.name}")
                try:
                    entrant = self._admit(engine, problem, Setup(threads), shared.get(engine.name))
                except Refused as reason:
                    self.skip(engine, str(reason), where if reason.here else "")
                    continue
                entrants[engine] = entrant
                if not engine.own_threads:
                    shared[engine.name] = entrant.call
            self.progress(f"{progress}{where}: measuring {len(entrants)} engines")
            failures = take_turns(
                {engine: entrant.call for engine, entrant in entrants.items()},
                {engine: entrant.samples for engine, entrant in entrants.items()},
                self.effort_of(problem.case),
                lambda: self.each_round(problem, threads),
            )
            for engine, entrant in entrants.items():
                try:
                    if engine in failures:
                        raise Refused(_failed(failures[engine]))
                    self.rows.append(self.row(problem, threads, engine, entrant))
                except Refused as reason:
                    self.skip(engine, str(reason), where)

    def _admit(self, engine: Engine, problem: Problem, setup: Setup, warm: Call | None) -> Entrant:
        """Builds the call, unless there is a `warm` one, and compares its result with the reference."""
        if problem.dtype not in engine.dtypes:
            raise Refused(f"no {problem.dtype} on CPUs", here=False)
        needed, available = 3 * problem.case.scores_bytes(), available_bytes()
        if engine.holds_scores and needed > available:
            raise Refused(f"needs some {needed / 2**30:.0f} GiB, found {available / 2**30:.0f}")
        try:
            call = warm or engine.build(problem, setup)
            first, output = timed(call)
            error = problem.error(output)
        except Exception as failure:  # noqa: BLE001  whatever a peer throws, the others go on
            raise Refused(_failed(failure)) from failure
        check_error(problem, error)
        counts = warm or (first >= self.effort_of(problem.case).once and not engine.builds_late)
        return Entrant(call, error, [first] if counts else [])

    def skip(self, engine: Engine, reason: str, where: str = "") -> None:
        entry = {"engine": engine.name, "where": where, "reason": reason}
        if entry not in self.skipped:
            self.skipped.append(entry)

    def progress(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text[:119]}", end="", file=sys.stderr, flush=True)


def case_of(row: dict) -> Case:
    batch, query_len, d_model, num_heads = row["shape"]
    return Case(batch, query_len, row["key_len"], d_model, num_heads, row["case"])


def check_error(problem: Problem, error: float) -> None:
    if problem.is_absurd(error):
        raise Refused(f"wrong, not timed: error {error:.1e}")


def _failed(failure: Exception) -> str:
    first_line = str(failure).strip().partition("\n")[0]
    return f"failed: {type(failure).__name__}: {first_line}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

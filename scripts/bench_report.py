"""The results of `bench_peers.py` as tables, for people and as Markdown.

Results are what `--json` writes: `machine`, `rows` and `skipped`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_cases import CURVE, SELF

Row = dict
_OURS = "mha fused"


@dataclass
class Table:
    """Numbers with headings of at most two lines."""

    title: str
    header: list[str]
    lines: list[list[str]]
    text_columns: tuple[int, ...] = (0,)

    def text(self) -> str:
        upper = [name.partition("\n")[0] for name in self.header]
        lower = [name.partition("\n")[2] for name in self.header]
        shown = [upper, *([lower] if any(lower) else []), *self.lines]
        widths = [max(len(line[i]) for line in shown) for i in range(len(self.header))]
        rule = ["-" * width for width in widths]
        body = [*shown[: -len(self.lines)], rule, *self.lines]
        return "\n".join([self.title, *("  " + self._aligned(line, widths) for line in body)])

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> str:
        cells = (
            cell.ljust(width) if i in self.text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        )
        return "  ".join(cells).rstrip()

    def markdown(self) -> str:
        rule = [":---" if i in self.text_columns else "---:" for i in range(len(self.header))]
        lines = [[name.replace("\n", " ") for name in self.header], rule, *self.lines]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])


def case_text(row: Row) -> str:
    batch, length, d_model, num_heads = row["shape"]
    keys = f"x{row['key_len']}" if row["key_len"] != length else ""
    return f"({batch}, {length}{keys}, {d_model}, {num_heads}) {row['case']}"


def tables(results: dict) -> list[Table]:
    """All that there is to say of `results`."""
    rows = results["rows"]
    found = []
    for dtype, threads in distinct(rows, "dtype", "threads"):
        part = [row for row in rows if (row["dtype"], row["threads"]) == (dtype, threads)]
        peak = next(
            p["gflops"] for p in results["machine"]["peak"] if (p["dtype"], p["threads"]) == (dtype, threads)
        )
        where = f"{dtype}, {threads} thread{'s' if threads > 1 else ''}"
        shapes = [row for row in part if row["case"] != CURVE]
        curve = [row for row in part if row["case"] == CURVE]
        for title, some in ((where, shapes), (f"{where}, over the length", curve)):
            if some:
                found.append(
                    _matrix(f"{title}: GF/s (peak {peak:.0f})", some, lambda row: f"{row['gflops']:.0f}")
                )
                found[-1].lines.append(_errors(some))
        if curve:
            found.append(
                _matrix(f"{where}, over the length: milliseconds", curve, lambda row: short(row["min_ms"]))
            )
        with_memory = [row for row in part if row["extra_bytes"] is not None]
        if with_memory:
            found.append(
                _matrix(
                    f"{where}: MiB that one call takes beyond its inputs and weights",
                    with_memory,
                    lambda row: short(row["extra_bytes"] / 2**20),
                )
            )
    summary = _summary(rows)
    return [*found, summary] if summary.lines else found


def _matrix(title: str, rows: list[Row], cell: Callable[[Row], str]) -> Table:
    """A line for each case, a column for each engine."""
    engines = [engine for (engine,) in distinct(rows, "engine")]
    lines: dict[str, list[str]] = {}
    for row in rows:
        line = lines.setdefault(case_text(row), ["-"] * len(engines))
        line[engines.index(row["engine"])] = cell(row)
    header = ["(B, L, D, H)", *(engine.replace(" ", "\n", 1) for engine in engines)]
    return Table(title, header, [[case, *cells] for case, cells in lines.items()])


def _errors(rows: list[Row]) -> list[str]:
    largest: dict[str, float] = {}
    for row in rows:
        largest[row["engine"]] = max(row["max_error"], largest.get(row["engine"], 0.0))
    return ["largest error", *(f"{error:.0e}" for error in largest.values())]


def _summary(rows: list[Row]) -> Table:
    """One line for each case: where `mha fused` stands."""

    def group(row: Row) -> tuple:
        return (*row["shape"], row["key_len"], row["case"], row["dtype"], row["threads"])

    full = {group(row): row["min_ms"] for row in rows if row["engine"] == _OURS}
    lines = []
    for row in rows:
        if row["engine"] != _OURS:
            continue
        peers = [r for r in rows if group(r) == group(row) and not r["engine"].startswith("mha")]
        best = min(peers, key=lambda peer: peer["min_ms"], default=None)
        unmasked = full.get((*row["shape"], row["key_len"], SELF, row["dtype"], row["threads"]))
        lines.append(
            [
                case_text(row),
                row["dtype"],
                str(row["threads"]),
                short(row["min_ms"]),
                short(row["median_ms"]),
                f"{row['gflops']:.0f}",
                f"{row['percent_of_peak']:.0f}",
                f"{best['min_ms'] / row['min_ms']:.2f}" if best else "-",
                best["engine"] if best else "-",
                f"{row['min_ms'] / unmasked:.2f}" if unmasked and row["case"] not in (SELF, CURVE) else "-",
            ]
        )
    header = [
        "(B, L, D, H)",
        "dtype",
        "threads",
        "least\nms",
        "median\nms",
        "GF/s",
        "% of\npeak",
        "times\npeer",
        "fastest\npeer",
        "of\nself",
    ]
    title = f"{_OURS}: times as fast as the fastest peer, and time in that of the unmasked call"
    return Table(title, header, lines, text_columns=(0, 1, 8))


def footers(results: dict) -> list[str]:
    """What is missing and why, one line each."""
    terms = "GF/s: for causal, half of the L x S products counts. Peak: the best matrix product of this run."
    return [*machine_lines(results["machine"], terms), *told_once(results["skipped"])]


def machine_lines(machine: dict, *terms: str) -> list[str]:
    """What it was measured on, the `terms` of the tables, and whether the machine was busy."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"{machine['cpu_model']}, {machine['cores']} cores, {machine['cpu_capability']}; {packages}",
        *terms,
    ]
    if machine["load_average"] is not None and machine["load_average"] > 0.5:
        lines.append(
            f"The machine was busy: load average {machine['load_average']:.1f} before the first call."
        )
    return lines


def told_once(skipped: list[dict]) -> list[str]:
    """One line for each engine and reason, with the cases that it is about."""
    told: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        told.setdefault((entry["engine"], entry["reason"]), []).append(entry["where"])
    lines = []
    for (engine, reason), places in told.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        lines.append(f"{engine}: {reason}" + (f" ({places[0]}{more})" if places[0] else ""))
    return lines


def distinct(rows: list[Row], *fields: str) -> list[tuple]:
    return list(dict.fromkeys(tuple(row[field] for field in fields) for row in rows))


def short(value: float) -> str:
    """Three digits: 0.123, 1.23, 12.3, 1234."""
    for limit, digits in ((1, 3), (10, 2), (100, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"

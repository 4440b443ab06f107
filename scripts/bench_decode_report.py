"""The results of `bench_decode.py` as tables, for people and as Markdown."""

from collections.abc import Iterator, Sequence

from bench_cases import SELF
from bench_decode_cases import ATTENTION, GENERATION, STEP
from bench_decode_engines import OURS
from bench_report import Row, Table, case_text, distinct, machine_lines, short, told_once

_TITLES = {
    STEP: "one step, the earlier positions cached",
    ATTENTION: "the attention of one step alone",
    SELF: "small inputs, no cache",
    GENERATION: "generation from an empty cache",
}

_FLOOR = "(floor)"


def tables(results: dict) -> list[Table]:
    """For each group and dtype what all calls took, and a summary of where ours stand."""
    rows = results["rows"]
    found = []
    for kind, title in _TITLES.items():
        group = [row for row in rows if row["case"] == kind]
        for (dtype,) in distinct(group, "dtype"):
            found.append(_times(f"{title}, {dtype}", [row for row in group if row["dtype"] == dtype]))
    summary = _summary(rows)
    return [*found, summary] if summary.lines else found


def _same_call(row: Row) -> tuple:
    return (*row["shape"], row["key_len"], row["case"], row["dtype"], row["threads"])


def _ours(rows: Sequence[Row]) -> dict[tuple, Row]:
    return {_same_call(row): row for row in rows if row["engine"] in OURS}


def _with_floors(rows: Sequence[Row]) -> Iterator[Row]:
    """`rows`, and after those of each call what reading its weights takes."""
    for row, following in zip(rows, [*rows[1:], None]):
        yield row
        if row["floor_ms"] and (following is None or _same_call(following) != _same_call(row)):
            yield {**row, "engine": _FLOOR, "min_ms": row["floor_ms"], "median_ms": None, "max_error": 0}


def _times(title: str, rows: list[Row]) -> Table:
    """A line for each case and engine, and three columns for each number of threads."""
    generation = rows[0]["case"] == GENERATION
    threads = sorted({row["threads"] for row in rows})
    ours = _ours(rows)
    cells: dict[tuple[str, str], list[str]] = {}
    errors: dict[tuple[str, str], float] = {}
    for row in _with_floors(rows):
        name, mine = (case_text(row), row["engine"]), ours.get(_same_call(row))
        errors[name] = max(row["max_error"], errors.get(name, 0))
        if generation:
            times = [short(row["min_ms"] / 1e3), short(row["min_ms"] * 1e3 / row["key_len"])]
        else:
            times = [short(row["min_ms"] * 1e3), short(row["median_ms"] * 1e3) if row["median_ms"] else "-"]
        start = 3 * threads.index(row["threads"])
        line = cells.setdefault(name, ["-"] * (3 * len(threads)))
        line[start : start + 3] = [*times, f"{row['min_ms'] / mine['min_ms']:.2f}" if mine else "-"]
    units = ("s in all", "us/step", "of ours") if generation else ("least us", "median us", "of ours")
    counts = [f"{count} thread{'s' if count > 1 else ''}" for count in threads]
    return Table(
        title,
        ["(B, L, D, H)", "engine", *(f"{count}\n{unit}" for count in counts for unit in units), "error"],
        [[*name, *line, f"{errors[name]:.0e}" if errors[name] else "-"] for name, line in cells.items()],
        text_columns=(0, 1),
    )


def _summary(rows: list[Row]) -> Table:
    """A line for each call of ours."""
    ours = _ours(rows)
    lines = []
    for call, row in ours.items():
        peers = [r for r in rows if _same_call(r) == call and not r["engine"].startswith("mha")]
        best = min(peers, key=lambda peer: peer["min_ms"], default=None)
        single = ours.get(_same_call({**row, "dtype": "float32"})) if row["dtype"] != "float32" else None
        lines.append(
            [
                case_text(row),
                row["dtype"],
                str(row["threads"]),
                short(row["min_ms"] * 1e3 / (row["key_len"] if row["case"] == GENERATION else 1)),
                f"{best['min_ms'] / row['min_ms']:.2f}" if best else "-",
                best["engine"] if best else "-",
                f"{row['min_ms'] / row['floor_ms']:.2f}" if row["floor_ms"] else "-",
                f"{single['min_ms'] / row['min_ms']:.2f}" if single else "-",
            ]
        )
    header = [
        "(B, L, D, H)",
        "dtype",
        "threads",
        "us",
        "times\npeer",
        "fastest\npeer",
        "of the\nfloor",
        "times\nfloat32",
    ]
    title = (
        "ours: times as fast as the fastest peer and as our float32, and time in that of reading the weights"
    )
    return Table(title, header, lines, text_columns=(0, 1, 5))


def footers(results: dict) -> list[str]:
    """Terms, and what is missing and why, one line each."""
    return [
        *machine_lines(
            results["machine"],
            "of ours: the least time in that of this library; above 1 the peer is slower.",
            f"{_FLOOR}: as many bytes read as weights and cache have, in the same rounds and by as many threads."
            " The best of PyTorch's sums of float32 and int64, and its maximum of int32.",
        ),
        *told_once(results["skipped"]),
    ]

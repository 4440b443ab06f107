"""What the commands of the benchmarks share: options, and results that are loaded, shown and written."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from bench_cases import DTYPES
from bench_engines import LIBRARY
from bench_report import Table
from safetensors_file import check_writable, write_whole_file


class Parser(argparse.ArgumentParser):
    """Its epilogue is text as it stands; an error is one line, where argparse would print the usage too."""

    def __init__(self, prog: str, *, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) != 4 or min(sizes) < 1 or sizes[2] % sizes[3] != 0:
        raise argparse.ArgumentTypeError(
            f"expected B,L,D,H with H dividing D, such as 8,512,768,12, found {text!r}"
        )
    return sizes


def _threads(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > 1024:
        raise argparse.ArgumentTypeError(f"expected numbers of threads, such as 1,2, found {text!r}")
    return sorted(set(counts))


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(DTYPES):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(DTYPES)}, found {text!r}")
    return [name for name in DTYPES if name in names]


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, found {text!r}: {error}") from None


def add_what_to_measure(parser: Parser, *, shapes: str, row: str, quick: str) -> None:
    """`shapes` and `quick` are help; `row` is an example of what --only searches."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    what = parser.add_argument_group("what to measure (defaults in brackets)")
    what.add_argument("--shapes", type=_shape, nargs="+", metavar="B,L,D,H", help=shapes)
    what.add_argument(
        "--threads",
        type=_threads,
        default=sorted({1, cores}),
        metavar="N,N",
        help=f"numbers of threads [{','.join(map(str, sorted({1, cores})))}]",
    )
    what.add_argument(
        "--dtypes", type=_dtypes, default=list(DTYPES), metavar="NAME,NAME", help=f"[{','.join(DTYPES)}]"
    )
    what.add_argument(
        "--only",
        type=_regex,
        default=re.compile(""),
        metavar="REGEX",
        help=f"only rows such as '{row}' that it is found in",
    )
    what.add_argument("--quick", action="store_true", help=quick)
    what.add_argument(
        "--library",
        type=Path,
        default=LIBRARY,
        metavar="FILE",
        help="libmha_ops.so [build/release/libmha_ops.so]",
    )


def add_what_to_write(parser: Parser) -> argparse._ArgumentGroup:
    output = parser.add_argument_group("what to write, beside the tables on standard output")
    output.add_argument("--json", type=Path, metavar="FILE", help="all numbers")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    output.add_argument(
        "--load", type=Path, metavar="FILE", help="measure nothing: take the numbers of an earlier --json"
    )
    return output


def run_command(parser: Parser, work: Callable[[], None], writes: Sequence[Path | None]) -> int:
    """Does the work and returns the exit status. That `writes` can be written is checked before."""
    try:
        for path in writes:
            if path is not None:
                check_writable(path, overwrite=True)
        work()
    except (ValueError, OSError) as error:
        parser.error(str(error).strip().partition("\n")[0])
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is written", file=sys.stderr)
        return 130
    return 0


def load_results(path: Path, expected: str) -> dict:
    """What --json has written, in the format `expected`."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected what --json writes, found no JSON: {error}") from None
    if not isinstance(results, dict) or results.get("format") != expected:
        raise ValueError(f'{path}: expected what --json writes, found no "format": "{expected}"')
    return results


def write_results(
    results: dict, tables: Sequence[Table], notes: Sequence[str], options: argparse.Namespace
) -> None:
    print("\n\n".join([*(table.text() for table in tables), "\n".join(notes)]))
    if options.json is not None:
        text = json.dumps(results, indent=1, allow_nan=False) + "\n"
        write_whole_file(options.json, [text.encode()], overwrite=True)
    if options.markdown is not None:
        listed = "\n".join(f"- {note}" for note in notes)
        text = "\n\n".join([*(table.markdown() for table in tables), listed]) + "\n"
        write_whole_file(options.markdown, [text.encode()], overwrite=True)

#!/usr/bin/env python3
"""How fast is mha? This library against what Python has, on this machine: see `--help`."""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch

from bench_cases import DTYPES
from bench_engines import LIBRARY, Engine, all_engines, load_library
from bench_report import footers, tables
from bench_run import CURVE_ENGINES, FULL, QUICK, Run, packages_of
from safetensors_file import check_writable, write_whole_file

_DESCRIPTION = """\
Time the C++ library and its Python peers in one process, on the same weights and inputs. The engines take turns; what
each computes is compared with the lesson in float64 before its time counts.
"""

_EPILOG = """\
examples:
  Everything. With --quick it takes some five minutes on two idle cores, without it several times as long.
    %(prog)s --json bench.json --markdown bench.md --plot bench.png

  One shape of your own, in every kind of case (unmasked, masked, causal, cross-attention).
    %(prog)s --shapes 16,197,768,12

  Our fused module against ONNX Runtime and OpenVINO, on one thread, in float32.
    %(prog)s --threads 1 --dtypes float32 --only 'mha fused|ONNX|OpenVINO'

  The tables and the plot again, without measuring.
    %(prog)s --load bench.json --plot bench.png

engines:
{engines}

Peers that are not installed are left out. All of them, and the plot:
  pip install {packages}

what is measured:
  Time        of a call with inputs and weights at hand, under torch.inference_mode: the least and the median. What a peer
              can prepare once (packed weights, compiled code, a mask in its own form) is prepared before.
  GF/s        FLOPs of the module over the least time: 4 B (L + S) D^2 for the projections, 4 B L S D for the products of
              queries, keys and values, of which a causal call counts half. Other masks save no FLOPs.
  Peak        the fastest matrix product seen in the run, for each dtype and number of threads: F.linear and oneDNN with
              packed weights, in several sizes. It is tried again in every round.
  Error       the largest deviation from the float64 result. An engine whose error is no rounding error is not timed.
  Memory      how far one call raises the memory of a process that has run it before (Linux only): temporaries and the
              output. Measured with the most threads; with --quick for the curve only.
  Curve       (1, L, 512, 8) for L from 128 to 8192, in float32, with the most threads, for: {curve}.

ONNX Runtime runs without spinning threads, which would disturb whoever comes next; its CPU kernels have no bfloat16.
A busy machine makes every number worse: stop what else runs.

exit status: 0 measured, 2 bad usage.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the usage too."""
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


def _parser(engines: Sequence[Engine]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bench_peers.py",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(
            engines="\n".join(f"  {engine.name:19} {engine.about}" for engine in engines),
            packages=" ".join(packages_of(engines)),
            curve=", ".join(CURVE_ENGINES),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    what = parser.add_argument_group("what to measure (defaults in brackets)")
    what.add_argument(
        "--shapes", type=_shape, nargs="+", metavar="B,L,D,H", help="these shapes alone, and no curve"
    )
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
        help="only rows such as '(8, 512, 768, 12) causal float32 threads=2 mha fused' that it is found in",
    )
    what.add_argument(
        "--quick", action="store_true", help="fewer calls of everything, and memory for the curve only"
    )
    what.add_argument(
        "--library",
        type=Path,
        default=LIBRARY,
        metavar="FILE",
        help="libmha_ops.so [build/release/libmha_ops.so]",
    )
    output = parser.add_argument_group("what to write, beside the tables on standard output")
    output.add_argument("--json", type=Path, metavar="FILE", help="all numbers")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="a picture (.png or .svg); needs matplotlib"
    )
    output.add_argument(
        "--load", type=Path, metavar="FILE", help="measure nothing: take the numbers of an earlier --json"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    engines = all_engines()
    parser = _parser(engines)
    options = parser.parse_args(argv)
    try:
        for path in (options.json, options.markdown, options.plot):
            if path is not None:
                check_writable(path, overwrite=True)
        if options.plot is not None and find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install matplotlib")
        results = _loaded(options.load) if options.load else _measured(options, engines)
        _write(results, options)
    except (ValueError, OSError) as error:
        parser.error(str(error).strip().partition("\n")[0])
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is written", file=sys.stderr)
        return 130
    return 0


def _loaded(path: Path) -> dict:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected what --json writes, found no JSON: {error}") from None
    if not isinstance(results, dict) or results.get("format") != "mha.bench/1":
        raise ValueError(f'{path}: expected what --json writes, found no "format": "mha.bench/1"')
    return results


def _measured(options: argparse.Namespace, engines: Sequence[Engine]) -> dict:
    load_library(options.library)
    run = Run(
        engines,
        shapes=options.shapes,
        threads=options.threads,
        dtypes=options.dtypes,
        only=options.only,
        effort=QUICK if options.quick else FULL,
        library=options.library,
    )
    with torch.inference_mode():
        run.measure()
    if not run.rows:
        raise ValueError(f"--only {options.only.pattern!r}: no row is called that, or none could be measured")
    return run.results()


def _write(results: dict, options: argparse.Namespace) -> None:
    found, notes = tables(results), footers(results)
    print("\n\n".join([*(table.text() for table in found), "\n".join(notes)]))
    if options.json is not None:
        text = json.dumps(results, indent=1, allow_nan=False) + "\n"
        write_whole_file(options.json, [text.encode()], overwrite=True)
    if options.markdown is not None:
        text = (
            "\n\n".join([*(table.markdown() for table in found), "\n".join(f"- {note}" for note in notes)])
            + "\n"
        )
        write_whole_file(options.markdown, [text.encode()], overwrite=True)
    if options.plot is not None:
        from bench_plot import plot

        write_whole_file(options.plot, [plot(results, options.plot.suffix)], overwrite=True)


if __name__ == "__main__":
    sys.exit(main())

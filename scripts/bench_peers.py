#!/usr/bin/env python3
"""How fast is mha? This library against what Python has, on this machine: see `--help`."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from bench_command import (
    Parser,
    add_what_to_measure,
    add_what_to_write,
    load_results,
    run_command,
    write_results,
)
from bench_engines import Engine, all_engines, load_library
from bench_report import footers, tables
from bench_rounds import packages_of
from bench_run import CURVE_ENGINES, FORMAT, FULL, QUICK, Run
from safetensors_file import write_whole_file

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


def _parser(engines: Sequence[Engine]) -> Parser:
    parser = Parser(
        "bench_peers.py",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(
            engines="\n".join(f"  {engine.name:19} {engine.about}" for engine in engines),
            packages=" ".join([*packages_of(engines), "matplotlib"]),
            curve=", ".join(CURVE_ENGINES),
        ),
    )
    add_what_to_measure(
        parser,
        shapes="these shapes alone, and no curve",
        row="(8, 512, 768, 12) causal float32 threads=2 mha fused",
        quick="fewer calls of everything, and memory for the curve only",
    )
    add_what_to_write(parser).add_argument(
        "--plot", type=Path, metavar="FILE", help="a picture (.png or .svg); needs matplotlib"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    engines = all_engines()
    parser = _parser(engines)
    options = parser.parse_args(argv)

    def work() -> None:
        if options.plot is not None and find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install matplotlib")
        results = load_results(options.load, FORMAT) if options.load else _measured(options, engines)
        write_results(results, tables(results), footers(results), options)
        if options.plot is not None:
            from bench_plot import plot

            write_whole_file(options.plot, [plot(results, options.plot.suffix)], overwrite=True)

    return run_command(parser, work, (options.json, options.markdown, options.plot))


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


if __name__ == "__main__":
    sys.exit(main())

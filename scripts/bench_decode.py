#!/usr/bin/env python3
"""How fast does mha generate? This library against what Python has, on this machine: see `--help`."""

import argparse
import sys
from collections.abc import Mapping, Sequence

import torch

from bench_command import (
    Parser,
    add_what_to_measure,
    add_what_to_write,
    load_results,
    run_command,
    write_results,
)
from bench_decode_engines import CHUNK, engines_by_kind
from bench_decode_report import footers, tables
from bench_decode_runtimes import WINDOW
from bench_decode_run import FORMAT, FULL, QUICK, DecodeRun
from bench_engines import Engine, load_library
from bench_rounds import packages_of

_DESCRIPTION = """\
Time the C++ library and its Python peers where few positions are computed at once: steps of generation with a cache,
and small inputs without one. All in one process, on the same weights and inputs. The engines take turns; what each
computes is compared with the lesson in float64 before its time counts.
"""

_EPILOG = """\
examples:
  Everything. With --quick it takes a minute or two on two idle cores, without it four or five.
    %(prog)s --json decode.json --markdown decode.md

  Steps with a cache alone, on one thread, in float32.
    %(prog)s --threads 1 --dtypes float32 --only ' (step|attention) '

  A size of your own: a step with 4096 positions, its attention, all positions at once, and 4096 steps.
    %(prog)s --shapes 1,4096,768,12

  The tables again, without measuring.
    %(prog)s --load decode.json

what is measured, and by which engines:
{engines}

Peers that are not installed are left out. All of them:
  pip install {packages}

How the time is told:
  Time        of a call with inputs and weights at hand, under torch.inference_mode: the least and the median. What can
              be prepared once (packed weights, compiled code, memory of the cache) is prepared before.
  Step        always the same one. Our cache is cut before each call, which is not timed; in PyTorch and ONNX Runtime
              the call writes to the same place again; the state of OpenVINO, which can only be replaced, grows from
              {window} positions below the length to {window} above.
  Generation  all steps. Engines take turns after every {chunk}; of each such part the least time of all passes counts.
  Floor       the least time in which the same threads read as many bytes as weights and cache have: the best of several
              readers in the whole run. Only from 1 MiB on: below, calling a reader takes longer than reading.
  Error       the largest deviation from the float64 result. An engine whose error is no rounding error is not timed.

ONNX Runtime runs without spinning threads, which would disturb whoever comes next; its CPU kernels have no bfloat16.
A busy machine makes every number worse: stop what else runs.

exit status: 0 measured, 2 bad usage.
"""

_TOLD = {
    "step": "the last of S positions through the whole module (1xS in the tables), the others in the cache",
    "attention": "the attention of this step alone, its queries, keys and values at hand",
    "self": "the whole module on few rows, without cache",
    "generation": "steps from an empty cache, with the most threads",
}


def _parser(engines: Mapping[str, Sequence[Engine]]) -> Parser:
    told = []
    for kind, some in engines.items():
        told.append(f"  {kind}: {_TOLD[kind]}")
        told += [f"    {engine.name:19} {engine.about}" for engine in some]
    every = [engine for some in engines.values() for engine in some]
    parser = Parser(
        "bench_decode.py",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(
            engines="\n".join(told), packages=" ".join(packages_of(every)), chunk=CHUNK, window=WINDOW
        ),
    )
    add_what_to_measure(
        parser,
        shapes="these sizes alone; L is also the number of positions that a step sees, and of steps",
        row="(1, 1x2048, 1024, 16) step float32 threads=2 mha cache",
        quick=f"fewer calls of everything, and {QUICK.steps} steps of generation in place of {FULL.steps}",
    )
    add_what_to_write(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    engines = engines_by_kind()
    parser = _parser(engines)
    options = parser.parse_args(argv)

    def work() -> None:
        results = load_results(options.load, FORMAT) if options.load else _measured(options, engines)
        write_results(results, tables(results), footers(results), options)

    return run_command(parser, work, (options.json, options.markdown))


def _measured(options: argparse.Namespace, engines: Mapping[str, Sequence[Engine]]) -> dict:
    load_library(options.library)
    run = DecodeRun(
        engines,
        shapes=options.shapes,
        threads=options.threads,
        dtypes=options.dtypes,
        only=options.only,
        plan=QUICK if options.quick else FULL,
    )
    with torch.inference_mode():
        run.measure()
    if not run.rows:
        raise ValueError(f"--only {options.only.pattern!r}: no row is called that, or none could be measured")
    return run.results()


if __name__ == "__main__":
    sys.exit(main())

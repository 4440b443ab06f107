"""Writes reference cases: what multi-head attention computes in Python, step by step, for C++ to do again.

As a command, for the lesson's module: see `--help`. As a library, for any module with the lesson's attributes
and `forward(query, key, value, mask)`:

    from export_reference import export_case
    export_case(model.encoder[0].attn, {"query": x, "mask": mask}, "encoder-0.safetensors")
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from checkpoint import read_attention_weights
from module_files import SUFFIXES, path_beside, write_module_file
from reference_case import export_case
from reference_grid import grid_cases
from reference_inputs import Case, make_inputs, make_module
from safetensors_file import check_writable

__all__ = ["export_case", "main"]

_DESCRIPTION = """\
Run the lesson's MultiHeadAttention in PyTorch and write what it computed as a reference case: weights,
inputs, every step, outputs, gradients, and the same in float64. `mha verify FILE` computes it again in C++
and says where it differs.
"""

_EPILOG = """\
examples:
  The lesson's question: 32 sequences of 50 tokens, 512 features, 8 heads.
    %(prog)s --out lesson.safetensors

  Training under a causal mask, with dropout, on two threads.
    %(prog)s --mode train --dropout 0.1 --mask causal --threads 2 --out train.safetensors

  A decoder's cross-attention to a longer memory whose end is padding.
    %(prog)s --cross --seq-len 20 --key-len 80 --mask padding --out cross.safetensors

  Your own trained weights: one attention block of a checkpoint. --num-heads is not in the file.
    %(prog)s --weights model.pt --prefix encoder.0.attn --num-heads 12 --out encoder-0.safetensors

  The weights in other files beside the case (c.torchscript.pt, c.state_dict.pt, c.weights.safetensors).
    %(prog)s --also torchscript state_dict safetensors --out c.safetensors

  Every case the tests need.
    %(prog)s --grid build/reference

Masks are true where a query may look. causal: no later position (top left). padding: the end of each sequence
is masked. random: seven of ten may be seen. full-row: as random, with one query that may see nothing.

Bits are equal again only with the same PyTorch build, processor model, number of threads and device; the case
records them. For a model of your own, or inputs of your own, call export_case() from Python:

    from export_reference import export_case
    export_case(module, {"query": x, "mask": mask}, "case.safetensors")

exit status: 0 written, 2 bad usage or unreadable input.
"""

# The shape each mask has in practice.
_MASKS = {
    "none": ("none", "ls"),
    "causal": ("causal", "ls"),
    "padding": ("padding", "b11s"),
    "random": ("random", "b1ls"),
    "full-row": ("full_row", "b1ls"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the usage too."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _length(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, found {value}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be positive, found {value}")
    return value


def _threads(text: str) -> int:
    value = _count(text)
    if value > 1024:
        raise argparse.ArgumentTypeError(f"must be at most 1024, found {value}")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be in [0, 1], found {text}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be in [0, 2**63), found {value}")
    return value


# What argparse calls them when the text is not a number at all.
for _type, _name in ((_length, "length"), (_count, "number"), (_threads, "number"), (_probability, "probability"), (_seed, "seed")):
    _type.__name__ = _name


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="export_reference.py",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    target = parser.add_argument_group("what to write").add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, metavar="FILE", help="one case, to this .safetensors file")
    target.add_argument("--grid", type=Path, metavar="DIR", help="all cases of the tests, into this folder")

    case = parser.add_argument_group("the case (defaults in brackets; without effect on --grid)")
    case.add_argument("--batch", type=_count, default=32, metavar="N", help="sequences [%(default)s]")
    case.add_argument(
        "--seq-len", type=_length, default=50, metavar="N", help="length of the query [%(default)s]"
    )
    case.add_argument(
        "--key-len", type=_length, metavar="N", help="length of key and value, with --cross [--seq-len]"
    )
    case.add_argument("--d-model", type=_count, metavar="N", help="features [512, or as in --weights]")
    case.add_argument(
        "--num-heads", type=_count, metavar="N", help="heads; divides d_model [8; needed with --weights]"
    )
    case.add_argument(
        "--dropout", type=_probability, default=0.1, metavar="P", help="of the weights [%(default)s]"
    )
    case.add_argument("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32")
    case.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    case.add_argument(
        "--mode", choices=["eval", "train"], default="eval", help="dropout acts in train [%(default)s]"
    )
    case.add_argument("--mask", choices=list(_MASKS), default="none")
    attention = case.add_mutually_exclusive_group()
    attention.add_argument(
        "--self", dest="attention", action="store_const", const="self", help="one tensor [this]"
    )
    attention.add_argument(
        "--cross", dest="attention", action="store_const", const="cross", help="key is value"
    )
    case.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of weights, inputs, dropout [%(default)s]"
    )
    case.add_argument(
        "--threads", type=_threads, metavar="N", help="threads to compute with [as many as PyTorch takes]"
    )

    weights = parser.add_argument_group("your own weights")
    weights.add_argument(
        "--weights", type=Path, metavar="FILE", help="torch.save, TorchScript or safetensors file"
    )
    weights.add_argument(
        "--prefix", metavar="P", help="name of the attention block in it, e.g. encoder.0.attn"
    )

    files = parser.add_argument_group("what the file holds")
    files.add_argument("--no-grads", action="store_true", help="no gradients; forward runs under no_grad")
    files.add_argument("--no-float64", action="store_true", help="no results of the same case in float64")
    files.add_argument(
        "--also", nargs="+", default=[], choices=list(SUFFIXES), help="weights beside the case as well"
    )
    files.add_argument("--force", action="store_true", help="overwrite files")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    try:
        if options.grid:
            _write_grid(options.grid, force=options.force)
        else:
            _write_one(options, arguments)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        # What PyTorch refuses (it explains over several lines) is bad usage too.
        parser.error(str(error).strip().partition("\n")[0])
    except KeyboardInterrupt:
        print("\ninterrupted: no file is half written", file=sys.stderr)
        return 130
    finally:
        torch.set_num_threads(threads)
    return 0


def _write_one(options: argparse.Namespace, arguments: list[str]) -> None:
    case, weights = _case_of(options)
    outputs = [options.out, *(path_beside(options.out, kind) for kind in options.also)]
    for path in outputs:
        check_writable(path, overwrite=options.force)
    torch.set_num_threads(case.threads)
    module = make_module(case)
    if weights is not None:
        module.load_state_dict(weights)
    inputs = make_inputs(case)
    export_case(
        module,
        inputs,
        options.out,
        mode=case.mode,
        seed=case.seed,
        grads=case.grads,
        float64=not options.no_float64,
        init_seed=None if weights else case.init_seed,
        source=_source(arguments),
        metadata={"mask": options.mask},
        overwrite=options.force,
    )
    for kind in options.also:
        write_module_file(kind, module, inputs, options.out, overwrite=options.force)
    for path in outputs:
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


def _case_of(options: argparse.Namespace) -> tuple[Case, dict[str, torch.Tensor] | None]:
    """The case the options describe, and the weights they name."""
    attention = options.attention or "self"
    key_len = options.seq_len if options.key_len is None else options.key_len
    if attention == "self" and key_len != options.seq_len:
        raise ValueError(f"--key-len {key_len} differs from --seq-len {options.seq_len}: that needs --cross")
    if options.dtype == "float16" and options.mask != "none":
        raise ValueError(
            "--dtype float16 takes no --mask: PyTorch refuses the fill of -1e9, which float16 cannot hold"
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device")
    if options.prefix is not None and options.weights is None:
        raise ValueError("--prefix names a block in --weights, which is absent")
    if options.weights is not None and options.num_heads is None:
        raise ValueError("--weights needs --num-heads: the number of heads is not in the file")
    num_heads = options.num_heads or 8
    weights = None
    d_model = options.d_model or 512
    if options.weights is not None:
        weights = read_attention_weights(options.weights, options.prefix or "")
        d_model = weights["W_q.weight"].shape[0]
        if options.d_model not in (None, d_model):
            raise ValueError(
                f"--d-model {options.d_model}: {options.weights} holds weights of {d_model} features"
            )
    if d_model % num_heads != 0:
        raise ValueError(
            f"--num-heads {num_heads} does not divide the {d_model} features of the model"
        )
    mask, mask_shape = _MASKS[options.mask]
    case = Case(
        dtype=options.dtype,
        mode=options.mode,
        dropout=options.dropout,
        attention=attention,
        batch=options.batch,
        query_len=options.seq_len,
        key_len=key_len,
        d_model=d_model,
        num_heads=num_heads,
        mask=mask,
        mask_shape=mask_shape,
        weights="init",
        threads=options.threads or torch.get_num_threads(),
        grads=not options.no_grads,
        device=options.device,
        seed=options.seed,
    )
    return case, weights


def _source(arguments: list[str]) -> str:
    """The command that writes the case again; where it goes is no part of the case."""
    told = list(arguments)
    for name in ("--out", "--force"):
        for index, argument in enumerate(told):
            if argument == name or argument.startswith(name + "="):
                del told[index : index + (2 if argument == "--out" else 1)]
                break
    return " ".join(["export_reference.py", *told])


def _write_grid(folder: Path, *, force: bool) -> None:
    cases = grid_cases()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{case.name}.safetensors" for case in cases]
    for path in paths:
        check_writable(path, overwrite=force)
    begin = time.monotonic()
    for number, (case, path) in enumerate(zip(cases, paths), 1):
        if sys.stderr.isatty():
            print(f"\r\033[K[{number}/{len(cases)}] {case.name}", end="", file=sys.stderr, flush=True)
        torch.set_num_threads(case.threads)
        export_case(
            make_module(case),
            make_inputs(case),
            path,
            mode=case.mode,
            seed=case.seed,
            grads=case.grads,
            init_seed=case.init_seed,
            source="export_reference.py --grid",
            metadata={"case": case.name, "mask": case.mask},
            overwrite=force,
        )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(cases)} cases, {size / 1e6:.0f} MB, {time.monotonic() - begin:.0f} s: {folder}")


if __name__ == "__main__":
    sys.exit(main())

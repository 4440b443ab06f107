"""The files that a module's weights travel in, written for an exported case's module."""

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fresh_tensors import fresh_copy, fresh_module
from safetensors_file import safetensors_bytes, write_whole_file

SUFFIXES = {
    "torchscript": ".torchscript.pt",
    "state_dict": ".state_dict.pt",
    "safetensors": ".weights.safetensors",
}


def path_beside(case: Path, kind: str) -> Path:
    """Where the file of `kind` belonging to `case` goes."""
    return case.with_name(case.name.removesuffix(".safetensors") + SUFFIXES[kind])


def write_module_file(
    kind: str, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], case: Path, *, overwrite: bool
) -> Path:
    """Writes the file of `kind` (a key of `SUFFIXES`) beside `case` and returns its path."""
    writers: dict[str, Callable[[], list[bytes]]] = {
        "torchscript": lambda: [_torchscript(module, inputs)],
        "state_dict": lambda: [_saved(lambda file: torch.save(module.state_dict(), file))],
        "safetensors": lambda: safetensors_bytes(module.state_dict(), {}),
    }
    path = path_beside(case, kind)
    write_whole_file(path, writers[kind](), overwrite=overwrite)
    return path


def _torchscript(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> bytes:
    """A trace in eval mode, called as `(query, key, value)`, with `mask` last if there is one."""
    names = {"query": "query", "key": "key" if "key" in inputs else "query"}
    names["value"] = "value" if "value" in inputs else names["key"]
    if "mask" in inputs:
        names["mask"] = "mask"
    # Copies, for the tracer takes one tensor passed thrice for one input.
    examples = tuple(fresh_copy(name, inputs[source]) for name, source in names.items())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # d_k, which the trace holds as a constant, is one.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(fresh_module(module, training=False), examples, check_trace=False)
        return _saved(lambda file: torch.jit.save(traced, file))


def _saved(save: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()

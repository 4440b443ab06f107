"""Writes safetensors files whose bytes depend on nothing but the arguments.

The `safetensors` package keeps `__metadata__` in a hash table with a random seed, so its files differ from
one process to the next. The format is small enough to write here: header length, JSON header, data.
"""

import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def safetensors_bytes(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> list[bytes]:
    """The file as a list of parts, to be written one after the other."""
    if sys.byteorder != "little":
        raise OSError("safetensors files are little-endian; this machine is not")
    # Wide items first: after a header of a multiple of 8 bytes every tensor is then aligned to its items.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    data = []
    begin = 0
    for name in names:
        tensor = tensors[name].detach().cpu()
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name}: safetensors cannot hold {tensor.dtype}")
        # Through 1-D memory of its own: one element may have any strides, and a 0-d tensor is no row of bytes.
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
        data.append(flat.view(torch.uint8).numpy().tobytes())
        end = begin + len(data[-1])
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *data]


def write_whole_file(path: Path, parts: list[bytes], *, overwrite: bool) -> None:
    """Writes `parts` to a temporary name beside `path` and renames it: nobody ever sees half a file."""
    path = path.resolve()  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
        check_writable(path, overwrite=overwrite)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Raises when `path` cannot be written: before the work, not after."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no regular file and is not replaced")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already and is not overwritten")


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, overwrite: bool
) -> None:
    """Writes `tensors` (any strides, any device) and `metadata` to `path`, always in the same bytes."""
    write_whole_file(path, safetensors_bytes(tensors, metadata), overwrite=overwrite)

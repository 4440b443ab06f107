#!/usr/bin/env python3
"""Compares what torch.load makes of files that the C++ tests wrote with their safetensors twins, bit for bit.

    check_written_files.py FOLDER
"""

import pathlib
import sys
import zipfile

import torch
from safetensors.torch import load_file

MODES = [{"mmap": True}, {}, {"weights_only": False}, {"map_location": "cpu", "mmap": True}]


def bits(tensor):
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def check(path):
    twin = load_file(path.with_suffix(".safetensors"))
    for mode in MODES[:1] if len(twin) > 10_000 else MODES:
        tensors = torch.load(path, **{"weights_only": True, **mode})
        assert type(tensors) is dict, type(tensors)
        assert set(tensors) == set(twin), set(tensors) ^ set(twin)
        for name, tensor in tensors.items():
            assert tensor.data_ptr() % 64 == 0 or tensor.storage_offset() != 0 or not tensor.numel(), name
            if twin[name].dtype != torch.uint8 or tensor.dtype == torch.uint8:
                assert tensor.dtype == twin[name].dtype, (name, tensor.dtype)
                assert tensor.shape == twin[name].shape, (name, tensor.shape)
            assert torch.equal(bits(tensor), bits(twin[name])), name
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    return len(tensors)


def check_sharing(path):
    for tensors in (torch.load(path), torch.load(path, mmap=True)):
        for name in ("tied", "transposed", "part"):
            assert tensors[name].untyped_storage().data_ptr() == tensors["a"].untyped_storage().data_ptr(), name
        assert tensors["k"].untyped_storage().data_ptr() == tensors["q"].untyped_storage().data_ptr()
        assert tensors["transposed"].stride() == (1, 10)
        assert tensors["holes"].untyped_storage().nbytes() == 400


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.pt"))
    assert len(paths) == 5, paths
    for path in paths:
        print(f"{path.name}: {check(path)} tensors, bit for bit")
    check_sharing(pathlib.Path(sys.argv[1]) / "shared.pt")


if __name__ == "__main__":
    main()

import json
import os
import struct

import pytest
import torch
from safetensors import safe_open

from safetensors_file import safetensors_bytes, write_safetensors


def test_reads_back(tmp_path, same_bits):
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    dtypes += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(3, 0, 2),
        "strided": torch.arange(12.0)[::5],
    }
    tensors |= {"transposed": torch.arange(6.0).reshape(2, 3).mT, "expanded": torch.ones(1, 2).expand(3, 2)}
    tensors["NaN ü"] = torch.tensor([float("nan"), float("inf"), -0.0])
    path = tmp_path / "file.safetensors"
    write_safetensors(path, tensors, {"b": 'ü"\n', "a": ""}, overwrite=False)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"b": 'ü"\n', "a": ""}
        assert set(file.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert same_bits(file.get_tensor(name), tensor), name


def test_layout_of_the_file():
    """A header of a multiple of 8 bytes, then data without holes, every tensor aligned to its item size."""
    tensors = {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": torch.ones(3, dtype=torch.float64),
        "c": torch.ones(1),
    }
    data = b"".join(safetensors_bytes(tensors, {"k": "v"}))
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert list(header) == ["__metadata__", "b", "c", "a"]
    assert [header[name]["data_offsets"] for name in "bca"] == [[0, 24], [24, 28], [28, 31]]
    assert len(data) == 8 + length + 31


def test_order_of_arguments_does_not_matter():
    a, b = torch.ones(2), torch.zeros(2)
    one = safetensors_bytes({"a": a, "b": b}, {"x": "1", "y": "2"})
    assert one == safetensors_bytes({"b": b, "a": a}, {"y": "2", "x": "1"})


def test_dtypes_that_the_format_lacks():
    with pytest.raises(TypeError, match="z: safetensors cannot hold torch.complex64"):
        safetensors_bytes({"z": torch.ones(2, dtype=torch.complex64)}, {})


def test_one_element_of_any_strides(tmp_path):
    # Contiguous to PyTorch, whatever the strides of a dimension of one element say.
    tensors = {
        "transposed": torch.ones(8, 8).tril().t()[:1, :1],
        "expanded": torch.ones(()).expand(1, 1),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 3),
    }
    path = tmp_path / "one.safetensors"
    write_safetensors(path, tensors, {}, overwrite=False)
    with safe_open(path, "pt") as file:
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="no regular file"):
        write_safetensors(pipe, {"x": torch.ones(1)}, {}, overwrite=True)
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target.safetensors", tmp_path / "link.safetensors"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_safetensors(link, {"x": torch.ones(1)}, {}, overwrite=True)
    assert link.is_symlink() and target.read_bytes() != b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.safetensors", "target.safetensors"]

"""Files of weights as the tests of the tool read and compare them."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

SUFFIXES = [".safetensors", ".SafeTensors", ".pt", ".pth", ".bin", ".ckpt", ".PT"]
LESSON_NAMES = [f"W_{layer}.{kind}" for layer in "qkvo" for kind in ("weight", "bias")]


def load(path: Path) -> dict[str, torch.Tensor]:
    """As Python reads it."""
    return load_file(path) if path.suffix.lower() == ".safetensors" else torch.load(path, weights_only=True)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found[name], tensor) if each.numel()]
        assert not bits or torch.equal(*bits), name


def under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}

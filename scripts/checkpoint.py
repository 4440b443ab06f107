"""Finds the weights of one attention block in whatever file training left behind."""

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch

NAMES = [f"{layer}.{kind}" for layer in ("W_q", "W_k", "W_v", "W_o") for kind in ("weight", "bias")]

# Where checkpoints keep the state dict when they hold more than it.
_NESTED = ("model", "state_dict", "model_state_dict")

# What DataParallel and torch.compile put in front of names.
_WRAPPERS = ("module.", "_orig_mod.")


class CheckpointError(ValueError):
    """One line that names the file, what was expected and what was found."""


def read_attention_weights(path: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """The eight tensors of the block under `prefix` (its final dot is optional), by the lesson's names."""
    prefix = prefix if not prefix or prefix.endswith(".") else prefix + "."
    found: list[str] = []
    for outer, state_dict in _state_dicts(_load(path)):
        # Full names too: `mha inspect` shows them.
        full = {outer + name: tensor for name, tensor in state_dict.items()}
        for names in (state_dict, _without_wrappers(state_dict), full):
            if all(prefix + name in names for name in NAMES):
                return _checked(path, prefix, {name: names[prefix + name] for name in NAMES})
        found += [name for name in state_dict if name not in found]
    expected = ", ".join(prefix + name for name in NAMES)
    raise CheckpointError(
        f"{path}: expected {expected} (mha convert writes other layouts by these names); found {_described(found)}"
    )


def _load(path: Path) -> object:
    """Reads `path` by its content: names lie."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: expected a regular file")
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        if start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size:
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                is_torchscript = any(name.endswith("/constants.pkl") for name in archive.namelist())
            if is_torchscript:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    return torch.jit.load(str(path), map_location="cpu").state_dict()
        # By its content again: given a path, torch.load goes by the suffix .safetensors.
        with open(path, "rb") as file:
            return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # Every reader has its own kinds, and a damaged file can raise any.
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, pickle.UnpicklingError):  # PyTorch's own advice is to run what the file says.
            reason = "found other objects or another format; try mha convert FILE weights.safetensors --keep-names"
        raise CheckpointError(
            f"{path}: expected a torch.save, TorchScript or safetensors file with weights only: {reason}"
        ) from error


def _state_dicts(
    content: object, outer: str = "", depth: int = 2
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """The mappings from names to tensors in a checkpoint with the names they are under, the outermost first."""
    if not isinstance(content, Mapping):
        return
    yield outer, {str(name): tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}
    if depth > 0:
        for name in _NESTED:
            yield from _state_dicts(content.get(name), f"{outer}{name}.", depth - 1)


def _without_wrappers(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stripped = {}
    for name, tensor in state_dict.items():
        while name.startswith(_WRAPPERS):
            name = name.partition(".")[2]
        # A block compiled on its own carries the wrapper in the middle of its names.
        stripped[name.replace("._orig_mod.", ".")] = tensor
    return stripped


def _checked(path: Path, prefix: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    d_model = weights["W_q.weight"].shape[0] if weights["W_q.weight"].dim() else 0
    for name, tensor in weights.items():
        shape = (d_model, d_model) if name.endswith("weight") else (d_model,)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"{path}: {prefix}{name}: expected floating-point numbers of shape {shape}, "
                f"found {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
            )
    return weights


def _described(names: list[str], limit: int = 12) -> str:
    """The blocks that would do, else the names themselves."""
    blocks = [name.removesuffix(NAMES[0]) for name in names if name.endswith(NAMES[0])]
    if blocks:
        return "attention blocks under the prefixes " + ", ".join(repr(block) for block in blocks)
    if not names:
        return "no named tensors"
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")

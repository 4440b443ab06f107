"""What an attention block of any model computes, recorded from outside and written as a reference case.

The projections' layers are watched while the block runs: what goes into those of query, key and value, and
what comes out of the output's, is what the lesson's module must turn into each other. So residuals, norms and
caches around them do not matter. It then runs once more in float64: the twin that errors are judged by.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from safetensors_file import write_safetensors

_EPSILON = torch.finfo(torch.float32).eps
_MASKS = ("attention_mask", "causal_attention_mask", "mask", "position_bias")


@dataclass(frozen=True)
class Parts:
    """Where the layers are below a block: `core` takes the mask and computes, `output` may come after it."""

    core: str
    query: str
    key: str
    value: str
    output: str


@dataclass
class Computed:
    """One call of a block: the lesson's inputs and outputs, the latter in float32 and float64."""

    num_heads: int
    inputs: dict[str, torch.Tensor]
    output: torch.Tensor
    attention_weights: torch.Tensor
    twin: dict[str, torch.Tensor]


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights that make attention neither uniform nor one-hot, and biases that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 2 * parameter.shape[-1] ** -0.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)


def record(
    model: torch.nn.Module,
    call: Callable[[torch.nn.Module], Any],
    parts: Parts,
    prefixes: Iterable[str],
    num_heads: int,
    change: Callable[[dict[str, Any]], None] = lambda arguments: None,
) -> dict[str, Computed]:
    """Runs the model by `call`; what every block computes from its arguments, after `change`."""
    model.eval()
    calls: dict[str, dict[str, Any]] = {}
    hooks = []
    for prefix in prefixes:
        core = _below(model.get_submodule(prefix), parts.core)

        def keep(module, args, kwargs, prefix=prefix):
            bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            more = bound.pop("kwargs", {})
            calls[prefix] = {**bound, **more}

        hooks.append(core.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.no_grad():
        call(model)
    for hook in hooks:
        hook.remove()
    computed = {}
    for prefix in prefixes:
        change(calls[prefix])
        computed[prefix] = _computed(model.get_submodule(prefix), parts, calls[prefix], num_heads)
    return computed


def computed_by(
    run: Callable[[torch.dtype], tuple[torch.Tensor, torch.Tensor]],
    inputs: dict[str, torch.Tensor],
    num_heads: int,
) -> Computed:
    """A block that `run` computes itself, given the dtype: output and attention weights."""
    with torch.no_grad():
        output, attention_weights = run(torch.float32)
        twin = run(torch.float64)
    return Computed(
        num_heads, inputs, output, attention_weights, dict(zip(("output", "attention_weights"), twin))
    )


def _below(module: torch.nn.Module, path: str) -> torch.nn.Module:
    return module.get_submodule(path) if path else module


@contextmanager
def _watched(block: torch.nn.Module, parts: Parts) -> Iterator[dict[str, torch.Tensor]]:
    seen: dict[str, torch.Tensor] = {}

    def see(name: str, index: int):
        def hook(module, args, output):
            seen[name] = (*args, output)[index]

        return hook

    hooks = [
        _below(block, getattr(parts, name)).register_forward_hook(see(name, -1 if name == "output" else 0))
        for name in ("query", "key", "value", "output")
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _run(block: torch.nn.Module, parts: Parts, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    with _watched(block, parts) as seen, torch.no_grad():
        results = _below(block, parts.core)(**arguments)
        if "output" not in seen:
            _below(block, parts.output)(results[0])
    (seen["attention_weights"],) = [
        each for each in results[-1:] if isinstance(each, torch.Tensor) and each.dim() == 4
    ]
    return seen


def _computed(
    block: torch.nn.Module, parts: Parts, arguments: dict[str, Any], num_heads: int
) -> Computed:
    seen = _run(block, parts, arguments)
    twin = _run(copy.deepcopy(block).double(), parts, _double(arguments))
    inputs = {"query": seen["query"]}
    for name, before in (("key", "query"), ("value", "key")):
        if not torch.equal(seen[name], seen[before]):
            inputs[name] = seen[name]
    mask = _kept(arguments, seen["key"].shape[1])
    if mask is not None:
        inputs["mask"] = mask
    return Computed(
        num_heads,
        inputs,
        seen["output"],
        seen["attention_weights"],
        {name: twin[name] for name in ("output", "attention_weights")},
    )


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _double(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_double(each) for each in value)
    return value


def _kept(arguments: dict[str, Any], key_len: int) -> torch.Tensor | None:
    """Where attention is allowed, (B, 1, L or 1, S): masks are added, or are not zero where it is."""
    kept = None
    for name in _MASKS:
        mask = arguments.get(name)
        if mask is None:
            continue
        if mask.dim() == 2:
            here = (mask != 0)[:, None, None, :]
        else:
            here = mask if mask.dtype == torch.bool else mask == 0
        here = here[..., :key_len]
        kept = here if kept is None else kept & here
    return kept


def write_case(
    path: Path, computed: Computed, more: dict[str, str], *, of_twin: bool = False
) -> Path:
    """A case without weights and without an environment: what another program computed, judged by its twin.

    `of_twin`: its outputs are the twin's, rounded, and anything passes: to measure by.
    """
    outputs = {"output": computed.output, "attention_weights": computed.attention_weights}
    if of_twin:
        outputs = {name: tensor.float() for name, tensor in computed.twin.items()}
        more = more | {"tolerance": "1e9"}
    tensors = {f"inputs/{name}": tensor for name, tensor in computed.inputs.items()}
    tensors |= {f"outputs/{name}": tensor for name, tensor in outputs.items()}
    if not of_twin:
        tensors |= {f"float64/{name}": tensor for name, tensor in computed.twin.items()}
    metadata = {
        "format": "mha.reference/1",
        "module": "MultiHeadAttention",
        "d_model": str(computed.output.shape[-1]),
        "num_heads": str(computed.num_heads),
        "dropout": "0.0",
        "mode": "eval",
        "dtype": "float32",
    }
    write_safetensors(path, tensors, metadata | more, overwrite=True)
    return path


def verify_blocks(
    reported: Callable[..., tuple[int, list[dict[str, Any]]]],
    title: str,
    blocks: dict[str, Computed],
    weights: Path,
    folder: Path,
    options: Sequence[str] = (),
    *,
    layout: str = "",
) -> list[tuple[str, ...]]:
    """Verifies every block, once found by `auto` and once as `layout`; returns the rows of errors.

    With `options`, these say where the block is.

    The tool must say `within tolerance` or better: an error against float64 of at most twice PyTorch's own,
    and a few roundings. The same is then asked of the distances it measured from the float64 results.
    """
    paths = []
    for number, (prefix, computed) in enumerate(blocks.items()):
        for of_twin in (False, True):
            path = folder / f"{number}-{of_twin}.safetensors"
            place = {"weights_file": str(weights), "prefix": prefix, "layout": layout if of_twin else "auto"}
            paths.append(write_case(path, computed, {} if options else place, of_twin=of_twin))
    status, cases = reported("verify", *paths, *options)
    rows = []
    for (prefix, computed), ours, against in zip(blocks.items(), cases[::2], cases[1::2], strict=True):
        assert ours["verdict"] in ("bit-exact", "within tolerance"), (title, prefix, ours)
        measured = {tensor["name"]: tensor for tensor in against["tensors"]}
        names = [tensor["name"] for tensor in ours["tensors"]]
        assert names == ["outputs/attention_weights", "outputs/output"]
        for tensor in ours["tensors"]:
            name = tensor["name"].removeprefix("outputs/")
            theirs, twin = getattr(computed, name).double(), computed.twin[name]
            assert not tensor["all_zero"] and torch.isfinite(theirs).all()
            own = (theirs - twin).abs().max().item()
            error = measured[tensor["name"]]["max_abs"]
            assert error <= 2 * own + 9 * _EPSILON * twin.abs().max().item()  # the twin is rounded here
            rows.append(
                (
                    f"{title} {prefix}",
                    name,
                    f"{own:.2e}",
                    f"{error:.2e}",
                    f"{tensor['max_abs']:.2e}",
                    str(tensor["max_ulp"]),
                )
            )
    assert status == 0
    return rows

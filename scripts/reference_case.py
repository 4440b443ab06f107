"""Computes one reference case: what a multi-head attention gives in Python, step by step."""

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from capture_steps import StepCapture
from checkpoint import NAMES
from fresh_tensors import fresh_copy, fresh_module, strides_text
from reference_inputs import fresh_lesson_module
from safetensors_file import check_writable, write_safetensors

FORMAT = "mha.reference/1"
_INTERFACE = ("d_model", "num_heads", "W_q", "W_k", "W_v", "W_o", "dropout", "attention_weights")
_RESERVED = ("weights_file", "prefix", "layout", "tolerance", "init_seed")
_COTANGENT_STREAM = 3_000_003


def export_case(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor | None],
    path: str | Path,
    *,
    mode: str = "eval",
    seed: int = 0,
    grads: bool = True,
    float64: bool = True,
    init_seed: int | None = None,
    source: str | None = None,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Runs `module` on `inputs` and writes one safetensors file: all that is needed to check it elsewhere.

    `module` is any class with the lesson's attributes and `forward(query, key, value, mask)`. It runs as a
    copy, so it stays as it is, and so do the random number generators.

    `inputs` holds `query` and, when they are other tensors, `key`, `value` and `mask`. A missing `key` is the
    very tensor `query`, a missing `value` the very tensor `key`; passing the same object twice says the same.
    It matters for gradients. Strides are kept.

    `seed` is set just before forward, so dropout can be repeated. With `grads`, the gradients of the inputs
    and the parameters for a random cotangent are written; without, forward runs under no_grad. `float64` adds
    the results of the same module in double precision. `init_seed` says that the weights are those of a
    module freshly made after that seed (which is checked). `metadata` adds keys of your own. The number of
    threads is the current one.

    Steps that the class's code does not show from outside are left out, with a warning.
    """
    path = Path(path)
    check_writable(path, overwrite=overwrite)
    _check_arguments(module, inputs, mode, seed, init_seed)
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    aliases = _aliases(inputs)
    stored = {name: tensor for name, tensor in inputs.items() if name not in aliases}
    dtype = module.W_q.weight.dtype

    # Said aloud even when nothing changes: only then is MKL held to this number, as it will be by the reader.
    torch.set_num_threads(torch.get_num_threads())

    plan = _Plan(module, stored, aliases, training=mode == "train", seed=seed, grads=grads)
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.inference_mode(False), torch.set_grad_enabled(grads), torch.random.fork_rng(devices):
        run = _run(plan, capture=True)
        twin = _run(plan, dtype=torch.float64) if float64 and dtype != torch.float64 else None
    if run.hidden:
        warnings.warn(
            f"{type(module).__name__} does not show these steps from outside; the case is written without: "
            + ", ".join(run.hidden),
            stacklevel=2,
        )

    tensors = {f"weights/{name}": tensor for name, tensor in module.state_dict().items()}
    tensors |= {f"inputs/{name}": tensor for name, tensor in stored.items()}
    tensors |= {f"steps/{name}": tensor for name, tensor in run.steps.items()}
    tensors |= {f"outputs/{name}": tensor for name, tensor in run.outputs.items()}
    tensors |= {f"grads/{name}": tensor for name, tensor in run.grads.items()}
    if run.cotangent is not None:
        tensors["grad_outputs/output"] = run.cotangent
    if twin is not None:
        tensors |= {f"float64/{name}": tensor for name, tensor in twin.outputs.items()}
        tensors |= {f"float64/grads/{name}": tensor for name, tensor in twin.grads.items()}

    meant = [key for key in metadata or {} if key in _RESERVED or key.startswith("strides/")]
    if meant:
        raise ValueError(f"metadata {', '.join(map(repr, meant))} would change the meaning of the case")
    said = {
        **{key: str(value) for key, value in (metadata or {}).items()},
        **_environment(),
        "format": FORMAT,
        "module": "MultiHeadAttention",
        "d_model": str(module.d_model),
        "num_heads": str(module.num_heads),
        "dropout": repr(_dropout_of(module)),
        "mode": mode,
        "dtype": str(dtype).removeprefix("torch."),
        "device": module.W_q.weight.device.type,
        "seed": str(seed),
        "source": source if source is not None else f"{type(module).__module__}.{type(module).__qualname__}",
    }
    if init_seed is not None:
        said["init_seed"] = str(init_seed)
    for name, tensor in stored.items():
        strides = strides_text(tensor)
        if strides is not None:
            said[f"strides/inputs/{name}"] = strides
    write_safetensors(path, tensors, said, overwrite=overwrite)


def _check_arguments(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor | None],
    mode: str,
    seed: int,
    init_seed: int | None,
) -> None:
    lacking = [name for name in _INTERFACE if not hasattr(module, name)]
    if lacking:
        raise TypeError(f"{type(module).__name__} lacks {', '.join(lacking)} of the lesson's interface")
    names = set(module.state_dict())
    if names != set(NAMES):
        differing = sorted(names ^ set(NAMES))
        raise TypeError(
            f"{type(module).__name__} must hold the weights and biases of W_q, W_k, W_v, W_o and nothing else; "
            f"missing or surplus: {', '.join(differing)}"
        )
    unknown = [name for name in inputs if name not in ("query", "key", "value", "mask")]
    if unknown or inputs.get("query") is None:
        raise ValueError(
            "inputs must be 'query' and optionally 'key', 'value', 'mask'; "
            f"found {', '.join(map(repr, inputs))}"
        )
    for name in ("query", "key", "value"):
        if inputs.get(name) is not None and inputs[name].dim() != 3:
            raise ValueError(
                f"{name} must be (batch, length, d_model); found shape {tuple(inputs[name].shape)}"
            )
    if mode not in ("eval", "train"):
        raise ValueError(f"mode must be 'eval' or 'train'; found {mode!r}")
    for name, number in (("seed", seed), ("init_seed", init_seed)):
        if number is not None and not 0 <= number < 2**63:
            raise ValueError(f"{name} must be in [0, 2**63); found {number}")
    if init_seed is not None:
        fresh = fresh_lesson_module(
            module.d_model,
            module.num_heads,
            0.0,
            init_seed,
            module.W_q.weight.dtype,
            module.W_q.weight.device,
        )
        weights = module.state_dict()
        if not all(torch.equal(tensor, weights[name]) for name, tensor in fresh.state_dict().items()):
            raise ValueError(f"the weights are not those of a module freshly made after seed {init_seed}")


def _aliases(inputs: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Which of key and value is the very tensor that comes before it."""
    aliases = {}
    for name, before in (("key", "query"), ("value", "key")):
        # The file cannot say that value is query while key is not: such a value is a tensor of its own.
        if name not in inputs or inputs[name] is inputs.get(before, inputs["query"]):
            aliases[name] = before
    return aliases


@dataclass
class _Plan:
    """What is run, once as it is and once in float64."""

    module: torch.nn.Module
    stored: Mapping[str, torch.Tensor]
    aliases: Mapping[str, str]
    training: bool
    seed: int
    grads: bool


@dataclass
class _Run:
    outputs: dict[str, torch.Tensor]
    steps: dict[str, torch.Tensor] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    cotangent: torch.Tensor | None = None


def _run(plan: _Plan, *, dtype: torch.dtype | None = None, capture: bool = False) -> _Run:
    module = fresh_module(plan.module, training=plan.training, dtype=dtype)
    inputs = {
        name: fresh_copy(name, tensor, None if name == "mask" else dtype)
        for name, tensor in plan.stored.items()
    }
    differentiable = {name: tensor for name, tensor in inputs.items() if name != "mask"}
    if plan.grads:
        for tensor in differentiable.values():
            tensor.requires_grad_()
    for name, before in plan.aliases.items():
        inputs[name] = inputs[before]
    arguments = [inputs[name] for name in ("query", "key", "value", "mask") if name in inputs]

    steps = StepCapture(module, inputs["query"], inputs["key"], inputs.get("mask")) if capture else None
    torch.manual_seed(plan.seed)
    with steps or nullcontext():
        output = module(*arguments)
    if not isinstance(output, torch.Tensor):
        raise TypeError(
            f"{type(module).__name__} must return the output alone; found {type(output).__name__}"
        )
    run = _Run({"output": output.detach()})
    if isinstance(module.attention_weights, torch.Tensor):
        run.outputs["attention_weights"] = module.attention_weights.detach()
    if steps:
        run.steps, run.hidden = steps.steps, steps.missing()
    if plan.grads:
        # Drawn with full precision, rounded to the case's dtype, and the same numbers for the twin.
        generator = torch.Generator().manual_seed(plan.seed + _COTANGENT_STREAM)
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        run.cotangent = cotangent.to(plan.module.W_q.weight.dtype).to(output)
        wanted = {**differentiable, **dict(module.named_parameters())}
        found = torch.autograd.grad(output, list(wanted.values()), run.cotangent, allow_unused=True)
        run.grads = {name: grad for name, grad in zip(wanted, found) if grad is not None}
    return run


def _dropout_of(module: torch.nn.Module) -> float:
    dropout = getattr(module.dropout, "p", module.dropout)
    return float(dropout or 0.0)


def _environment() -> dict[str, str]:
    """What the last bits depend on beside the case itself."""
    return {
        "torch_version": torch.__version__.partition("+")[0],
        "build": torch.__config__.show(),
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": str(torch.backends.mkldnn.enabled).lower(),
        "MKL_CBWR": os.environ.get("MKL_CBWR", ""),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
    }


def cpu_model() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (
                line.partition(":")[2].strip()
                for line in file
                if line.partition(":")[0].strip() == "model name"
            )
            return next(names, "") or platform.machine()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.machine()

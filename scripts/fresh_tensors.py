"""Copies of tensors and modules that another process can rebuild exactly.

The last bits of a product depend on the strides of its operands and on where their memory starts. A case is
therefore computed on fresh allocations (which start at PyTorch's alignment) with the strides of the
originals, and so does whoever reads it.
"""

import copy

import torch


def fresh_copy(name: str, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy of `tensor` in memory of its own, with its sizes and strides; expanded ones stay expanded."""
    tensor = tensor.detach()
    _check_no_overlap(name, tensor)
    expanded = [stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())]
    size = [1 if is_expanded else size for size, is_expanded in zip(tensor.shape, expanded)]
    result = torch.empty_strided(size, tensor.stride(), dtype=dtype or tensor.dtype, device=tensor.device)
    source = tensor
    for dim, is_expanded in enumerate(expanded):
        if is_expanded:
            source = source.narrow(dim, 0, 1)
    result.copy_(source)
    return result.expand(tensor.shape)


def _check_no_overlap(name: str, tensor: torch.Tensor) -> None:
    """Refuses elements that share memory, except along expanded dimensions."""
    if tensor.numel() == 0:
        return
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1
    ):
        if stride == 0:
            continue
        if stride <= reach:
            raise ValueError(
                f"{name}: elements overlap in memory (sizes {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}); pass a copy, as its contiguous()"
            )
        reach += (size - 1) * stride


def strides_text(tensor: torch.Tensor) -> str | None:
    """Element strides, comma-separated, with 0 for expanded dimensions; None for a contiguous tensor."""
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
        return None
    return ",".join(map(str, tensor.stride()))


def fresh_module(
    module: torch.nn.Module, *, training: bool, dtype: torch.dtype | None = None
) -> torch.nn.Module:
    """A deep copy, its parameters and buffers contiguous in memory of their own; `module` stays as it is."""
    kept = module.attention_weights
    # The weights of an earlier forward belong to a graph, and such tensors cannot be deep-copied.
    module.attention_weights = None
    try:
        result = copy.deepcopy(module)
    finally:
        module.attention_weights = kept
    if dtype is not None:
        result.to(dtype)
    with torch.no_grad():
        for tensor in (*result.parameters(), *result.buffers()):
            tensor.grad = None
            tensor.data = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
        for parameter in result.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
    return result.train(training)

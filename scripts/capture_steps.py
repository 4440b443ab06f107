"""Records the steps of a multi-head attention from outside, however its class writes them.

A function mode sees every torch call of one forward pass. It does not go by the order of the calls but
follows the data: what `W_q`, `W_k`, `W_v` return stays Q, K, V through views; the product of Q and K is the
scores; numbers scale them, masks fill them, softmax ends them; what multiplies V is the attention weights. A
step written in a way that cannot be followed with certainty is left out, for a missing step is better than a
wrong one.

Recording clones tensors and draws no random numbers, so it changes neither results nor their bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

# Calls by name, whether they are written as function, method or operator.
_COPY = {"contiguous", "clone"}
_REARRANGE = _COPY | {
    *(
        "view",
        "reshape",
        "transpose",
        "permute",
        "unflatten",
        "flatten",
        "swapaxes",
        "swapdims",
        "movedim",
        "mT",
    ),
    *("unsqueeze", "squeeze"),
}
_SCALE = {
    *("div", "div_", "true_divide", "true_divide_", "divide", "divide_"),
    *("mul", "mul_", "multiply", "multiply_"),
}
_FILL = {"masked_fill", "masked_fill_", "where", "__setitem__"}
_ADD = {"add", "add_"}
_MATMUL = {"matmul", "__matmul__"}

# The two products as einsum, the letters renamed in order of appearance.
_EINSUM_SCORES = "abcd,abed->abce"
_EINSUM_CONTEXT = "abcd,abde->abce"


@dataclass
class _Projection:
    """A rearrangement of what `W_q`, `W_k` or `W_v` returned."""

    step: str
    tensor: torch.Tensor
    # Which element of the projection stands where: every view is applied to these numbers too.
    order: torch.Tensor
    scaled: bool = False


@dataclass
class _Scores:
    """The product of Q and K on its way to softmax."""

    tensor: torch.Tensor
    masked: bool = False


class StepCapture(TorchFunctionMode):
    """A context manager around one forward pass of `module`; then `steps` maps `Q`, `scores`, ... to tensors.

    `module` has the lesson's attributes; `query`, `key` and `mask` are what it is about to be called with.
    """

    def __init__(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.steps: dict[str, torch.Tensor] = {}
        self._module = module
        self._dtype = query.dtype
        self._has_mask = mask is not None
        batch, query_len, key_len = query.shape[0], query.shape[1], key.shape[1]
        heads, d_k = module.num_heads, module.d_model // module.num_heads
        scores = ("scores", "masked_scores", "softmax", "attention_weights")
        self._shapes: dict[str, tuple[int, ...]] = {
            "Q": (batch, heads, query_len, d_k),
            **dict.fromkeys("KV", (batch, heads, key_len, d_k)),
            **dict.fromkeys(scores, (batch, heads, query_len, key_len)),
            "context": (batch, query_len, module.d_model),
        }
        self._given_up: set[str] = set()
        self._results: dict[str, torch.Tensor] = {}
        # By identity, with the version: what somebody changes in place is no longer what was followed. The
        # tensors are kept alive, lest a freed one hands its identity on.
        self._followed: dict[tuple[int, int], _Projection | _Scores] = {}
        self._hooks: list = []

    def __enter__(self):
        for step in "QKV":
            layer = getattr(self._module, f"W_{step.lower()}")
            self._hooks.append(layer.register_forward_hook(self._projection_hook(step)))
        self._hooks.append(self._module.W_o.register_forward_pre_hook(self._context_hook))
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        for hook in self._hooks:
            hook.remove()
        self._followed.clear()
        self._results.clear()

    def missing(self) -> list[str]:
        """The steps that this class's way of writing them hides."""
        expected = [name for name in self._shapes if self._has_mask or name != "masked_scores"]
        return [name for name in expected if name not in self.steps]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":  # A property, such as `x.mT`.
            name = getattr(func.__self__, "__name__", "")
        # Before the call, for an in-place one overwrites what it works on.
        known = self._before(name, func, args, kwargs)
        result = func(*args, **kwargs)
        target = args[0] if name == "__setitem__" else result
        if not isinstance(target, torch.Tensor):
            return result
        if known is not None:
            self._follow(target, known)
            if isinstance(known, _Scores) and not known.masked:
                # A class scales in as many calls as it likes after the product: the last result stands.
                self._take("scores", target, again=name in _SCALE | _COPY)
        elif name == "softmax" and self._ended_by_softmax(args, kwargs):
            self._take("softmax", target)
        return result

    def _before(self, name: str, func: Callable, args: tuple, kwargs: dict) -> _Projection | _Scores | None:
        """What the result of the call will be, judged by its operands; None when it is nothing known."""
        operands = [*args, *kwargs.values()]
        if name == "einsum":
            return self._einsum(*args)
        if name in _MATMUL:
            left, right = operands[:2]
            right_is_key = self._is(right, "K")
            equation = _EINSUM_SCORES if right_is_key else _EINSUM_CONTEXT
            return self._product(equation, left, right, right_transposed=right_is_key)
        if name == "scaled_dot_product_attention":
            for step, operand in zip("QKV", operands):
                if self._is(operand, step):
                    self._take_heads(operand)
            return None
        if name == "softmax":
            scores = self._ended_by_softmax(args, kwargs)
            if self._has_mask and scores and scores.masked:
                self._take("masked_scores", args[0])
            return None

        known = next(filter(None, map(self._known, operands)), None)
        scales = known is not None and _scales(name, known.tensor, operands)
        if isinstance(known, _Scores):
            return self._on_scores(known, name, scales)
        if isinstance(known, _Projection):
            if scales:
                return _Projection(known.step, known.tensor, known.order, scaled=True)
            if name in _REARRANGE and known.tensor is operands[0]:
                order = func(known.order, *args[1:], **kwargs)
                return _Projection(known.step, known.tensor, order, known.scaled)
        return None

    def _on_scores(self, scores: _Scores, name: str, scales: bool) -> _Scores | None:
        if name in _COPY:
            return _Scores(scores.tensor, scores.masked)
        if scales:
            if scores.masked:
                self._give_up("scores")  # What was taken for the scores had not been scaled yet.
            return _Scores(scores.tensor, scores.masked)
        # Adding is masking only where there is a mask and nothing was masked before; else it may be anything.
        if name in _FILL or (name in _ADD and self._has_mask and not scores.masked):
            return _Scores(scores.tensor, masked=True)
        return None

    def _ended_by_softmax(self, args: tuple, kwargs: dict) -> _Scores | None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        known = self._known(args[0]) if args and dim in (-1, 3) else None
        return known if isinstance(known, _Scores) else None

    def _einsum(self, equation, *operands) -> _Scores | None:
        if not isinstance(equation, str):
            return None
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        letters: dict[str, str] = {}
        for letter in filter(str.isalpha, equation):
            letters.setdefault(letter, chr(ord("a") + len(letters)))
        equation = "".join(letters.get(c, c) for c in equation if c != " ")
        return self._product(equation, *operands, right_transposed=False) if len(operands) == 2 else None

    def _product(self, equation: str, left, right, right_transposed: bool) -> _Scores | None:
        if equation == _EINSUM_SCORES and self._is(left, "Q") and self._is(right, "K"):
            certain = [self._take_heads(left), self._take_heads(right, transposed=right_transposed)]
            return _Scores(left) if all(certain) else None
        if equation == _EINSUM_CONTEXT and self._is(right, "V") and self._take_heads(right):
            self._take("attention_weights", left)
        return None

    def _follow(self, tensor: torch.Tensor, known: _Projection | _Scores) -> None:
        known.tensor = tensor
        self._followed[id(tensor), tensor._version] = known

    def _known(self, operand) -> _Projection | _Scores | None:
        return (
            self._followed.get((id(operand), operand._version)) if isinstance(operand, torch.Tensor) else None
        )

    def _is(self, operand, step: str) -> bool:
        known = self._known(operand)
        return isinstance(known, _Projection) and known.step == step

    def _projection_hook(self, step: str) -> Callable:
        def hook(_layer, _args, output: torch.Tensor) -> None:
            order = torch.arange(output.numel(), dtype=torch.int32).view(output.shape)
            self._follow(output, _Projection(step, output, order))
            self._results[step] = output.detach().clone()

        return hook

    def _context_hook(self, _layer, args: tuple) -> None:
        if args:
            self._take("context", args[0])

    def _take_heads(self, tensor: torch.Tensor, *, transposed: bool = False) -> bool:
        """Takes `tensor`, known as Q, K or V, on entering a product; False if its layout is not certain."""
        known = self._known(tensor)
        assert isinstance(known, _Projection)
        order = known.order.mT if transposed else known.order
        shape = self._shapes[known.step]
        if order.shape != shape or order.dtype != torch.int32:  # A view can be of another dtype, too.
            return False

        def split(projection: torch.Tensor) -> torch.Tensor:
            batch, heads, _, d_k = shape
            return projection.reshape(batch, -1, heads, d_k).transpose(1, 2)

        numbers = torch.arange(order.numel(), dtype=order.dtype)
        if known.scaled and torch.equal(order, split(numbers)):
            # The class scales before the product; the step itself is not scaled.
            self._take(known.step, split(self._results[known.step]))
            return True
        # Heads split in another way than the lesson's: its shape tells the axes unless two of them are equal.
        if known.scaled or not (torch.equal(order, split(numbers)) or len(set(shape)) == len(shape)):
            return False
        self._take(known.step, tensor.mT if transposed else tensor)
        return True

    def _take(self, step: str, tensor: torch.Tensor, *, again: bool = False) -> None:
        if step in self.steps and not again:
            self._give_up(step)  # Two candidates: which one is meant is not certain.
        fits = tensor.shape == self._shapes[step] and tensor.dtype == self._dtype
        if fits and step not in self._given_up:
            self.steps[step] = tensor.detach().clone()

    def _give_up(self, step: str) -> None:
        self._given_up.add(step)
        self.steps.pop(step, None)


def _scales(name: str, tensor: torch.Tensor, operands: list) -> bool:
    """Whether the call multiplies `tensor` by a number or divides it by one."""
    if name not in _SCALE or (operands[0] is not tensor and "div" in name):
        return False
    others = [operand for operand in operands if operand is not tensor]
    return len(others) == 1 and (not isinstance(others[0], torch.Tensor) or others[0].numel() == 1)

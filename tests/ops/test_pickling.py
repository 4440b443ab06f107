"""Copies, pickles and files of the objects."""

import copy
import io
import pickle

import pytest
import torch

from sizes import B, D, H, L, S

NAMES = "__torch__.torch.classes.mha."


def through_copy(value):
    return copy.deepcopy(value)


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def through_torch_save(value):
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    return torch.load(file, weights_only=False)["value"]


def through_safe_torch_load(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    with torch.serialization.safe_globals([torch.ScriptObject]):
        return torch.load(file, weights_only=True)


WAYS = [through_copy, through_pickle, through_torch_save, through_safe_torch_load]


@pytest.mark.parametrize("through", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_fused(classes, lesson, randn, through, dtype):
    fused = classes.FusedMultiHeadAttention(lesson.state_dict(), H, dtype)
    again = through(fused)
    x = randn(B, L, D).to(dtype)
    assert again.forward(x).any()
    assert torch.equal(again.forward(x), fused.forward(x))
    assert again != fused and fused == fused


@pytest.mark.parametrize("through", WAYS)
def test_lesson(classes, lesson, randn, through):
    ours = classes.MultiHeadAttention(lesson.state_dict(), H)
    x = randn(B, L, D)
    assert torch.equal(through(ours).forward(x, x, x), lesson(x, x, x))


@pytest.mark.parametrize("through", WAYS)
@pytest.mark.parametrize("masked", [False, True])
def test_memory(fused, randn, through, masked):
    memory = fused.project_memory(randn(B, S, D), torch.arange(S) % 3 > 0 if masked else None)
    again = through(memory)
    query = randn(B, 1, D)
    assert torch.equal(again.attend(query), memory.attend(query))
    for found, expected in ((again.keys(), memory.keys()), (again.values(), memory.values())):
        assert torch.equal(found, expected)
    assert (again.mask() is None) == (not masked)


@pytest.mark.parametrize("through", WAYS)
def test_cache(classes, fused, randn, through):
    cache = classes.KeyValueCache(fused, 3, L)
    cache.prefill(randn(3, 4, D), [4, 0, 2])
    again = through(cache)
    assert (again.lengths(), again.capacity()) == ([4, 0, 2], L)
    x = randn(3, 1, D)
    assert torch.equal(again.step(x), cache.step(x))
    again.reset()
    assert cache.lengths() == [5, 1, 3]


class Block(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fused.forward(x, None, True)


def test_modules_that_hold_one(fused, randn):
    x = randn(B, L, D)
    block = Block(fused)
    again = copy.deepcopy(block)
    assert again.fused != fused
    assert torch.equal(again(x), block(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_that_hold_one(fused, randn):
    x = randn(B, L, D)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Block(fused)), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), fused.forward(x, causal=True))


def from_state(name, state):
    """What a pickle with this state makes."""
    made = torch.ScriptObject.__new__(torch.ScriptObject)
    made.__setstate__((state, NAMES + name))
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fused, size, keys, values: (fused, 3, keys, values), r"keys: expected a length of at most 3"),
        (lambda fused, size, keys, values: (fused, -1, keys, values), "capacity: expected at least 1"),
        (lambda fused, size, keys, values: (fused, size, [], []), "batch: expected at least 1, found 0"),
        (lambda fused, size, keys, values: (fused, size, keys, values[:1]), "values: expected 2 .* found 1"),
        (lambda fused, size, keys, values: (fused, size, [k[:1] for k in keys], values), "keys: expected"),
        (
            lambda fused, size, keys, values: (fused, size, keys, [v.double() for v in values]),
            "found float64",
        ),
        (lambda fused, size, keys, values: (None, size, keys, values), "missing attribute capsule"),
        (lambda fused, size, keys, values: (size, fused, keys, values), "cast"),
    ],
)
def test_pickles_of_caches_that_were_changed(classes, fused, randn, change, message):
    cache = classes.KeyValueCache(fused, 2, 9)
    cache.prefill(randn(2, 4, D), [4, 2])
    state = (fused, 9, [cache.keys(0), cache.keys(1)], [cache.values(0), cache.values(1)])
    assert torch.equal(from_state("KeyValueCache", state).step(x := randn(2, 1, D)), cache.step(x))
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as raised:
        from_state("KeyValueCache", change(*state))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fused, keys, values, mask: (fused, keys[0], values, mask), "keys: expected shape"),
        (lambda fused, keys, values, mask: (fused, keys, values[:1], mask), "values: expected shape"),
        (lambda fused, keys, values, mask: (fused, keys, values, torch.ones(3)), "mask: expected a shape"),
        (lambda fused, keys, values, mask: (None, keys, values, mask), "missing attribute capsule"),
    ],
)
def test_pickles_of_memories_that_were_changed(fused, randn, change, message):
    memory = fused.project_memory(randn(B, S, D))
    state = (fused, memory.keys(), memory.values(), None)
    query = randn(B, 1, D)
    assert torch.equal(from_state("ProjectedMemory", state).attend(query), memory.attend(query))
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as raised:
        from_state("ProjectedMemory", change(*state))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights, num_heads: (weights, 0), "num_heads must be positive, found 0"),
        (lambda weights, num_heads: (weights, 5), "d_model must be divisible by num_heads"),
        (lambda weights, num_heads: ({}, num_heads), 'missing "W_q.weight"'),
        (lambda weights, num_heads: (weights | {"W_o.bias": torch.ones(5)}, num_heads), r"W_o.bias.*\(5,\)"),
        (lambda weights, num_heads: ({n: w.int() for n, w in weights.items()}, num_heads), "found int32"),
        (
            lambda weights, num_heads: ({n: w.to_sparse() for n, w in weights.items()}, num_heads),
            "dense tensor",
        ),
        (lambda weights, num_heads: (num_heads, weights), "not iterable"),
        (lambda weights, num_heads: ({"W_q.weight": 1}, num_heads), "Unable to cast 1 to Tensor"),
        (lambda weights, num_heads: None, "not iterable"),
        (lambda weights, num_heads: "state", "different number of elements"),
    ],
)
def test_pickles_that_were_changed(fused, lesson, randn, change, message):
    x = randn(B, L, D)

    def loaded(state):
        return from_state("FusedMultiHeadAttention", state)

    weights = dict(lesson.state_dict())
    assert torch.equal(loaded((weights, H)).forward(x), fused.forward(x))
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as raised:
        loaded(change(weights, H))
    assert "\n" not in str(raised.value)


def test_pickles_that_were_cut(fused):
    whole = pickle.dumps(fused)
    for length in range(0, len(whole) - 1, 97):
        with pytest.raises((EOFError, pickle.UnpicklingError, RuntimeError)):
            pickle.loads(whole[:length])

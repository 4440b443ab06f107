"""KeyValueCache and ProjectedMemory: generation, one position at a time."""

import pytest
import torch

from sizes import B, D, H, L, S


@pytest.fixture
def cache(classes, fused):
    return classes.KeyValueCache(fused, B, 16)


def causal(lesson, x):
    return lesson(x, x, x, torch.ones(x.size(1), x.size(1)).tril())


def test_prompt_and_steps(cache, lesson, randn, check):
    x = randn(B, 10, D)
    found = [cache.prefill(x[:, :4]), cache.prefill(x[:, 4:7])]
    found += [cache.step(x[:, i : i + 1]) for i in range(7, 9)]
    output = torch.empty(B, 1, D)
    cache.step_into(x[:, 9:], output)
    check(torch.cat([*found, output], 1), causal(lesson, x))
    assert cache.lengths() == [10, 10]
    assert (cache.batch(), len(cache), cache.capacity()) == (B, B, 16)


def test_prompts_of_different_lengths(cache, lesson, randn, check):
    x = randn(B, L, D)
    found = cache.prefill(x, lengths=[L, 3])
    check(found[0], causal(lesson, x)[0])
    check(found[1, :3], causal(lesson, x[:, :3])[1])
    assert not found[1, 3:].any()
    assert cache.lengths() == [L, 3]
    more = randn(B, 1, D)
    check(cache.step(more)[1], causal(lesson, torch.cat([x[:, :3], more], 1))[1, 3:])


def test_what_is_stored(cache, lesson, randn, check):
    x = randn(B, L, D)
    cache.prefill(x)
    for item in range(B):
        for found, layer in ((cache.keys(item), lesson.W_k), (cache.values(item), lesson.W_v)):
            check(found, layer(x[item]).view(L, H, D // H).transpose(0, 1))


def test_items_can_be_moved(cache, randn):
    cache.prefill(randn(B, L, D), [5, L])
    first, second = cache.keys(0), cache.keys(1)
    cache.reorder([1, 0])
    assert cache.lengths() == [L, 5]
    assert torch.equal(cache.keys(0), second) and torch.equal(cache.keys(1), first)
    cache.truncate(0, 2)
    assert cache.lengths() == [2, 5]
    assert torch.equal(cache.keys(0), second[:, :2])
    cache.copy(source=1, target=0)
    assert cache.lengths() == [5, 5]
    assert torch.equal(cache.keys(0), first)
    cache.reset(1)
    assert cache.lengths() == [5, 0]
    cache.reset()
    assert cache.lengths() == [0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache, x: cache.prefill(x[0]), "x: expected 3 dimensions"),
        (lambda cache, x: cache.prefill(x[:1]), "x: expected batch 2"),
        (lambda cache, x: cache.prefill(x.double()), "x: expected dtype float32"),
        (lambda cache, x: cache.prefill(x, [1]), "lengths: expected 2"),
        (lambda cache, x: cache.prefill(x, []), "lengths: expected one for each of 2 items, found none"),
        (lambda cache, x: cache.prefill(x, [1, L + 1]), "lengths"),
        (lambda cache, x: cache.prefill(x, [-1, 1]), "lengths"),
        (lambda cache, x: cache.prefill(torch.cat([x, x, x], 1)), "capacity of 16"),
        (lambda cache, x: cache.step(x), "x: expected length 1|x: expected one position"),
        (lambda cache, x: cache.step_into(x[:, :1], x[:, :2]), "output: expected"),
        (lambda cache, x: cache.reset(2), r"item: expected an item within \[0, 2\), found 2"),
        (lambda cache, x: cache.reset(-1), r"item: expected an item within \[0, 2\), found -1"),
        (lambda cache, x: cache.truncate(0, 1), "length"),
        (lambda cache, x: cache.truncate(7, 0), "item: expected an item within"),
        (lambda cache, x: cache.copy(0, 2), "expected an item within"),
        (lambda cache, x: cache.reorder([0]), "sources"),
        (lambda cache, x: cache.reorder([0, 2]), "sources"),
        (lambda cache, x: cache.keys(2), "item: expected an item within"),
        (lambda cache, x: cache.values(-1), "item: expected an item within"),
    ],
)
def test_errors_change_nothing(cache, randn, one_line, call, message):
    x = randn(B, L, D)
    one_line(ValueError, message, lambda: call(cache, x))
    assert cache.lengths() == [0, 0]


@pytest.mark.parametrize(
    ("batch", "capacity", "name"), [(0, 4, "batch"), (2, 0, "capacity"), (2, 1 << 60, "capacity")]
)
def test_errors_of_the_constructor(classes, fused, one_line, batch, capacity, name):
    one_line(ValueError, name + ": expected", lambda: classes.KeyValueCache(fused, batch, capacity))


def test_memory(fused, lesson, randn, check):
    memory = randn(B, S, D)
    mask = (torch.arange(S) < torch.tensor([[8], [5]])).view(B, 1, 1, S)
    projected = fused.project_memory(memory, mask)
    check(projected.keys(), lesson.W_k(memory).view(B, S, H, D // H).transpose(1, 2))
    check(projected.values(), lesson.W_v(memory).view(B, S, H, D // H).transpose(1, 2))
    assert torch.equal(projected.mask(), mask)
    for length in (1, L):
        query = randn(B, length, D)
        expected = lesson(query, memory, memory, mask)
        check(projected.attend(query), expected)
        output = torch.empty_like(query)
        projected.attend_into(query, output)
        check(output, expected)
    plain = fused.project_memory(memory)
    assert plain.mask() is None
    check(plain.attend(query), lesson(query, memory, memory))


def test_memory_errors(fused, randn, one_line):
    memory = fused.project_memory(randn(B, S, D))
    query = randn(B, L, D)
    one_line(ValueError, "memory: expected last dimension 24", lambda: fused.project_memory(query[..., :3]))
    one_line(ValueError, "mask: expected", lambda: fused.project_memory(query, torch.ones(L, L)))
    one_line(ValueError, "query: expected batch 2", lambda: memory.attend(query[:1]))
    one_line(ValueError, "output: expected", lambda: memory.attend_into(query, query.new_empty(3)))


def test_objects_are_equal_to_themselves_alone(classes, fused, cache, randn):
    memory = fused.project_memory(randn(B, S, D))
    objects = [fused, cache, memory, classes.KeyValueCache(fused, B, 16)]
    for i, first in enumerate(objects):
        for j, second in enumerate(objects):
            assert (first == second) == (i == j)
            assert (first != second) == (i != j)
        assert first != 3
    assert len({each: 1 for each in objects}) == len(objects)

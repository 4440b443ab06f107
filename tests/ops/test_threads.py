"""Many Python threads and one object."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sizes import B, D, H, L, S

THREADS, CALLS = 8, 25


@pytest.fixture(autouse=True)
def one_thread_a_call():
    """Otherwise the machine's cores would be shared by too many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def all_at_once(call, inputs):
    """What `call` gives for each of the inputs, in as many threads at once."""
    barrier = threading.Barrier(len(inputs))

    def work(x):
        with torch.no_grad():  # each thread has its own mode
            barrier.wait()
            return [call(x) for _ in range(CALLS)]

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(work, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_serial_calls(ops, classes, lesson, randn, dtype):
    lesson = lesson.to(dtype)
    fused = classes.FusedMultiHeadAttention(lesson.state_dict(), H)
    memory = fused.project_memory(randn(1, S, D).to(dtype))
    weights = list(lesson.state_dict().values())

    def call(x):
        heads = x.view(1, -1, H, D // H).transpose(1, 2)
        return (
            fused.forward(x, causal=True),
            fused.cross(x, x.flip(1)),
            fused.attention_weights(x, x),
            memory.attend(x),
            ops.multi_head_attention(x, x, x, weights, H),
            ops.scaled_dot_product_attention(heads, heads, heads),
        )

    inputs = [randn(1, L + 3 * i, D).to(dtype) for i in range(THREADS)]
    expected = [call(x) for x in inputs]
    for found, wanted in zip(all_at_once(call, inputs), expected, strict=True):
        for results in found:
            for result, value in zip(results, wanted, strict=True):
                assert value.any() and torch.equal(result, value)


def test_a_fresh_object_can_be_shared(classes, lesson, randn):
    """Weights are packed when they are first needed: here by all threads at once."""
    x = randn(B, L, D)
    expected = classes.FusedMultiHeadAttention(lesson.state_dict(), H).cross(x, x)
    for _ in range(20):
        fused = classes.FusedMultiHeadAttention(lesson.state_dict(), H)
        for results in all_at_once(lambda x, fused=fused: fused.cross(x, x), [x] * THREADS):
            assert all(torch.equal(result, expected) for result in results)


def test_the_lesson_can_be_shared(classes, lesson, randn):
    """Its calls take turns: each replaces the weights that it keeps."""
    ours = classes.MultiHeadAttention(lesson.state_dict(), H)
    inputs = [randn(B, L + i, D) for i in range(THREADS)]

    def call(x):
        assert ours.attention_weights() is None or ours.attention_weights().dim() == 4
        return ours.forward(x, x, x)

    for x, results in zip(inputs, all_at_once(call, inputs), strict=True):
        expected = lesson(x, x, x)
        assert all(torch.equal(result, expected) for result in results)


def test_a_cache_can_be_shared(classes, fused, randn):
    """Steps of many threads take turns: all of them are stored."""
    cache = classes.KeyValueCache(fused, 1, THREADS * CALLS)
    all_at_once(cache.step, [randn(1, 1, D) for _ in range(THREADS)])
    assert cache.lengths() == [THREADS * CALLS]
    assert torch.isfinite(cache.keys(0)).all()


def test_pythons_lock_is_released(ops, fused, randn):
    def passed_meanwhile(call):
        """How often this thread runs while another is in one call."""
        worker = threading.Thread(target=torch.no_grad()(call))
        passed = 0
        worker.start()
        while worker.is_alive():
            time.sleep(0.001)
            passed += 1
        return passed

    x = randn(1, 16384, D)
    heads = x.view(1, -1, H, D // H).transpose(1, 2)
    assert passed_meanwhile(lambda: fused.forward(x)) > 20
    assert passed_meanwhile(lambda: ops.scaled_dot_product_attention(heads, heads, heads)) > 20

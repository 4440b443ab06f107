"""torch.compile and torch.export trace through: one graph, any batch and length, values of eager calls."""

import io

import pytest
import torch
from torch.export import Dim

from compile_backend import inductor
from sizes import B, D, H, L, S


class Functional(torch.nn.Module):
    """Attention by functions of tensors alone."""

    def __init__(self, lesson):
        super().__init__()
        self.attention = lesson
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x, mask):
        x = self.norm(x)
        weights = list(self.attention.parameters())
        y = torch.ops.mha.multi_head_attention(x, x, x, weights, self.attention.num_heads, mask)
        heads = y.view(y.size(0), y.size(1), H, D // H).transpose(1, 2)
        return y + torch.ops.mha.scaled_dot_product_attention(heads, heads, heads, causal=True).transpose(
            1, 2
        ).flatten(2)


class Methods(torch.nn.Module):
    """Attention by an object's methods."""

    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x, mask):
        x = self.norm(x)
        y = self.fused.forward(x, mask=mask, causal=True) + self.fused.cross(x, 2 * x)
        return y + self.fused.attention_weights(x, y).mean((1, 3)).unsqueeze(-1)


class Operators(Methods):
    """The same methods as operators."""

    def forward(self, x, mask):
        x, ops = self.norm(x), torch.ops.mha
        y = ops.attend(self.fused, x, x, x, mask, causal=True) + ops.attend(self.fused, x, 2 * x, 2 * x)
        return y + ops.attention_weights(self.fused, x, y).mean((1, 3)).unsqueeze(-1)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.fixture
def modules(fused, lesson):
    return {
        "functional": Functional(lesson).eval(),
        "methods": Methods(fused).eval(),
        "operators": Operators(fused).eval(),
    }


@pytest.fixture
def inputs(randn):
    """Of other batches and lengths each, the first for tracing."""
    return [(randn(b, n, D), randn(b, 1, n, n) < 0.5) for b, n in ((B, L), (3, 9), (4, 11), (5, 6))]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("functional", "aot_eager"),
        ("functional", "inductor"),
        ("methods", "aot_eager"),
        ("methods", inductor),
        ("operators", "aot_eager"),
        ("operators", inductor),
    ],
)
def test_compile(modules, inputs, check, name, backend):
    module = modules[name]
    backend = torch._dynamo.lookup_backend(backend) if isinstance(backend, str) else backend
    graphs = []

    def counted(graph, examples):
        graphs.append(graph)
        return backend(graph, examples)

    compiled = torch.compile(module, backend=counted, fullgraph=True)
    for x, mask in inputs:
        check(compiled(x, mask), module(x, mask), atol=1e-5)
    assert len(graphs) == 2  # one for the first sizes, one for all others


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["functional", "methods", "operators"])
def test_export(modules, inputs, name, strict):
    module = modules[name]
    batch, length = Dim("batch"), Dim("length")
    program = torch.export.export(
        module,
        inputs[0],
        dynamic_shapes={"x": {0: batch, 1: length}, "mask": {0: batch, 2: length, 3: length}},
        strict=strict,
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for each in (program, torch.export.load(file)):
        loaded = each.module()
        for x, mask in inputs:
            assert torch.equal(loaded(x, mask), module(x, mask))


def test_export_keeps_functional_weights(modules, lesson, inputs):
    program = torch.export.export(modules["functional"], inputs[0])
    assert torch.equal(program.state_dict["attention.W_q.weight"], lesson.W_q.weight)


def test_ahead_of_time(modules, inputs, check, tmp_path):
    """Inductor's packages hold the object and its weights."""
    module = modules["methods"]
    batch, length = Dim("batch"), Dim("length")
    program = torch.export.export(
        module,
        inputs[0],
        dynamic_shapes={"x": {0: batch, 1: length}, "mask": {0: batch, 2: length, 3: length}},
    )
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "module.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for x, mask in inputs:
        check(loaded(x, mask), module(x, mask), atol=1e-5)


def test_an_object_that_is_replaced(classes, modules, lesson, inputs, check):
    module = modules["methods"]
    compiled = torch.compile(module, backend=inductor, fullgraph=True)
    before = compiled(*inputs[0])
    weights = {name: -value for name, value in lesson.state_dict().items()}
    module.fused = classes.FusedMultiHeadAttention(weights, H)
    check(compiled(*inputs[0]), module(*inputs[0]), atol=1e-5)
    assert not torch.allclose(compiled(*inputs[0]), before)


class Decoder(torch.nn.Module):
    def __init__(self, cache, memory):
        super().__init__()
        self.cache, self.memory = cache, memory

    def forward(self, x):
        y = x + self.cache.step(x)
        return y + self.memory.attend(y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])
def test_caches_and_memories(classes, fused, randn, check, backend):
    memory = fused.project_memory(randn(B, S, D))
    eager, traced = (Decoder(classes.KeyValueCache(fused, B, 8), memory) for _ in range(2))
    compiled = torch.compile(traced, backend=backend, fullgraph=True)
    for step in range(1, 6):
        x = randn(B, 1, D)
        check(compiled(x), eager(x), atol=1e-5)
        assert traced.cache.lengths() == [step] * B  # tracing stores nothing
        assert torch.equal(traced.cache.keys(1), eager.cache.keys(1))


@pytest.mark.parametrize("name", ["functional", "methods", "operators"])
def test_what_does_not_fit_is_told_when_it_is_traced(modules, inputs, name):
    x, mask = inputs[0]
    compiled = torch.compile(modules[name], backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="mask: expected a shape that broadcasts to .* found"):
        compiled(x, mask[..., :3])
    with torch.enable_grad(), pytest.raises(Exception, match="expected no gradients to record"):
        compiled(x.requires_grad_(), mask)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda cache, fused, x: cache.reset(), "reset"),
        (lambda cache, fused, x: cache.truncate(0, 1), "truncate"),
        (lambda cache, fused, x: cache.copy(0, 1), "copy"),
        (lambda cache, fused, x: cache.reorder([1, 1]), "reorder"),
        (lambda cache, fused, x: cache.assign(0, x.new_ones(H, 2, 8), x.new_ones(H, 2, 8)), "assign"),
        (lambda cache, fused, x: cache.step_into(x[:, :1], torch.empty_like(x[:, :1])), "step_into"),
        (lambda cache, fused, x: fused.project_memory(x), "project_memory"),
    ],
)
def test_tracing_changes_no_object(classes, fused, randn, backend, change, name):
    cache, x = classes.KeyValueCache(fused, B, 8), randn(B, 3, D)
    cache.prefill(x, [3, 2])

    def changing(x):
        y = cache.prefill(x)
        change(cache, fused, x)
        return y

    with pytest.raises(Exception, match=name + ": expected a call outside of what torch.compile"):
        torch.compile(changing, backend=backend, fullgraph=True)(x)
    assert cache.lengths() == [3, 2]


class Cross(torch.nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def forward(self, x):
        return x + self.memory.attend(x)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_memory(fused, randn, strict):
    module = Cross(fused.project_memory(randn(B, S, D), torch.arange(S) % 2 == 0))
    program = torch.export.export(
        module, (randn(B, L, D),), dynamic_shapes=({1: Dim("length")},), strict=strict
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for length in (2, 9, 70):
        x = randn(B, length, D)
        assert torch.equal(torch.export.load(file).module()(x), module(x))
        file.seek(0)


class Into(torch.nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def forward(self, x):
        output = torch.empty_like(x)
        self.memory.attend_into(x, output)
        return x + output


@pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])
def test_calls_that_change_tensors_are_not_traced(fused, randn, backend):
    """Inductor would not see that they do."""
    module = Into(fused.project_memory(randn(B, S, D)))
    assert module(randn(B, 1, D)).isfinite().all()
    with pytest.raises(Exception, match="attend_into: expected a call outside of what torch.compile"):
        torch.compile(module, backend=backend, fullgraph=True)(randn(B, 1, D))

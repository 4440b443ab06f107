"""Steps are found in whatever way a class writes its attention, and never wrong ones."""

import math

import pytest
import torch
import torch.nn.functional as F

from capture_steps import StepCapture
from lesson import MultiHeadAttention

STEPS = {"Q", "K", "V", "scores", "softmax", "attention_weights", "context"}


class Own(MultiHeadAttention):
    """The lesson's module with an attention of its own; `heads` says how it splits."""

    def heads(self, x):
        return x.view(x.shape[0], -1, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        Q, K, V = self.heads(self.W_q(query)), self.heads(self.W_k(key)), self.heads(self.W_v(value))
        output = self.attend(Q, K, V, mask)
        return self.W_o(output.transpose(1, 2).reshape(query.shape[0], -1, self.d_model))

    def attend(self, Q, K, V, mask):
        scores = self.scores(Q, K)
        if mask is not None:
            scores = self.masked(scores, mask)
        self.attention_weights = self.dropout(self.softmax(scores))
        return self.attention_weights @ V

    def scores(self, Q, K):
        return Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)

    def masked(self, scores, mask):
        return scores.masked_fill(mask == 0, -1e9)

    def softmax(self, scores):
        return scores.softmax(-1)


class InPlace(Own):
    def scores(self, Q, K):
        scores = Q @ K.mT
        scores *= 1 / math.sqrt(self.d_k)
        return scores

    def masked(self, scores, mask):
        return scores.masked_fill_(mask == 0, -1e9)


class Einsum(Own):
    def scores(self, Q, K):
        return torch.einsum("b h q d, b h k d -> b h q k", Q, K).mul(self.d_k**-0.5)

    def masked(self, scores, mask):
        return torch.where(mask == 0, -1e9, scores)

    def softmax(self, scores):
        return torch.softmax(scores, dim=3)


class ScaledBefore(Own):
    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3).contiguous()

    def scores(self, Q, K):
        return (Q * self.d_k**-0.25) @ (K * self.d_k**-0.25).transpose(2, 3)

    def masked(self, scores, mask):
        scores[mask.expand_as(scores) == 0] = -1e9
        return scores


class TensorScale(Own):
    def scores(self, Q, K):
        return torch.matmul(Q, K.swapaxes(-1, -2)) / torch.sqrt(torch.tensor(float(self.d_k)))

    def masked(self, scores, mask):
        return scores + torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)

    def softmax(self, scores):
        return torch.nn.Softmax(dim=-1)(scores)


def run(module, inputs):
    query = inputs["query"]
    key, value, mask = inputs.get("key", query), inputs.get("value", query), inputs.get("mask")
    capture = StepCapture(module, query, key, mask)
    with capture:
        output = module(query, key, value, *([] if mask is None else [mask]))
    return output, capture


@pytest.fixture
def inputs(randn):
    return {"query": randn(2, 5, 24), "mask": torch.ones(5, 5).tril()}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("cls", [MultiHeadAttention, Own, InPlace, Einsum, ScaledBefore, TensorScale])
def test_steps_are_the_lessons(make, inputs, cls, mode):
    """Whatever the spelling, the same steps: other roundings, so to a tolerance."""
    torch.manual_seed(1)
    _, lesson = run(make().train(mode == "train"), inputs)
    torch.manual_seed(1)
    _, own = run(make(cls=cls).train(mode == "train"), inputs)
    assert own.missing() == []
    assert set(own.steps) == STEPS | {"masked_scores"}
    for name, step in own.steps.items():
        torch.testing.assert_close(
            step, lesson.steps[name], rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_steps_recompute_to_the_output(make, inputs):
    """Each step follows from those before it, bit for bit."""
    module = make().train()
    torch.manual_seed(3)
    output, capture = run(module, inputs)
    steps = capture.steps
    scores = torch.matmul(steps["Q"], steps["K"].transpose(-2, -1)) / math.sqrt(module.d_k)
    assert torch.equal(scores, steps["scores"])
    assert torch.equal(scores.masked_fill(inputs["mask"] == 0, -1e9), steps["masked_scores"])
    assert torch.equal(F.softmax(steps["masked_scores"], dim=-1), steps["softmax"])
    torch.manual_seed(3)
    assert torch.equal(F.dropout(steps["softmax"], 0.1), steps["attention_weights"])
    assert not torch.equal(steps["softmax"], steps["attention_weights"])
    context = torch.matmul(steps["attention_weights"], steps["V"]).transpose(1, 2).reshape(2, 5, 24)
    assert torch.equal(context, steps["context"])
    assert torch.equal(module.W_o(context), output)


def test_no_mask_no_masked_scores(make, inputs):
    del inputs["mask"]
    _, capture = run(make(), inputs)
    assert set(capture.steps) == STEPS
    assert capture.missing() == []


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("cls", [MultiHeadAttention, InPlace, ScaledBefore])
def test_capture_changes_no_bits(make, inputs, cls, mode, same_bits):
    module = make(cls=cls).train(mode == "train")
    x = inputs["query"].requires_grad_()
    results = []
    for captured in (True, False):
        torch.manual_seed(5)
        output = run(module, inputs)[0] if captured else module(x, x, x, inputs["mask"])
        gradients = torch.autograd.grad(output.square().sum(), [x, *module.parameters()])
        results.append([output, module.attention_weights, *gradients, torch.get_rng_state()])
    assert all(map(same_bits, *results))
    assert not module.W_q._forward_hooks and not module.W_o._forward_pre_hooks


def test_steps_do_not_follow_later_changes(make, inputs):
    module = make().eval()
    with torch.no_grad():
        _, capture = run(module, inputs)
        kept = capture.steps["attention_weights"].clone()
        module.attention_weights.zero_()
    assert torch.equal(capture.steps["attention_weights"], kept)


class Fused(Own):
    def attend(self, Q, K, V, mask):
        return F.scaled_dot_product_attention(Q, K, V, None if mask is None else mask != 0)


class MaskedThenScaled(Own):
    def scores(self, Q, K):
        return Q @ K.mT

    def softmax(self, scores):
        return (scores / math.sqrt(self.d_k)).softmax(-1)


class Shifted(Own):
    def softmax(self, scores):
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


class WrittenOut(Own):
    def softmax(self, scores):
        numbers = scores.exp()
        return numbers / numbers.sum(-1, keepdim=True)


class Twice(Own):
    def attend(self, Q, K, V, mask):
        super().attend(Q, K, V, mask)
        return super().attend(Q, K, V, mask)


class ChangedBehind(Own):
    """Q changes through another view of its memory, the scores through an argument named inplace."""

    def forward(self, query, key, value, mask=None):
        Q = self.W_q(query)
        heads = self.heads(Q)
        Q += 1
        self.attend(heads, self.heads(self.W_k(key)), self.heads(self.W_v(value)), mask)
        return self.W_o(query)


class Rectified(Own):
    def masked(self, scores, mask):
        return F.relu(scores.masked_fill(mask == 0, -1e9), inplace=True)


class OtherAxis(Own):
    """Heads outermost: with as many heads as sequences the shape does not tell."""

    def heads(self, x):
        return x.view(x.shape[0], -1, self.num_heads, self.d_k).permute(2, 0, 1, 3)

    def attend(self, Q, K, V, mask):
        return super().attend(Q, K, V, mask).transpose(0, 1)


@pytest.mark.parametrize(
    ("cls", "hidden"),
    [
        (Fused, {"scores", "masked_scores", "softmax", "attention_weights"}),
        (MaskedThenScaled, {"scores"}),
        (Shifted, {"masked_scores", "softmax"}),
        (WrittenOut, {"masked_scores", "softmax"}),
        (Twice, {"Q", "K", "V", "scores", "masked_scores", "softmax", "attention_weights"}),
        (ChangedBehind, {"Q", "K", "scores", "masked_scores", "softmax"}),
        (Rectified, {"masked_scores", "softmax"}),
        (OtherAxis, {"Q", "K", "V", "scores", "masked_scores", "softmax", "attention_weights"}),
    ],
)
def test_uncertain_steps_are_left_out(make, randn, cls, hidden):
    """Three sequences for three heads; what is captured still agrees with the lesson's."""
    inputs = {"query": randn(3, 5, 24), "mask": torch.ones(5, 5).tril()}
    _, lesson = run(make().eval(), inputs)
    _, own = run(make(cls=cls).eval(), inputs)
    assert set(own.missing()) == hidden
    assert set(own.steps) == (STEPS | {"masked_scores"}) - hidden
    for name, step in own.steps.items():
        if (cls, name) == (MaskedThenScaled, "masked_scores"):
            continue  # The fill is scaled too in that class: what is stored is what its softmax got.
        if (cls, name) in [(ChangedBehind, "attention_weights"), (ChangedBehind, "context")]:
            continue  # Another computation from there on, and so it is in the next one.
        if (cls, name) in [(Rectified, "attention_weights"), (Rectified, "context")]:
            continue
        torch.testing.assert_close(step, lesson.steps[name], rtol=1e-5, atol=1e-6)


class WrongSplit(Own):
    """A mistake people make: view to the wanted shape, without transposing."""

    def heads(self, x):
        return x.view(x.shape[0], self.num_heads, -1, self.d_k)


def test_a_wrong_split_is_shown_as_it_is(make, inputs):
    """Its shape is certain, and its data is what the class computes: the place where it leaves the lesson."""
    _, own = run(make(cls=WrongSplit).eval(), inputs)
    module = make(cls=WrongSplit)
    assert torch.equal(own.steps["Q"], module.W_q(inputs["query"]).view(2, 3, 5, 8))

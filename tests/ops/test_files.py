"""`load`: the same weights from any file that the library reads."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sizes import B, D, H, L


class Encoder(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def state_dict(module, path):
    torch.save(module.state_dict(), path)


def checkpoint(module, path):
    torch.save({"model": module.state_dict(), "epoch": 3}, path)


def legacy(module, path):
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=False)


def safetensors(module, path):
    save_file(module.state_dict(), path)


def torchscript(module, path):
    torch.jit.save(torch.jit.trace(module, torch.zeros(1, 2, D), check_trace=False), path)


@pytest.fixture
def x(randn):
    return randn(B, L, D)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("save", "prefix"),
    [
        (state_dict, "attention"),
        (state_dict, "attention."),
        (checkpoint, "model.attention"),
        (legacy, "attention"),
        (safetensors, "attention"),
        (torchscript, "attention"),
    ],
)
def test_formats(classes, fused, lesson, x, tmp_path, save, prefix):
    path = str(tmp_path / "weights")
    save(Encoder(lesson), path)
    loaded = classes.FusedMultiHeadAttention.load(path, H, prefix)
    assert torch.equal(loaded.forward(x), fused.forward(x))
    ours = classes.MultiHeadAttention.load(path, H, prefix)
    assert torch.equal(ours.forward(x, x, x), lesson(x, x, x))


def test_without_prefix(classes, fused, lesson, x, tmp_path):
    path = str(tmp_path / "weights.pt")
    state_dict(lesson, path)
    assert torch.equal(classes.FusedMultiHeadAttention.load(path, H).forward(x), fused.forward(x))


@pytest.mark.parametrize("layout", ["pytorch", "auto"])
def test_layouts(classes, x, randn, check, tmp_path, layout):
    module = torch.nn.MultiheadAttention(D, H, batch_first=True).eval()
    module.in_proj_bias.copy_(randn(3 * D))
    path = str(tmp_path / "weights.pt")
    state_dict(Encoder(module), path)
    loaded = classes.FusedMultiHeadAttention.load(path, H, prefix="attention", layout=layout)
    check(loaded.forward(x), module(x, x, x)[0])


def test_num_heads_beside_the_file(classes, fused, lesson, x, tmp_path, one_line):
    path = str(tmp_path / "model.safetensors")
    safetensors(lesson, path)
    one_line(
        RuntimeError,
        "model.safetensors.*: expected num_heads, .* found neither",
        lambda: classes.FusedMultiHeadAttention.load(path),
    )
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": D, "num_attention_heads": H}))
    loaded = classes.FusedMultiHeadAttention.load(path)
    assert loaded.num_heads() == H
    assert torch.equal(loaded.forward(x), fused.forward(x))
    assert classes.FusedMultiHeadAttention.load(path, num_heads=2).num_heads() == 2


def test_dtype(classes, lesson, x, tmp_path):
    path = str(tmp_path / "weights.pt")
    state_dict(lesson, path)
    loaded = classes.FusedMultiHeadAttention.load(path, H, dtype=torch.bfloat16)
    expected = classes.FusedMultiHeadAttention(lesson.state_dict(), H, torch.bfloat16)
    assert torch.equal(loaded.forward(x.bfloat16()), expected.forward(x.bfloat16()))


def test_the_file_may_change_afterwards(classes, fused, lesson, x, tmp_path):
    path = tmp_path / "weights.safetensors"
    safetensors(lesson, str(path))
    loaded = classes.FusedMultiHeadAttention.load(str(path), H)
    ours = classes.MultiHeadAttention.load(str(path), H)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(loaded.forward(x), fused.forward(x))
    assert torch.equal(loaded.state_dict()["W_o.bias"], lesson.W_o.bias)
    assert torch.equal(ours.forward(x, x, x), lesson(x, x, x))


@pytest.mark.parametrize("name", ["FusedMultiHeadAttention", "MultiHeadAttention"])
def test_errors(classes, lesson, tmp_path, one_line, name):
    load = getattr(classes, name).load
    path = str(tmp_path / "weights.pt")
    state_dict(lesson, path)
    broken = tmp_path / "broken.pt"
    broken.write_bytes((tmp_path / "weights.pt").read_bytes()[:900])
    one_line(RuntimeError, "nowhere: cannot open", lambda: load(str(tmp_path / "nowhere"), H))
    one_line(RuntimeError, "broken.pt", lambda: load(str(broken), H))
    one_line(ValueError, "num_heads that divides d_model 24, found 5", lambda: load(path, 5))
    one_line(
        ValueError, 'expected a layout of .*, found "nonesuch"', lambda: load(path, H, layout="nonesuch")
    )
    one_line(ValueError, "encoder", lambda: load(path, H, "encoder"))
    one_line(ValueError, "pytorch", lambda: load(path, H, layout="pytorch"))

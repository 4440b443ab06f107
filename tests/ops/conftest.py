import sys
from pathlib import Path

import pytest
import torch

from sizes import D, H

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/libmha_ops.so"
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="session")
def ops():
    """torch.ops.mha."""
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} is not built")
    torch.ops.load_library(str(LIBRARY))
    return torch.ops.mha


@pytest.fixture(scope="session")
def classes(ops):
    """torch.classes.mha."""
    return torch.classes.mha


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def randn():
    generator = torch.Generator().manual_seed(3)
    return lambda *size: torch.randn(*size, generator=generator)


@pytest.fixture
def lesson(randn):
    """The lesson's module in Python."""
    from lesson import MultiHeadAttention

    module = MultiHeadAttention(D, H).eval()
    for parameter in module.parameters():
        parameter.copy_(randn(*parameter.shape) * D**-0.5)
    return module


@pytest.fixture
def fused(classes, lesson):
    return classes.FusedMultiHeadAttention(lesson.state_dict(), H)


@pytest.fixture
def check():
    """Values that agree, of a result that says something."""

    def check(found, expected, atol=2e-6):
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)

    return check


@pytest.fixture
def one_line():
    """An error of that kind whose one line matches."""

    def one_line(kind, message, call):
        with pytest.raises(kind, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)

    return one_line

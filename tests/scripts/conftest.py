import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))


class Reference:
    """A reference case as the safetensors package reads it."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            self.metadata: dict[str, str] = file.metadata()
            self.tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def names(self, group: str) -> set[str]:
        """The names under `group/`, without it."""
        return {name.removeprefix(group + "/") for name in self.tensors if name.startswith(group + "/")}


@pytest.fixture
def read():
    return Reference


@pytest.fixture
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture
def make():
    """A lesson module with weights that make attention neither uniform nor one-hot."""
    from lesson import MultiHeadAttention

    def make(d_model: int = 24, num_heads: int = 3, dropout: float = 0.1, cls: type = MultiHeadAttention):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            module = cls(d_model, num_heads, dropout)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.normal_(0, d_model**-0.5)
        return module

    return make


@pytest.fixture
def randn():
    generator = torch.Generator().manual_seed(12)
    return lambda *size, dtype=torch.float32: torch.randn(*size, generator=generator, dtype=dtype)


@pytest.fixture(autouse=True)
def state_of_torch_is_kept():
    """Every test leaves the random state and the number of threads as they were."""
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    assert torch.get_num_threads() == threads
    torch.set_rng_state(random)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of `tensor`, row-major."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def same_bits():
    def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)

    return same_bits

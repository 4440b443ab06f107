import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/libmha_ops.so"
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="session")
def classes():
    """torch.classes.mha."""
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} is not built")
    torch.classes.load_library(str(LIBRARY))
    return torch.classes.mha


@pytest.fixture
def randn():
    generator = torch.Generator().manual_seed(3)
    return lambda *size: torch.randn(*size, generator=generator)

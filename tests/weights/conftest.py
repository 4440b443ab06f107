"""Attention blocks of models from elsewhere, verified through the tool."""

import json
import os
import subprocess
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: nothing is fetched


@pytest.fixture(scope="session")
def mha():
    """Runs the tool and returns the finished process."""

    def mha(*arguments) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [os.environ["MHA_TOOL"], *map(os.fspath, arguments)],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
        )

    return mha


@pytest.fixture(scope="session")
def reported(mha):
    """Runs `mha verify` or `mha diff`; returns the exit status and the cases of the report."""

    def reported(*arguments) -> tuple[int, list[dict[str, Any]]]:
        run = mha(*arguments, "--json", "-")
        assert run.returncode in (0, 1), run.stderr
        return run.returncode, json.loads(run.stdout)["cases"]

    return reported


@pytest.fixture(scope="session")
def refused(mha):
    """Runs the tool, which must refuse; returns its one line."""

    def refused(*arguments) -> str:
        run = mha(*arguments)
        assert run.returncode == 2 and run.stdout == "", run.stdout
        assert run.stderr.count("\n") == 1, run.stderr
        return run.stderr.rstrip("\n")

    return refused


@pytest.fixture(scope="session")
def errors():
    """Collects the errors of a module's blocks and prints them as a table at its end (pytest -s)."""
    table: list[tuple[str, ...]] = []
    yield table
    rows = [("block", "tensor", "PyTorch - float64", "mha - float64", "mha - PyTorch", "ULP"), *table]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


@pytest.fixture(scope="session")
def verify_blocks(reported, errors):
    """`model_attention.verify_blocks` through the tool, its errors added to the table."""
    import model_attention

    def verify_blocks(*arguments, **options) -> None:
        errors.extend(model_attention.verify_blocks(reported, *arguments, **options))

    return verify_blocks

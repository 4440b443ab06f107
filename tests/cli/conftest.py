"""The command-line tool as people and scripts run it: a process, its output, its exit status."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

# All but the line feed: what moves the cursor, colours text or ends a line early, C1 codes included.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_BACKTRACE = re.compile(r"frame #|Exception raised|terminate called|\.cpp:\d|0x[0-9a-f]{6}")


def pytest_configure() -> None:
    tool = os.environ.get("MHA_TOOL", "")
    if not tool:
        raise pytest.UsageError("MHA_TOOL is not set: it must name the mha executable to test")
    if not os.access(tool, os.X_OK):
        raise pytest.UsageError(f"MHA_TOOL={tool}: there is no executable file")


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), f"a key comes twice among {[key for key, _ in pairs]}"
    return dict(pairs)


def strict_json(text: str) -> Any:
    """Parses what RFC 8259 allows; Python's own parser also takes NaN, Infinity and repeated keys."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)


@dataclass
class Run:
    """One finished run of the tool, its streams piped."""

    status: int
    out: str
    err: str

    def error(self) -> str:
        """The one line of a run that was refused before it reported anything."""
        assert self.status == 2 and self.out == ""
        assert self.err.startswith("mha: ") and self.err.endswith("\n") and self.err.count("\n") == 1
        return self.err.rstrip("\n")

    def report(self) -> str:
        """The text report of a run that had nothing to complain about."""
        assert self.status in (0, 1) and self.err == ""
        return self.out

    def rows(self) -> dict[str, str]:
        """The lines of the table by the tensor's name."""
        table = re.search(r"^  tensor +shape .*\n((?:  .*\n)*)\n", self.report(), re.MULTILINE)
        assert table, self.out
        return {re.split(" {2,}", line.strip())[0]: line for line in table[1].splitlines()}

    def json(self) -> dict[str, Any]:
        """What `--json -` wrote to standard output."""
        assert self.status in (0, 1)
        return strict_json(self.out)

    def tensors(self) -> dict[str, dict[str, Any]]:
        """The tensors of the one case in the JSON, by name."""
        (case,) = self.json()["cases"]
        return {tensor["name"]: tensor for tensor in case["tensors"]}


@dataclass
class SavedCase:
    """A file of named tensors, as the safetensors package reads it."""

    path: Path

    def __post_init__(self) -> None:
        with safe_open(self.path, framework="pt") as file:
            self.metadata: dict[str, str] = file.metadata() or {}
            self.tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}

    def weights(self) -> dict[str, torch.Tensor]:
        """The module's state dict."""
        folder = "weights/"
        return {
            name.removeprefix(folder): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(folder)
        }


def _environment(changes: dict[str, str]) -> dict[str, str]:
    # Whoever runs the tests may have turned colours off.
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return inherited | changes


@pytest.fixture(scope="session")
def mha():
    """Runs the tool: `mha("verify", path, env={...}, cwd=folder)`."""

    def mha(*arguments, cwd=None, **env: str) -> Run:
        finished = subprocess.run(
            [os.environ["MHA_TOOL"], *map(os.fspath, arguments)],
            capture_output=True,
            check=False,
            cwd=cwd,
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        out, err = finished.stdout.decode(), finished.stderr.decode()
        # Of every run, whatever it is about.
        assert not _CONTROL.search(out + err), repr(out + err)
        assert not _BACKTRACE.search(err), err
        return Run(finished.returncode, out, err)

    return mha


@pytest.fixture(scope="session")
def on_terminal():
    """Runs the tool with `stream` on a pseudo-terminal; returns the exit status and what was shown there."""

    def on_terminal(*arguments, stream: str = "stdout", **env: str) -> tuple[int, str]:
        leader, follower = pty.openpty()
        others = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr") if name != stream}
        process = subprocess.Popen(
            [os.environ["MHA_TOOL"], *map(os.fspath, arguments)],
            env=_environment(env),
            **{stream: follower},
            **others,
        )
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 1 << 16):
                shown += part
        except OSError:  # How Linux says that nobody holds the other end any more.
            pass
        finally:
            os.close(leader)
        return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")

    return on_terminal


@pytest.fixture(scope="session")
def export(tmp_path_factory):
    """Exports a tiny case of 8 heads of 4 features; the arguments are fields of `reference_inputs.Case`."""
    from reference_case import export_case
    from reference_inputs import Case, make_inputs, make_module

    folder = tmp_path_factory.mktemp("cases")

    def export(**fields) -> SavedCase:
        case = Case(**{"query_len": 5, "key_len": 5, "d_model": 32, "num_heads": 8, **fields})
        path = folder / f"{case.name}.safetensors"
        threads = torch.get_num_threads()
        torch.set_num_threads(case.threads)
        try:
            export_case(
                make_module(case),
                make_inputs(case),
                path,
                mode=case.mode,
                seed=case.seed,
                grads=case.grads,
                init_seed=case.init_seed,
                overwrite=True,
            )
        finally:
            torch.set_num_threads(threads)
        return SavedCase(path)

    return export


@pytest.fixture(scope="session")
def eval_case(export) -> SavedCase:
    """Self-attention in eval mode: no mask, no gradients, weights of its own."""
    return export(grads=False)


@pytest.fixture(scope="session")
def train_case(export) -> SavedCase:
    """Everything a case can hold: three inputs, mask, dropout, gradients, a freshly made module."""
    return export(mode="train", attention="distinct", mask="causal", weights="init")


@pytest.fixture(scope="session")
def eval_run(mha, eval_case) -> Run:
    """`mha verify` of that case, run once for all that look at it."""
    return mha("verify", eval_case.path)


@pytest.fixture(scope="session")
def eval_json(mha, eval_case) -> Run:
    return mha("verify", eval_case.path, "--json", "-")


@pytest.fixture(scope="session")
def train_run(mha, train_case) -> Run:
    return mha("verify", train_case.path)


@pytest.fixture(scope="session")
def write():
    """Writes tensors and metadata to a safetensors file and returns its path."""
    from safetensors_file import write_safetensors

    def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
        write_safetensors(path, tensors, metadata or {}, overwrite=True)
        return path

    return write


@pytest.fixture
def edited(tmp_path, write):
    """Writes a case again with other tensors or metadata; `without` drops a folder of its names."""

    def edited(case: SavedCase, tensors=None, metadata=None, without=None, name="edited.safetensors") -> Path:
        kept = {
            key: tensor
            for key, tensor in case.tensors.items()
            if not without or not key.startswith(without)
        }
        return write(tmp_path / name, kept | (tensors or {}), case.metadata | (metadata or {}))

    return edited


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(scope="session")
def flip_lowest_bit():
    """A copy of a tensor with the lowest bit of one element flipped, and the index of that element."""

    def flip_lowest_bit(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        copy = tensor.clone().contiguous()
        flat = copy.view(-1).view(_INTEGERS[tensor.element_size()])
        where = 2 * flat.numel() // 3  # Neither the first nor the last.
        flat[where] ^= 1
        return copy, [int(i) for i in torch.unravel_index(torch.tensor(where), tensor.shape)]

    return flip_lowest_bit


@pytest.fixture(scope="session")
def with_element():
    """A copy of a tensor with another number at one index."""

    def with_element(tensor: torch.Tensor, index: tuple[int, ...], value: float) -> torch.Tensor:
        copy = tensor.clone()
        copy[index] = value
        return copy

    return with_element


@pytest.fixture
def model(write, tmp_path):
    """Writes tensors of any strides to `model.safetensors` and returns its path."""

    def model(tensors, said=None) -> Path:
        return write(tmp_path / "model.safetensors", {n: t.contiguous() for n, t in tensors.items()}, said)

    return model

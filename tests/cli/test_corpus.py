"""The tool on every file of the corpus: it reads the file or refuses it in one line, soon and in little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
MIB = 1 << 20
MAX_PEAK = 200 * MIB  # beyond the file and what the tool takes for a small one
MAX_SECONDS = 2.0  # of CPU beyond that of a small file; a sanitizer's build is many times slower
SLOWER = float(os.environ.get("MHA_SLOWER", "1"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    subprocess.run([sys.executable, CORPUS / "make_corpus.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def manifest(corpus) -> dict[str, dict]:
    return {file["file"]: file for file in json.loads((corpus / "manifest.json").read_text())["files"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the tool runs: code in a file would leave its mark here."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def runs(corpus, folder) -> list[dict]:
    """What each run took; the first is of a small legal file."""
    command = [sys.executable, CORPUS / "run_tool.py", os.environ["MHA_TOOL"], corpus, folder]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in finished.stdout.splitlines()]


def listed(tensors: list[dict]) -> list[tuple]:
    """Tensors as a listing shows them, but for names in no encoding."""
    return sorted((tensor["name"], tensor["dtype"], tensor["shape"]) for tensor in tensors)


def expected(file: dict) -> list[dict]:
    return [tensor | {"name": bytes.fromhex(tensor["name"]).decode(errors="replace")} for tensor in file["tensors"]]


def wrong(manifest, runs, is_right) -> list[str]:
    tried = [(manifest[run["file"]], run) for run in runs]
    return [f"{file['file']} ({file['rule']}): {run}" for file, run in tried if not is_right(file, run)]


def test_every_file_is_tried(manifest, runs):
    assert len(manifest) >= 150
    assert len(runs) - 1 == len(manifest)


def test_what_is_legal_is_read(manifest, runs):
    def is_right(file, run):
        if file["outcome"] == "refused":
            return True
        if run["status"] != 0 or run["err"]:
            return False
        found = json.loads(run["out"])["tensors"]
        return "\ufffd" in run["out"] or listed(found) == listed(expected(file))

    assert not wrong(manifest, runs, is_right)


def test_what_is_not_is_refused_in_one_line_that_names_the_file(manifest, runs, corpus):
    def is_right(file, run):
        if file["outcome"] == "reads":
            return True
        line = run["err"]
        return (
            run["status"] == 2
            and run["out"] == ""
            and line.startswith(f"mha: {corpus / file['blames']}: ")
            and line.count("\n") == 1
            and line.endswith("\n")
            and file["message"] in line
        )

    assert not wrong(manifest, runs, is_right)


def test_no_file_takes_much_memory(manifest, runs, corpus):
    baseline = runs[0]["peak_kib"] * 1024

    def is_right(file, run):
        size = (corpus / file["file"]).stat().st_size
        return run["peak_kib"] * 1024 - baseline <= size + MAX_PEAK * SLOWER

    assert not wrong(manifest, runs, is_right)


def test_no_file_takes_long(manifest, runs):
    assert not wrong(manifest, runs, lambda file, run: run["cpu_s"] - runs[0]["cpu_s"] <= MAX_SECONDS * SLOWER)


def test_no_code_is_run(runs, folder, corpus):
    assert runs and not list(folder.iterdir())
    assert not list(corpus.rglob("mha-canary"))

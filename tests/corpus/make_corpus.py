#!/usr/bin/env python3
"""Writes the corpus: hostile and odd files of every format, and what must come of each.

    make_corpus.py FOLDER

Each is one rule broken, or one shape of a legal file; what must come of it follows from the rule, not from what any
reader did. FOLDER/manifest.json tells it:

    {"format": "mha.corpus/1", "files": [
      {"file": "zip/overlap.pt", "rule": "bytes of its own", "outcome": "refused", "message": "a part of the message",
       "blames": "zip/overlap.pt"},
      {"file": "zip/stored.pt", "rule": "stored entries", "outcome": "reads", "listed_only": false,
       "tensors": [{"name": "77", "dtype": "float32", "shape": [4], "values": "0000803f..."}]}]}

Names are in hex, for they may be in no encoding; so are values, row-major and little-endian, or they are null. A message
begins with the name of the file that `blames` tells: the one that is read, or a shard of it. `listed_only` marks files
whose tensors stand for more elements than can be looked at one by one. The bytes are the same in every run.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

import index_cases
import legacy_cases
import pickle_cases
import safetensors_cases
import script_cases
import sparse_cases
import torch_cases
import zip_cases
from build import Case

FORMATS = {
    "safetensors": (safetensors_cases, ".safetensors"),
    "zip": (zip_cases, ".pt"),
    "pickle": (pickle_cases, ".pt"),
    "tensor": (torch_cases, ".pt"),
    "legacy": (legacy_cases, ".pt"),
    "script": (script_cases, ".pt"),
    "index": (index_cases, ".json"),
    "sparse": (sparse_cases, ".pt"),
}


def write(case: Case, path: pathlib.Path) -> pathlib.Path:
    """Writes a case and returns the file of it that is to be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if case.parts:
        with path.open("wb") as into:
            for offset, part in case.parts.items():
                into.seek(offset)
                into.write(part)
        return path
    if isinstance(case.content, bytes):
        path.write_bytes(case.content)
        return path
    folder = path.with_suffix("")
    for name, content in case.content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / case.main


def outcome(case: Case) -> dict:
    assert (case.reads is None) != (case.refused is None), case.name
    if case.refused is not None:
        return {"outcome": "refused", "message": case.refused}
    tensors = [
        {
            "name": tensor.name.encode(errors="surrogateescape").hex(),
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "values": None if tensor.values is None else tensor.values.hex(),
        }
        for tensor in case.reads
    ]
    return {"outcome": "reads", "listed_only": case.listed_only, "tensors": tensors}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    files = []
    for name, (module, suffix) in FORMATS.items():
        for case in module.cases():
            path = folder / name / (case.name + suffix)
            assert not path.exists() and not path.with_suffix("").exists(), path
            read = write(case, path)
            blamed = read.parent / (case.blames or read.name)
            files.append(
                {
                    "file": str(read.relative_to(folder)),
                    "rule": case.rule,
                    "blames": str(blamed.relative_to(folder)),
                    **outcome(case),
                }
            )
    text = json.dumps({"format": "mha.corpus/1", "files": files}, indent=1)
    (folder / "manifest.json").write_text(text + "\n")
    refused = sum(file["outcome"] == "refused" for file in files)
    print(f"{len(files)} files in {folder}: {len(files) - refused} to read, {refused} to refuse")


if __name__ == "__main__":
    main()

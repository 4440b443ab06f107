#!/usr/bin/env python3
"""Sorts small files into the folders that fuzzing begins with, one a target.

    make_seeds.py SEEDS FOLDER...

A file goes to the target of its format; the pickle in an archive goes to the target `pickle` too.
"""

import hashlib
import pathlib
import sys
import zipfile

MAX_BYTES = 64 << 10


def target_of(content: bytes) -> str:
    if content.startswith(b"PK"):
        return "archive"
    if content.startswith(b"\x80"):
        return "legacy"
    return "index" if content.lstrip().startswith(b"{") else "safetensors"


def pickles(path: pathlib.Path):
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith("/data.pkl") and entry.file_size < MAX_BYTES:
                    yield archive.read(entry)
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError, ValueError, EOFError):
        return  # broken on purpose


def main() -> None:
    seeds = pathlib.Path(sys.argv[1])
    counts: dict[str, int] = {}

    def add(target: str, content: bytes) -> None:
        if len(content) >= MAX_BYTES:
            return
        path = seeds / target / hashlib.sha1(content).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(content)
            counts[target] = counts.get(target, 0) + 1

    for folder in sys.argv[2:]:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if not path.is_file() or path.name == "manifest.json" or path.stat().st_size > 64 << 20:
                continue
            content = path.read_bytes()
            add(target_of(content), content)
            if content.startswith(b"PK"):
                for pickle in pickles(path):
                    add("pickle", pickle)
    print("new seeds:", ", ".join(f"{count} {target}" for target, count in sorted(counts.items())) or "none")


if __name__ == "__main__":
    main()

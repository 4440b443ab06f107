#!/usr/bin/env python3
"""Runs the tool on every file of the corpus, each in a process of its own, and tells what that took.

    run_tool.py TOOL CORPUS WORKING_FOLDER

Prints a line of JSON for each file: {"file", "status" (negative: the signal), "out", "err", "cpu_s", "wall_s", "peak_kib"}.
The first is for a small legal file. As many run at once as there are processors, which CPU time and memory do not tell.
A process of its own, for the peak memory of a child counts that of whoever started it.
"""

import concurrent.futures
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

COMMAND = ["inspect", "FILE", "--json"]  # looks at no element: some tensors have 2^40
BASELINE = "tensor/whole.pt"
LIMIT_S = 60  # nothing waits longer, however slow the machine is


def limit_children() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


def run(tool: str, path: pathlib.Path, folder: str) -> dict:
    command = [tool, *(str(path) if word == "FILE" else word for word in COMMAND)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, env=environment)
        timer = threading.Timer(LIMIT_S, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read(1 << 20))
    return {
        "status": child.returncode,
        "out": texts[0],
        "err": texts[1],
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": wall,
        "peak_kib": usage.ru_maxrss,
    }


def main() -> None:
    tool, corpus, folder = sys.argv[1:]
    root = pathlib.Path(corpus)
    files = json.loads((root / "manifest.json").read_text())["files"]
    limit_children()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [BASELINE, *(file["file"] for file in files)]
        for name, finished in zip(names, pool.map(lambda name: run(tool, root / name, folder), names)):
            print(json.dumps({"file": name, **finished}), flush=True)


if __name__ == "__main__":
    main()

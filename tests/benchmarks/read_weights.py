#!/usr/bin/env python3
"""Time and memory to read a file of 1 GiB in each format: mha::read_weights against Python's own readers.

    cmake --build build/release --target mha_read_weights_benchmark
    .venv/bin/python tests/benchmarks/read_weights.py build/release/tests/benchmarks/mha_read_weights_benchmark

Writes the files (7 GiB, in the system's folder for temporary files, or under --folder), removes them afterwards and
prints a table. Every reading is a process of its own; the readers take turns, so that what else the machine does falls on
all alike; the first round, which also brings the files into the page cache, does not count. Seconds are taken inside the
process, without its start and imports: `read` until all tensors are there, `all` until each byte has then been summed, by
the same kernel on both sides, on one thread. Each is the median of the rounds. Memory is the process's peak (VmHWM,
mapped pages of files counted) less what it had before reading, since Python and LibTorch need different amounts to start.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

WIDTH = 2048

READERS = {
    "safetensors": ["safe_open", "load_file"],
    "index of 4 shards": ["safe_open", "load_file"],
    "torch.save": ["torch.load mmap", "torch.load"],
    "torch.save, deflated": ["torch.load"],
    "legacy, aligned": ["torch.load"],
    "legacy, unaligned": ["torch.load"],
    "TorchScript": ["torch.jit.load"],
}


def write_files(folder, mib):
    """In a process of its own: its memory must not count as that of the readers it would start."""
    import zipfile

    import torch
    from safetensors.torch import save_file
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("W_q", "W_k", "W_v", "W_o"):
                self.add_module(name, nn.Linear(WIDTH, WIDTH))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            return self.norm(self.W_o(self.W_q(x) + self.W_k(x) + self.W_v(x)))

    torch.manual_seed(0)
    blocks = max(1, mib * 2**20 // (4 * WIDTH * WIDTH * 2))
    model = nn.Sequential(*[Block() for _ in range(blocks)]).bfloat16()
    tensors = model.state_dict()
    save_file(tensors, folder / "safetensors")
    names = list(tensors)
    weight_map = {}
    for i in range(4):
        shard = f"model-{i + 1}-of-4.safetensors"
        part = names[i * len(names) // 4 : (i + 1) * len(names) // 4]
        save_file({name: tensors[name] for name in part}, folder / shard)
        weight_map.update(dict.fromkeys(part, shard))
    (folder / "index of 4 shards").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    torch.save(tensors, folder / "torch.save")
    # The data begins wherever the pickles before it end: a note of one letter more or less makes it odd or even.
    for note in ("x", "xx"):
        path = folder / "legacy"
        torch.save({**tensors, "note": note}, path, _use_new_zipfile_serialization=False)
        path.rename(folder / f"legacy, {'unaligned' if path.stat().st_size % 2 else 'aligned'}")
    torch.jit.script(model).save(str(folder / "TorchScript"))
    with (
        zipfile.ZipFile(folder / "torch.save") as archive,
        zipfile.ZipFile(folder / "torch.save, deflated", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
    ):
        for entry in archive.namelist():
            packed.writestr(entry, archive.read(entry))


def memory(what):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1])
    return 0


def read(path, reader):
    """One reading by Python; prints what the C++ program prints."""
    import time

    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    def opened(name):
        with safe_open(name, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}

    read_one = {
        "safe_open": opened,
        "load_file": load_file,
        "torch.load mmap": lambda name: torch.load(name, mmap=True),
        "torch.load": torch.load,
        "torch.jit.load": lambda name: torch.jit.load(name).state_dict(),
    }[reader]
    torch.set_num_threads(1)
    torch.ones(1024).view(torch.int64).sum().item()
    before = memory("VmRSS")
    start = time.perf_counter()
    if path.name.startswith("index"):
        tensors = {}
        for shard in sorted(set(json.loads(path.read_text())["weight_map"].values())):
            tensors.update(read_one(str(path.parent / shard)))
    else:
        tensors = read_one(str(path))
    seconds = time.perf_counter() - start
    peak_read = memory("VmHWM")
    tensors.pop("note", None)
    total = sum(tensor.view(-1).view(torch.int64).sum().item() for tensor in tensors.values()) % 2**64
    result = {"read": seconds, "all": time.perf_counter() - start, "before": before, "peak_read": peak_read}
    print(json.dumps(result | {"peak": memory("VmHWM"), "tensors": len(tensors), "sum": total}))


def run(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(folder, program, rounds):
    script = [sys.executable, __file__]
    for form, readers in READERS.items():
        results = {reader: [] for reader in ["mha", *readers]}
        for i in range(rounds + 1):
            for reader in results:
                command = [program] if reader == "mha" else [*script, "--reader", reader]
                result = run([*command, str(folder / form)])
                if i:
                    results[reader].append(result)
        facts = {(each["tensors"], each["sum"]) for runs in results.values() for each in runs}
        assert len(facts) == 1, f"{form}: the readers differ: {facts}"
        print_rows(form, results)


def print_rows(form, results):
    def median(reader, value):
        return statistics.median(value(each) for each in results[reader])

    values = [lambda each: each["read"], lambda each: each["all"]]
    values += [lambda each, key=key: (each[key] - each["before"]) / 1024 for key in ("peak_read", "peak")]
    ours = [median("mha", value) for value in values]
    for reader in results:
        row = [median(reader, value) for value in values]
        text = f"{form:<21} {reader:<16} {row[0]:8.4f} {row[1]:8.3f} {row[2]:9.0f} {row[3]:9.0f}"
        if reader != "mha":
            text += f"   {row[0] / ours[0]:8.1f} {row[1] / ours[1]:6.2f} {row[3] / ours[3]:6.2f}"
        print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the C++ program; with --reader a file to read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of a file")
    parser.add_argument("--folder", help="where to put the files")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        read(pathlib.Path(arguments.program), arguments.reader)
        return
    if arguments.write:
        write_files(pathlib.Path(arguments.program), arguments.mib)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="mha-read-") as folder:
        subprocess.run([sys.executable, __file__, folder, "--write", "--mib", str(arguments.mib)], check=True)
        print(f"{'':<38} {'seconds':>17} {'peak, MiB':>19}   {'theirs / ours':>22}")
        heads = ("read", "all", "read", "all", "read", "all", "memory")
        print("{:<21} {:<16} {:>8} {:>8} {:>9} {:>9}   {:>8} {:>6} {:>6}".format("file", "reader", *heads))
        measure(pathlib.Path(folder), arguments.program, arguments.rounds)


if __name__ == "__main__":
    main()

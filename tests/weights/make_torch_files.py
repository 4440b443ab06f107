#!/usr/bin/env python3
"""Writes files of every kind that PyTorch writes, each with a twin of what Python reads from it.

    make_torch_files.py FOLDER

For `FOLDER/<name>.pt` there is `FOLDER/<name>.safetensors`: the tensors that `torch.load`, or `torch.jit.load` and
`state_dict()`, give, under their names. safetensors holds no complex128; such tensors are there as their real view, under
a name with `|complex128` behind it.
"""

import argparse
import collections
import pathlib
import sys
import warnings
from typing import Optional

import torch
from safetensors.torch import save_file
from torch import nn

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip

NEW_INTEGERS = ["uint16", "uint32", "uint64"]


def values(*shape, dtype=torch.float32):
    """Every bit pattern is as good as another."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    numel = int(torch.Size(shape).numel())
    return torch.randint(0, 256, (numel * size,), dtype=torch.uint8).view(dtype).reshape(shape)


class Attention(nn.Module):
    """Sub-modules, parameters, buffers of both kinds, a tied parameter and a plain tensor."""

    def __init__(self):
        super().__init__()
        self.W_q = nn.Linear(6, 6)
        self.W_k = nn.Linear(6, 6, bias=False)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Sequential(nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4))])
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_parameter("absent", None)
        self.tied = self.W_q.weight
        self.register_buffer("mask", torch.ones(6, 6).tril().bool())
        self.register_buffer("none", None)
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.plain = torch.arange(3.0)

    def forward(self, x):
        q = self.W_q(x) * self.scale + self.cache.sum() + self.plain.sum()
        return self.blocks[1](self.blocks[0](q + self.W_k(x)).masked_fill(~self.mask, 0.0))


class Holder(nn.Module):
    """Tensors in list, dict and tuple attributes, which `state_dict()` leaves out."""

    def __init__(self):
        super().__init__()
        self.inner = Attention()
        self.list = [torch.ones(2), torch.zeros(3)]
        self.dict = {"a": torch.full((2,), 2.0), "b": torch.full((1,), 3.0)}
        self.tuple = (torch.ones(1), torch.zeros(1))
        self.empty = torch.jit.annotate(list[torch.Tensor], [])
        self.names = ["x", "y"]
        self.count = 3

    def forward(self, x):
        return self.inner(x) + self.list[0].sum() + self.dict["a"].sum() + self.tuple[0] + self.count


class Optionals(nn.Module):
    """Parameters, buffers and plain tensors that may be None, and those of modules of PyTorch."""

    parameter: Optional[torch.Tensor]
    buffer: Optional[torch.Tensor]
    plain: Optional[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.ones(3))
        self.plain = torch.ones(4)
        self.norm = nn.BatchNorm1d(3)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.parameters_list = nn.ParameterList([nn.Parameter(torch.ones(1))])

    def forward(self, x):
        return self.norm(x)


class Subclass(torch.Tensor):
    pass


def flatten(value, prefix=None):
    """Names as `mha::read_weights` promises them."""
    if isinstance(value, torch.Tensor):
        return {prefix or "": value}
    if isinstance(value, nn.Module):
        return flatten(dict(value.state_dict()), prefix)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found = {}
    for key, item in items:
        found.update(flatten(item, str(key) if prefix is None else f"{prefix}.{key}"))
    return found


class Files:
    def __init__(self, folder):
        self.folder = folder

    def twin(self, name, tensors):
        twins = {}
        for key, tensor in tensors.items():
            plain = tensor.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
            plain = plain.clone(memory_format=torch.contiguous_format)
            if plain.dtype == torch.complex128:
                key, plain = key + "|complex128", torch.view_as_real(plain).contiguous()
            twins[key] = plain
        save_file(twins, self.folder / f"{name}.safetensors")

    def save(self, name, value, **options):
        path = self.folder / f"{name}.pt"
        torch.save(value, path, **options)
        self.twin(name, flatten(torch.load(path, weights_only=False)))

    def save_both(self, name, value):
        self.save(name, value)
        self.save(name + "-legacy", value, _use_new_zipfile_serialization=False)

    def script(self, name, module, extra=None):
        path = self.folder / f"{name}.pt"
        module.save(str(path))
        self.twin(name, {**torch.jit.load(path).state_dict(), **(extra or {})})


def python_files(files):
    model = Attention()
    dtypes = {str(each).partition(".")[2]: values(3, 5, dtype=each) for each in DTYPES}
    files.save("dtypes", dtypes)
    # Python cannot read its own legacy files of dtypes that have no storage class.
    old = {name: tensor for name, tensor in dtypes.items() if "float8" not in name and name not in NEW_INTEGERS}
    files.save("dtypes-legacy", old, _use_new_zipfile_serialization=False)
    files.save_both("state-dict", model.state_dict())
    files.save_both("module", model)
    files.save_both("list", [values(2), (values(3), [values(1, 1)]), "text", None, 5])
    files.save_both("tensor", values(4))
    files.save_both("parameter", {"p": nn.Parameter(values(2, 3)), "b": nn.Buffer(values(2))})
    base = values(40)
    files.save_both(
        "views",
        {
            "whole": base,
            "offset": base[7:19],
            "transposed": base.view(5, 8).t(),
            "strided": base[1::3],
            "expanded": base[:1].expand(4, 1),
            "scalar": base[3],
            "empty": base[:0],
            "empty3d": torch.empty(3, 0, 2),
            "same": base,
        },
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 6, 6)).sum().backward()
    optimizer.step()
    files.save_both(
        "checkpoint",
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 7,
            "big": 2**80,
            "negative": -(2**40),
            "loss": 0.25,
            "config": argparse.Namespace(heads=8, names={"a", "b"}, frozen=frozenset([1])),
            "by number": {0: values(2), 2**40: values(1), -1: values(1)},
            "default": collections.defaultdict(list, {"x": values(2)}),
            "device": torch.device("cpu"),
            "dtype": torch.float16,
            "shape": torch.Size([1, 2]),
            "bytes": b"\x00\x01",
            "größe": values(1),
            "": {"": values(1)},
        },
    )
    conj = values(3, dtype=torch.float32).nan_to_num() + 1j
    files.save("lazy", {"conj": conj.conj(), "neg": conj.clone().conj().imag})
    files.save("attributes", {"t": tag(values(2)), "s": values(2).as_subclass(Subclass)})
    files.save("protocol4", {"a": values(2), "s": {1, 2}, "f": frozenset([1]), "t": (1, 2, 3, 4)}, pickle_protocol=4)
    files.save("protocol5", [values(2), bytearray(b"x")], pickle_protocol=5)
    files.save("nothing", {})
    files.save("many", {f"layer.{i}.weight": values(3) for i in range(3000)})
    torch.serialization.set_crc32_options(False)
    files.save("no-crc", {"a": values(1000)})
    torch.serialization.set_crc32_options(True)
    torch.save({"a": values(3), "b": values(2, dtype=torch.float64)}, files.folder / "packed.tmp")
    repack(files, "deflated", 8)
    repack(files, "stored", 0)
    (files.folder / "packed.tmp").unlink()


def tag(tensor):
    tensor.note = "kept with the tensor"
    return tensor


def repack(files, name, method):
    """The archive as unzip and zip would leave it: other alignment, perhaps deflated."""
    import zipfile

    path = files.folder / f"{name}.pt"
    source = files.folder / "packed.tmp"
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w", method) as packed:
        for entry in archive.namelist():
            packed.writestr(entry, archive.read(entry))
    files.twin(name, torch.load(source))


def script_files(files):
    model = Attention().eval()
    example = torch.randn(2, 6, 6)
    # `plain` is in the file, but no parameter and no buffer; tracing makes it a constant.
    files.script("scripted", torch.jit.script(model))
    files.script("traced", torch.jit.trace(model, example))
    files.script("scripted-sequential", torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.PReLU()))))
    holder = Holder().eval()
    more = {f"list.{i}": each for i, each in enumerate(holder.list)}
    more |= {f"dict.{key}": each for key, each in holder.dict.items()}
    more |= {f"tuple.{i}": each for i, each in enumerate(holder.tuple)}
    files.script("scripted-holder", torch.jit.script(holder), more)
    half = Attention().half().eval()
    files.script("scripted-half", torch.jit.script(half))
    optional = Optionals().eval()
    # A buffer that may be None is one all the same, though the loaded module's state_dict() forgets it.
    files.script("scripted-optional", torch.jit.script(optional), {"buffer": optional.buffer})
    files.script("traced-nested", torch.jit.trace(nn.Sequential(nn.Sequential(Attention().eval()), nn.BatchNorm1d(6)).eval(), example))
    lstm = nn.LSTM(2, 3, num_layers=2)
    flat = {f"_flat_weights.{i}": each for i, each in enumerate(lstm._flat_weights)}
    files.script("scripted-lstm", torch.jit.script(lstm), flat)
    torch.jit.freeze(torch.jit.script(model)).save(str(files.folder / "frozen.refused"))


def refused_files(files):
    """Files without a twin: what is no dense tensor on a CPU must be refused by name."""

    def save(name, value):
        torch.save(value, files.folder / f"{name}.refused")

    save("meta", {"m": torch.empty(3, device="meta")})
    save("sparse", {"sp": torch.eye(3).to_sparse()})
    save("quantized", {"qt": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)})
    save("collide", {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}})
    save("keys", {(1, 2): torch.ones(1)})


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    files = Files(folder)
    python_files(files)
    script_files(files)
    refused_files(files)
    print(f"{len(list(folder.glob('*.pt')))} files in {folder}")


if __name__ == "__main__":
    main()

"""TorchScript archives, and those of C++'s `torch::save`, which are of the same kind."""

from __future__ import annotations

import io
import zipfile

import torch

from build import DATA, Case, Expected, W, archive, call, dct, deflated, file, floats, glob, lst, pkl, storage, tensor, text, tup

LOOP = b"class M(Module):\n  __parameters__ = [\"w\", ]\n  def __setstate__(self, state) -> NoneType:\n    while True:\n      pass\n"
WEIGHT = floats(1, 2)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False)
        self.linear.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))

    def forward(self, x):
        return self.linear(x) + torch.ones(1)


class WithState(Small):
    """A scripted module that pickles itself."""

    def __init__(self):
        super().__init__()
        self.weight = torch.ones(2)

    @torch.jit.export
    def __getstate__(self):
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.weight = state[0]
        self.training = state[1]


def saved_script(module) -> bytes:
    into = io.BytesIO()
    torch.jit.save(module, into)
    # Without what tells where code came from: it is not the same in every run.
    return edited(into.getvalue(), lambda name, data: None if name.endswith(".debug_pkl") else data)


def edited(source: bytes, change) -> bytes:
    """The archive with what `change(name, data)` makes of its entries; None drops one."""
    with zipfile.ZipFile(io.BytesIO(source)) as old:
        kept = [(name, change(name, old.read(name))) for name in old.namelist()]
    return archive([file(name, data) for name, data in kept if data is not None])


def module(attributes: bytes, name: str = "M") -> bytes:
    return glob("__torch__", name) + b")\x81" + attributes + b"b"


def script(value: bytes, *more) -> bytes:
    return archive([file("m/data.pkl", pkl(value)), file("m/data/0", DATA), file("m/code/__torch__.py", b"class M(Module):\n"), file("m/constants.pkl", pkl(b")")), *more])


def many_paths() -> bytes:
    """Objects whose classes are named with a dot or a slash in each of eleven places."""
    objects = []
    for i in range(2048):
        name = "__torch__.a" + "".join("./"[i >> bit & 1] + "a" for bit in range(11))
        objects.append(glob(name, "M") + b")\x81" + dct({"w": tensor()}) + b"b")
    return lst(*objects)


def legal() -> list[Case]:
    def reads(name, rule, content, *tensors):
        return Case(name, rule, content, reads=list(tensors))

    linear = Expected("linear.weight", "float32", (1, 2), WEIGHT)
    torch.manual_seed(0)
    scripted = saved_script(torch.jit.script(Small()))
    traced = saved_script(torch.jit.trace(Small(), torch.ones(1, 2)))
    helpers = "torch.jit._pickle"
    typed = call(glob(helpers, "restore_type_tag"), lst(tensor()), text("List[Tensor]"))
    return [
        reads("scripted", "a scripted module", scripted, linear),
        reads("traced", "a traced module", traced, linear),
        reads("no-constants", "an archive of an old version, without constants", edited(scripted, lambda name, data: None if "constants" in name else data), linear),
        reads("code-garbage", "code is not read", edited(scripted, lambda name, data: b"\xff\0garbage" if "/code/" in name else data), linear),
        reads("code-missing", "code is not read", edited(scripted, lambda name, data: None if "/code/" in name else data), linear),
        reads("set-state-loop", "code is not run: it would loop for ever", script(module(dct({"w": tensor()})), file("m/code/__torch__/M.py", LOOP)), W),
        reads("traced-inputs-empty", "traced inputs are not read", script(module(dct({"w": tensor()})), file("m/traced_inputs.pkl"), file("m/traced_inputs/0")), W),
        reads("traced-inputs-broken", "traced inputs are not read", script(module(dct({"w": tensor()})), file("m/traced_inputs.pkl", b"\xff" * 10)), W),
        reads("constants-broken", "constants have no names and are not read", script(module(dct({"w": tensor()})), file("m/constants/0", b"?")), W),
        reads("attributes", "attributes that are no tensors", script(module(dct({"training": b"\x89", "_is_full_backward_hook": b"N", "w": tensor(), "n": b"K\1"}))), W),
        reads("nested", "modules in modules", script(module(dct({"a": module(dct({"w": tensor()}), "N")}))), Expected("a.w", "float32", (4,), DATA)),
        reads("type-tag", "a list with its type", script(module(dct({"l": typed}))), Expected("l.0", "float32", (4,), DATA)),
        reads("tensor-list", "a list of tensors", script(module(dct({"l": call(glob(helpers, "build_tensorlist"), lst(tensor()))}))), Expected("l.0", "float32", (4,), DATA)),
        reads("dict", "a dict of tensors", script(module(dct({"d": call(glob(helpers, "restore_type_tag"), dct({"k": tensor()}), text("Dict[str, Tensor]"))}))), Expected("d.k", "float32", (4,), DATA)),
        reads("int-list", "lists of numbers", script(module(dct({"w": tensor(), "l": call(glob(helpers, "build_intlist"), lst(b"K\1"))}))), W),
        reads("named-tuple", "a tuple of a class", script(module(dct({"t": call(glob("__torch__", "Pair"), tensor(), b"N")}))), Expected("t.0", "float32", (4,), DATA)),
        reads("plain-tensor", "a tensor that is neither parameter nor buffer is left out, as state_dict() does",
              archive([file("m/data.pkl", pkl(module(dct({"w": tensor(), "plain": tensor()})))), file("m/data/0", DATA), file("m/constants.pkl", pkl(b")")),
                       file("m/code/__torch__.py", b'class M(Module):\n  __parameters__ = ["w", ]\n  __buffers__ = []\n')]), W),
        reads("paths-that-multiply", "names of classes that lead to one file in many ways",
              archive([file("m/data.pkl", pkl(many_paths())), file("m/data/0", DATA), file("m/constants.pkl", pkl(b")")),
                       file("m/code/__torch__" + "/a" * 12 + ".py", b"  __parameters__ = []\n" * 20_000)]),
              *(Expected(f"{i}.w", "float32", (4,), DATA) for i in range(2048))),
        reads("much-code", "code that is too much to look into", script(module(dct({"w": tensor()})), deflated("m/code/__torch__/M.py", b"#" * (1 << 24))), W),
        reads("empty", "a module without parameters", script(module(b"}"))),
        reads("cpp-module", "a module saved in C++", script(module(dct({"W_q": module(dct({"weight": tensor()}), "Module"), "b": tensor(storage(), 0, (2,))}), "Module")),
              Expected("W_q.weight", "float32", (4,), DATA), Expected("b", "float32", (2,), DATA[:8])),
        reads("cpp-tensor", "a tensor saved in C++", script(module(dct({"0": tensor()}), "Module")), Expected("0", "float32", (4,), DATA)),
        reads("cpp-pickle", "a tensor that C++'s pickle_save wrote", script(tensor()), Expected("", "float32", (4,), DATA)),
    ]  # fmt: skip


def broken() -> list[Case]:
    def refused(name, rule, content, message):
        return Case(name, rule, content, refused=message)

    frozen = saved_script(torch.jit.freeze(torch.jit.script(Small().eval())))
    scripted = saved_script(torch.jit.script(Small()))
    stateful = saved_script(torch.jit.script(WithState()))
    loop = file("m/code/__torch__/M.py", LOOP)
    state = 'expected attributes, found what the __getstate__ of "__torch__.'
    kept = "(only running its code tells their names)"
    short = edited(scripted, lambda name, data: data[:-1] if "/data/" in name else data)
    return [
        refused("frozen", "parameters that are kept", frozen, "expected parameters, found none: this TorchScript module was frozen"),
        refused("get-state", "attributes by name", stateful, state),
        refused("get-state-tuple", "attributes by name", script(module(tup(tensor(), b"\x89")), loop), kept),
        refused("get-state-list", "attributes by name", script(module(lst(tensor()))), kept),
        refused("get-state-tensor", "attributes by name", script(module(tensor())), kept),
        refused("record-short", "records of the told size", short, "expected 2 elements of 4 bytes, found 7 bytes"),
        refused("record-missing", "a record for each storage", edited(scripted, lambda name, data: None if "/data/" in name else data), 'expected its data in an entry "'),
        refused("no-pickle", "a pickle", edited(scripted, lambda name, data: None if name.endswith("/data.pkl") else data), "expected a zip archive of PyTorch, with an entry <folder>/data.pkl"),
        refused("circle", "an end", script(glob("__torch__", "M") + b")\x81q\1" + dct({"me": b"h\1"}) + b"b"), "expected at most 256 levels, found more (a circle?)"),
        refused("deep", "at most 256 levels", script(b"N" + (b"q\1" + b"0" + module(dct({"a": b"h\1"}))) * 1000), "at most 256 levels"),
        refused("attribute-twice", "one tensor of a name", script(module(dct({"a.b": tensor(), "a": module(dct({"b": tensor()}))}))), 'tensor "a.b": expected one tensor of that name, found two'),
        refused("type-tag-circle", "an end", script(b"]q\1(" + call(glob("torch.jit._pickle", "restore_type_tag"), b"h\1", text("List[Any]")) + b"e"), "at most 256 levels"),
        refused("bomb", "inflated data of a bounded size", archive([deflated("m/data.pkl", pkl(module(dct({"w": tensor()})))), deflated("m/data/0", bytes(1 << 28))]), "expected deflated entries of at most"),
    ]  # fmt: skip


def cases() -> list[Case]:
    return [*legal(), *broken()]

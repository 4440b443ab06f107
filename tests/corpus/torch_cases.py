"""Tensors in archives of `torch.save`: what PyTorch writes, made by PyTorch, and records that describe what is not there."""

from __future__ import annotations

import io
import struct
import warnings

import torch

from build import DATA, HOOKS, REBUILD, Case, Expected, call, dct, floats, glob, integer, ints, saved, storage, tensor, text, tup


def legal() -> list[Case]:
    def reads(name, rule, value, shape, values, dtype="float32", data=DATA, listed_only=False):
        return Case(name, rule, saved(dct({"w": value}), data), reads=[Expected("w", dtype, shape, values)], listed_only=listed_only)

    def view(offset, shape, strides):
        return tensor(b"", offset, shape, strides)

    def parameter(name, *more):
        return call(glob("torch._utils", name), tensor(), b"\x88", HOOKS, *more)

    def v3(dtype, held, shape, strides, *more):
        return call(glob("torch._utils", "_rebuild_tensor_v3"), held, b"K\0", ints(*shape), ints(*strides), b"\x89", HOOKS, glob("torch", dtype), *more)

    complex_data = floats(1, 2, 3, 4)
    flagged = complex_view("ComplexFloatStorage", 2)
    expanded = complex_view("ComplexFloatStorage", 2, (2**40,), (0,))
    return [
        reads("whole", "a whole storage", tensor(), (4,), DATA),
        reads("offset", "a part of one", view(1, (2,), (1,)), (2,), DATA[4:12]),
        reads("transposed", "strides", view(0, (2, 2), (1, 2)), (2, 2), floats(1, 3, 2, 4)),
        reads("strided", "every second element", view(0, (2,), (2,)), (2,), floats(1, 3)),
        reads("overlapping", "elements that share memory", view(0, (3, 2), (1, 1)), (3, 2), floats(1, 2, 2, 3, 3, 4)),
        reads("expanded", "one element again and again", view(3, (2, 2), (0, 0)), (2, 2), floats(4, 4, 4, 4)),
        reads("expanded-far", "far more elements than the file has bytes", view(0, (2**40,), (0,)), (2**40,), None, listed_only=True),
        reads("strides-of-one", "strides of dimensions of one do not matter", view(0, (1, 4), (2**62, 1)), (1, 4), DATA),
        reads("scalar", "no dimension", view(3, (), ()), (), floats(4)),
        reads("empty", "no element", view(0, (0,), (1,)), (0,), b""),
        reads("empty-anywhere", "no element, at an offset outside", view(2**40, (0, 3), (3, 1)), (0, 3), b""),
        reads("64-dimensions", "as many dimensions as Python allows", view(0, (1,) * 63 + (4,), (1,) * 64), (1,) * 63 + (4,), DATA),
        reads("version-1", "the function of PyTorch 0.3", call(glob("torch._utils", "_rebuild_tensor"), storage(), b"K\0", ints(4), ints(1)), (4,), DATA),
        reads("version-3", "a dtype beside an untyped storage", v3("uint16", storage("0", 16, "UntypedStorage"), (8,), (1,)), (8,), DATA, "uint16"),
        reads("parameter", "a parameter", parameter("_rebuild_parameter"), (4,), DATA),
        reads("parameter-with-state", "a parameter with attributes", parameter("_rebuild_parameter_with_state", dct({"a": b"N"})), (4,), DATA),
        reads("subclass", "a tensor of another class", call(glob("torch._tensor", "_rebuild_from_type_v2"), REBUILD, glob("my", "Tensor"),
              tup(storage(), b"K\0", ints(4), ints(1), b"\x89", HOOKS), b"}"), (4,), DATA),
        reads("size-in-size", "a shape in a torch.Size", call(REBUILD, storage(), b"K\0", call(glob("torch", "Size"), ints(2, 2)), ints(2, 1), b"\x89", HOOKS), (2, 2), DATA),
        reads("cuda", "saved on a GPU", tensor(storage("0", 4, "FloatStorage", "cuda:0")), (4,), DATA),
        reads("cuda-class", "saved on a GPU by an old version", tensor(tup(text("storage"), glob("torch.cuda", "FloatStorage"), text("0"), text("cuda:7"), b"K\4") + b"Q"), (4,), DATA),
        reads("unknown-location", "a device that no machine has", tensor(storage("0", 4, "FloatStorage", "tpu:9")), (4,), DATA),
        reads("conjugated", "lazily conjugated", flagged(conj=True), (2,), floats(1, -2, 3, -4), "complex64", complex_data),
        reads("negated", "lazily negated", flagged(neg=True), (2,), floats(-1, -2, -3, -4), "complex64", complex_data),
        reads("conjugated-and-negated", "both", flagged(conj=True, neg=True), (2,), floats(-1, 2, -3, 4), "complex64", complex_data),
        reads("flags-false", "flags that say nothing", flagged(conj=False), (2,), complex_data, "complex64", complex_data),
        reads("conjugated-far", "lazily conjugated: each element of the storage once", expanded(conj=True), (2**40,), None, "complex64", complex_data, listed_only=True),
        reads("conjugated-real", "conjugated, of a real dtype", call(REBUILD, storage(), b"K\0", ints(4), ints(1), b"\x89", HOOKS, dct({"conj": b"\x88"})), (4,), DATA),
    ]  # fmt: skip


def complex_view(kind, elements, shape=None, strides=(1,)):
    """A maker of tensors with flags."""

    def make(**flags):
        pairs = dct({name: b"\x88" if value else b"\x89" for name, value in flags.items()})
        return call(REBUILD, storage("0", elements, kind), b"K\0", ints(*(shape or (elements,))), ints(*strides), b"\x89", HOOKS, pairs)

    return make


def out_of_storage() -> list[Case]:
    huge = 2**62
    inside = 'tensor "w": expected elements inside its storage of 4 float32, found shape '
    below = 'tensor "w": expected a shape of less than 2^63 bytes, found '

    def refused(name, rule, value, message, *storages):
        return Case(name, rule, saved(dct({"w": value}), *storages), refused=message)

    def view(name, rule, offset, shape, strides, message):
        return refused(name, rule, tensor(b"", offset, shape, strides), message)

    in_storage = "elements inside the storage"
    count = "that can be counted"
    return [
        view("one-more", in_storage, 0, (5,), (1,), inside + "(5,), strides (1,), offset 0"),
        view("offset-1", in_storage, 1, (4,), (1,), inside + "(4,), strides (1,), offset 1"),
        view("offset-end", in_storage, 4, (1,), (1,), "offset 4"),
        view("offset-scalar", in_storage, 4, (), (), inside + "(), strides (), offset 4"),
        view("offset-2-63", in_storage, 2**63 - 1, (2,), (1,), "offset 9223372036854775807"),
        view("strides-far", in_storage, 0, (2, 2), (3, 1), inside + "(2, 2), strides (3, 1), offset 0"),
        view("stride-2-62", in_storage, 0, (2,), (huge,), inside),
        view("stride-wraps", "strides " + count, 0, (5,), (huge,), below),
        view("stride-sum-wraps", "strides " + count, 0, (2, 2, 2), (huge, huge, 2), below),
        view("numel-2-62", in_storage, 0, (huge // 4,), (1,), inside),
        view("numel-wraps-to-0", "a shape " + count, 0, (2**32, 2**32), (0, 0), below),
        view("numel-wraps-to-4", "a shape " + count, 0, (huge + 1, 4), (0, 0), below),
        view("bytes-wrap", "bytes " + count, 0, (huge,), (0,), below),
        view("empty-wraps", "a shape of 0 elements " + count, 0, (0, 2**32, 2**32), (1, 1, 1), below),
        view("shape-negative", "no negative dimension", 0, (-1,), (1,), "expected a shape that is an integer from 0 to 2^63 - 1, found the integer -1"),
        view("stride-negative", "no negative stride", 3, (4,), (-1,), "expected strides that is an integer from 0 to 2^63 - 1, found the integer -1"),
        view("offset-negative", "no negative offset", -1, (1,), (1,), "expected an offset that is an integer from 0 to 2^63 - 1, found the integer -1"),
        view("strides-fewer", "a stride a dimension", 0, (2, 2), (1,), "expected as many strides as dimensions, found shape (2, 2) and strides (1,)"),
        view("strides-more", "a stride a dimension", 0, (), (1,), "expected as many strides as dimensions, found shape () and strides (1,)"),
        view("65-dimensions", "at most 64 dimensions", 0, (1,) * 65, (1,) * 65, "expected at most 64 dimensions, found 65"),
        refused("elements-more", "a storage of the told size", tensor(storage("0", 5)), 'tensor "w": storage "0": expected 5 elements of 4 bytes, found 16 bytes'),
        refused("elements-fewer", "a storage of the told size", tensor(storage("0", 3), 0, (3,)), "expected 3 elements of 4 bytes, found 16 bytes"),
        refused("elements-2-62", "a storage of the told size", tensor(storage("0", huge)), "expected 4611686018427387904 elements of 4 bytes, found 16 bytes"),
        refused("elements-negative", "no negative number of elements", tensor(storage("0", -4)), "expected a number of elements that is an integer from 0 to 2^63 - 1, found the integer -4"),
        refused("elements-text", "a number of elements", tensor(tup(text("storage"), glob("torch", "FloatStorage"), text("0"), text("cpu"), text("4")) + b"Q"), 'a number of elements that is an integer from 0 to 2^63 - 1, found the text "4"'),
        refused("elements-real", "a number of elements", tensor(tup(text("storage"), glob("torch", "FloatStorage"), text("0"), text("cpu"), b"G" + struct.pack(">d", 4)) + b"Q"), "found the number 4.0"),
        refused("elements-big", "a number of elements in 64 bits", tensor(tup(text("storage"), glob("torch", "FloatStorage"), text("0"), text("cpu"), b"\x8a\x09" + bytes(8) + b"\1") + b"Q"), "found an integer of 9 bytes"),
    ]  # fmt: skip


def records() -> list[Case]:
    """Records of tensors and storages that are none."""

    def refused(name, rule, value, message, *storages):
        return Case(name, rule, saved(dct({"w": value}), *storages), refused='tensor "w": expected ' + message)

    def held(*items, operation=b"Q"):
        return tensor(tup(*items) + operation)

    s, k, c, four = text("storage"), text("0"), text("cpu"), b"K\4"
    kind = glob("torch", "FloatStorage")
    utils = "torch._utils"
    nested = tensor()
    for _ in range(20):
        nested = call(glob(utils, "_rebuild_parameter"), nested, b"\x88", HOOKS)
    arguments = "a storage, an offset, a shape and strides, found "
    v3 = glob(utils, "_rebuild_tensor_v3")
    unsupported = {
        "qtensor": "a quantized one", "sparse_tensor": "a sparse one", "sparse_csr_tensor": "a sparse one", "nested_tensor": "a nested one",
        "meta_tensor_no_storage": "one on the meta device", "wrapper_subclass": "a subclass without data of its own",
        "device_tensor_from_numpy": "one kept as a NumPy array", "xla_tensor": "one kept as a NumPy array",
    }  # fmt: skip
    return [
        *(refused(f"rebuild-{name}", "a dense tensor on a CPU", call(glob(utils, f"_rebuild_{name}")), f"a dense tensor, found {found}") for name, found in unsupported.items()),
        refused("no-arguments", "the arguments of the function", call(REBUILD), arguments + "0 arguments"),
        refused("three-arguments", "the arguments of the function", call(REBUILD, storage(), b"K\0", ints(4)), arguments + "3 arguments, the first a storage"),
        refused("no-storage", "a storage", call(REBUILD, b"N", b"K\0", ints(4), ints(1)), arguments + "4 arguments, the first None"),
        refused("tensor-as-storage", "a storage", call(REBUILD, tensor(), b"K\0", ints(4), ints(1)), arguments + "4 arguments, the first an object of"),
        refused("shape-text", "a shape", call(REBUILD, storage(), b"K\0", text("x"), ints(1)), 'a shape in a tuple, found the text "x"'),
        refused("shape-of-text", "a shape of integers", call(REBUILD, storage(), b"K\0", tup(text("4")), ints(1)), 'a shape that is an integer from 0 to 2^63 - 1, found the text "4"'),
        refused("shape-dict", "a shape", call(REBUILD, storage(), b"K\0", b"}", ints(1)), "a shape in a tuple, found a dict"),
        refused("shape-size-of-nothing", "a shape", call(REBUILD, storage(), b"K\0", call(glob("torch", "Size")), ints(1)), 'a shape in a tuple, found an object of "torch.Size"'),
        refused("strides-none", "strides", call(REBUILD, storage(), b"K\0", ints(4), b"N"), "strides in a tuple, found None"),
        refused("offset-none", "an offset", call(REBUILD, storage(), b"N", ints(4), ints(1)), "an offset that is an integer from 0 to 2^63 - 1, found None"),
        refused("dtype-missing", "a dtype", call(v3, storage(), b"K\0", ints(4), ints(1), b"\x89", HOOKS), arguments + "6 arguments"),
        refused("dtype-text", "a dtype", call(v3, storage(), b"K\0", ints(4), ints(1), b"\x89", HOOKS, text("float32")), 'a dtype such as torch.float32, found the text "float32"'),
        refused("dtype-unknown", "a dtype", call(v3, storage(), b"K\0", ints(4), ints(1), b"\x89", HOOKS, glob("torch", "float128")), 'a dtype such as torch.float32, found the class or function "torch.float128"'),
        refused("dtype-quantized", "a dense tensor", call(v3, storage("0", 16, "UntypedStorage"), b"K\0", ints(4), ints(1), b"\x89", HOOKS, glob("torch", "qint8")), "a dense tensor, found a quantized one"),
        refused("quantized-storage", "a dense tensor", tensor(storage("0", 16, "QInt8Storage")), "a dense tensor, found a quantized one"),
        refused("id-none", "an id of a storage", call(REBUILD, b"NQ", b"K\0", ints(4), ints(1)), 'a storage of ("storage", class, key, location, elements), found None'),
        refused("id-short", "an id of five parts", held(s, kind, k, c), "a storage of"),
        refused("id-other", "a storage", held(text("module"), kind, k, c, four), 'a storage, found the text "module"'),
        refused("id-list", "an id in a tuple", tensor(lst_of(s, kind, k, c, four)), "a storage of"),
        refused("class-text", "a class of storage", held(s, text("FloatStorage"), k, c, four), 'a class of storage such as torch.FloatStorage, found the text "FloatStorage"'),
        refused("class-unknown", "a class of storage", held(s, glob("torch", "EvilStorage"), k, c, four), 'a class of storage such as torch.FloatStorage, found the class or function "torch.EvilStorage"'),
        refused("class-of-os", "a class of storage", held(s, glob("os", "system"), k, c, four), 'a class of storage such as torch.FloatStorage, found the class or function "os.system"'),
        refused("key-number", "a key that is text", held(s, kind, b"K\0", c, four), "the key of a storage as text, found the integer 0"),
        refused("key-absent", "a record for each storage", tensor(storage("7")), 'its data in an entry "m/data/7", found none'),
        refused("key-outside", "a record in the archive", tensor(storage("../../etc/passwd")), 'its data in an entry "m/data/../../etc/passwd", found none'),
        refused("key-nul", "a record in the archive", tensor(storage("0\0")), 'its data in an entry "m/data/0\\x00", found none'),
        refused("key-pickle", "a record of the told size", tensor(storage("../data.pkl")), 'its data in an entry "m/data/../data.pkl", found none'),
        refused("view-of-a-storage", "a whole storage", held(s, kind, k, c, four, tup(text("0"), b"K\0", b"K\4")), "a whole storage, found a view of one (PyTorch of before 0.4)"),
        refused("meta-location", "a tensor with data", tensor(storage("0", 4, "FloatStorage", "meta")), "a tensor with data, found one on the meta device"),
        refused("parameter-of-nothing", "a tensor", call(glob(utils, "_rebuild_parameter")), "the arguments of torch._utils._rebuild_parameter, found none"),
        refused("parameter-of-none", "a tensor", call(glob(utils, "_rebuild_parameter"), b"N"), "the arguments of torch._utils._rebuild_parameter, found None"),
        refused("parameter-of-object", "a function that rebuilds a tensor", call(glob(utils, "_rebuild_parameter"), call(glob("os", "system"))), 'a function that rebuilds a tensor, found the class or function "os.system"'),
        refused("parameters-20", "few wrappers", nested, "a tensor, found more than 16 wrappers"),
        refused("subclass-of-nothing", "the arguments of the function", call(glob("torch._tensor", "_rebuild_from_type_v2")), "the arguments of torch._tensor._rebuild_from_type_v2, found none"),
        refused("subclass-of-system", "a function that rebuilds a tensor", call(glob("torch._tensor", "_rebuild_from_type_v2"), glob("os", "system"), glob("a", "B"), tup(text("touch mha-canary")), b"}"),
                'a function that rebuilds a tensor, found the class or function "os.system"'),
        refused("negated-bool", "a dtype that can be negated", call(REBUILD, storage("0", 16, "BoolStorage"), b"K\0", ints(4), ints(1), b"\x89", HOOKS, dct({"neg": b"\x88"})), "a dtype that can be negated, found bool"),
        refused("negated-float8", "a dtype that can be negated", call(v3, storage("0", 16, "UntypedStorage"), b"K\0", ints(4), ints(1), b"\x89", HOOKS, glob("torch", "float8_e5m2"), dct({"neg": b"\x88"})), "a dtype that can be negated, found float8_e5m2"),
    ]  # fmt: skip


def lst_of(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"eQ"


def by_torch() -> list[Case]:
    """What PyTorch itself writes of tensors that are no dense ones on a CPU."""

    def bytes_of(value) -> bytes:
        into = io.BytesIO()
        torch.save(value, into)
        return into.getvalue()

    def refused(name, value, found):
        return Case(name, "a dense tensor on a CPU", bytes_of({"w": value}), refused=f'tensor "w": expected a dense tensor, found {found}')

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            refused("meta", torch.empty(3, device="meta"), "one on the meta device"),
            refused("sparse", torch.eye(3).to_sparse(), "a sparse one"),
            refused("sparse-csr", torch.eye(3).to_sparse_csr(), "a sparse one"),
            refused("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a quantized one"),
            refused("quantized-by-channel", torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8), "a quantized one"),
            refused("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested one"),
            Case("state-dict", "a state_dict", bytes_of({"weight": torch.ones(1, 2)}),
                 reads=[Expected("weight", "float32", (1, 2), floats(1, 1))]),
        ]  # fmt: skip


def cases() -> list[Case]:
    return [*legal(), *out_of_storage(), *records(), *by_torch()]

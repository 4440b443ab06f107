"""The stream that `torch.save` wrote before PyTorch 1.6: four pickles, the keys of the storages, the storages.

And files of other formats, which must be refused by name.
"""

from __future__ import annotations

import io
import pickle
import re
import struct

import torch

from build import DATA, Case, Expected, W, call, dct, floats, glob, lst, pkl, storage, tensor, text, tup, u64

MAGIC = pkl(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
VERSION = pkl(b"M\xe9\x03")
FACTS = pkl(dct({"protocol_version": b"M\xe9\x03", "little_endian": b"\x88", "type_sizes": b"}"}))
OBJECT = pkl(dct({"w": tensor()}))
KEYS = pkl(lst(text("0")))
STORAGE = struct.pack("<q", 4) + DATA


def stream(magic=MAGIC, version=VERSION, facts=FACTS, object=OBJECT, keys=KEYS, storages=STORAGE) -> bytes:
    return magic + version + facts + object + keys + storages


def view(elements: int, **more) -> bytes:
    return pkl(dct({"w": tensor(storage("0", elements), **more)}))


def by_torch(value) -> bytes:
    into = io.BytesIO()
    torch.save(value, into, _use_new_zipfile_serialization=False)
    # Storages are named by where they lie in memory, which is elsewhere in every run.
    return re.sub(rb"X.\0\0\0\d{8,}", text("0"), into.getvalue())


def legal() -> list[Case]:
    def reads(name, rule, content, *tensors):
        return Case(name, rule, content, reads=list(tensors))

    module = tup(text("module"), glob("__main__", "Model"), text("model.py"), text("class Model: pass")) + b"Q"
    state = dct({"_parameters": dct({"w": tensor()}), "_buffers": b"}", "_modules": b"}"})
    two = dct({"b": tensor(storage("1", 2), 0, (2,)), "w": tensor()})
    return [
        reads("one", "a tensor", stream(), W),
        reads("by-torch", "as PyTorch writes it", by_torch({"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}), W),
        reads("nothing", "no tensor", stream(object=pkl(b"}"), keys=pkl(b"]"), storages=b"")),
        reads("two", "storages in the order of their keys", stream(object=pkl(two), keys=pkl(lst(text("1"), text("0"))), storages=struct.pack("<q", 2) + floats(5, 6) + STORAGE),
              Expected("b", "float32", (2,), floats(5, 6)), W),
        reads("shared", "a storage that two tensors share", stream(object=pkl(dct({"a": tensor(b"", 0, (2, 2), (1, 2)), "w": tensor()}))), Expected("a", "float32", (2, 2), floats(1, 3, 2, 4)), W),
        reads("module", "a module with its source", stream(object=pkl(call(module) + state + b"b")), W),
        reads("empty-storage", "a storage of no element", stream(object=view(0, shape=(0,)), storages=struct.pack("<q", 0)), Expected("w", "float32", (0,), b"")),
        reads("trailing", "bytes after the storages", stream() + b"more", W),
        reads("protocol-4", "framed pickles", b"\x80\x04\x95" + u64(13) + MAGIC[2:] + stream(magic=b""), W),
        *(reads(f"unaligned-{i}", "storages anywhere in the file", stream(facts=pkl(dct({"little_endian": b"\x88", "x" * i: b"N"}))), W) for i in range(1, 5)),
        reads("unknown-classes", "objects of other classes are left out, and no code is run",
              stream(object=pkl(dct({"w": tensor(), "o": call(glob("os", "system"), text("touch mha-canary"))}))), W),
    ]  # fmt: skip


def broken() -> list[Case]:
    def refused(name, rule, content, message):
        return Case(name, rule, content, refused=message)

    def count(elements, data=DATA):
        return struct.pack("<q", elements) + data

    whole = stream()
    parts = {"magic": MAGIC, "version": VERSION, "facts": FACTS, "object": OBJECT, "keys": KEYS}
    ends, at = {}, 0
    for name, part in parts.items():
        at += len(part)
        ends[name] = at
    big_endian = pkl(dct({"little_endian": b"\x89"}))
    two_dtypes = pkl(dct({"w": tensor(), "v": tensor(storage("0", 4, "IntStorage"))}))
    other_size = pkl(dct({"w": tensor(), "v": tensor(storage("0", 3), 0, (3,))}))
    other = "a pickle that torch.save did not write"
    return [
        *(refused(f"cut-in-{name}", "a whole stream", whole[: ends[name] - 1], f"the {said}: byte") for name, said in
          (("version", "version"), ("facts", "facts on the machine"), ("object", "object"), ("keys", "keys"))),
        *(refused(f"cut-after-{name}", "a whole stream", whole[: ends[name]], f"the {said}: byte 0 of the pickle: expected 1 more bytes, found 0 (cut short)") for name, said in
          (("magic", "version"), ("version", "facts on the machine"), ("facts", "object"), ("object", "keys"))),
        refused("cut-after-keys", "a whole stream", whole[: ends["keys"]], 'storage "0": expected its number of elements, found the end of the file (cut short)'),
        refused("cut-in-count", "a whole stream", whole[: ends["keys"] + 7], "expected its number of elements, found the end of the file"),
        refused("cut-after-count", "a whole stream", whole[: ends["keys"] + 8], 'storage "0": expected 4 elements of 4 bytes, found 0 bytes (cut short)'),
        refused("cut-in-data", "a whole stream", whole[:-1], "expected 4 elements of 4 bytes, found 15 bytes (cut short)"),
        refused("magic-other", "the magic number", stream(magic=MAGIC[:-2] + b"\x18."), other),
        refused("magic-tuple", "the magic number itself", stream(magic=MAGIC[:-1] + b"\x85."), "expected the magic number of torch.save, found a tuple of 1"),
        refused("magic-text", "the magic number as a number", stream(magic=pkl(b"U\x0a" + MAGIC[4:-1])), "expected the magic number of torch.save, found the text"),
        refused("magic-longer", "the magic number itself", stream(magic=pkl(b"\x8a\x0b" + MAGIC[4:-1] + b"\1")), "expected the magic number of torch.save, found an integer of 11 bytes"),
        refused("version-1002", "version 1001", stream(version=pkl(b"M\xea\x03")), "expected version 1001, found the integer 1002"),
        refused("version-text", "version 1001", stream(version=pkl(text("1001"))), 'expected version 1001, found the text "1001"'),
        refused("version-none", "version 1001", stream(version=pkl(b"N")), "expected version 1001, found None"),
        refused("facts-none", "facts in a dict", stream(facts=pkl(b"N")), "expected a file of a little-endian machine, found None"),
        refused("facts-empty", "the byte order", stream(facts=pkl(b"}")), "expected a file of a little-endian machine, found a dict"),
        refused("facts-number", "the byte order as a bool", stream(facts=pkl(dct({"little_endian": b"K\1"}))), "found little_endian the integer 1"),
        refused("big-endian", "little-endian data", stream(facts=big_endian), "expected a file of a little-endian machine, found little_endian False"),
        refused("object-broken", "a pickle", stream(object=b"\x80\x02t."), "the object: byte 3 of the pickle: expected a mark on the stack, found none"),
        refused("object-protocol-6", "a known protocol", stream(object=b"\x80\x06N."), "the object: byte 2 of the pickle: expected a pickle of protocol 5 at most, found 6"),
        refused("object-id-none", "ids of storages", stream(object=pkl(b"NQ")), 'expected a storage of ("storage", class, key, location, elements), found None'),
        refused("object-id-class", "ids of storages", stream(object=pkl(tup(text("storage"), b"N", text("0"), text("cpu"), b"K\4") + b"Q")), "expected a class of storage such as torch.FloatStorage, found None"),
        refused("object-view", "a whole storage", stream(object=pkl(dct({"w": tensor(tup(text("storage"), glob("torch", "FloatStorage"), text("0"), text("cpu"), b"K\4", tup(text("1"), b"K\0", b"K\4")) + b"Q")}))), "expected a whole storage, found a view of one"),
        refused("keys-none", "a list of keys", stream(keys=pkl(b"N")), "expected a list of the keys of storages, found None"),
        refused("keys-dict", "a list of keys", stream(keys=pkl(dct({"0": b"N"}))), "expected a list of the keys of storages, found a dict"),
        refused("keys-numbers", "keys that are text", stream(keys=pkl(lst(b"K\0"))), "expected the key of a storage that the object refers to, once, found the integer 0"),
        refused("keys-unknown", "keys that the object refers to", stream(keys=pkl(lst(text("0"), text("1"))), storages=STORAGE * 2), 'that the object refers to, once, found the text "1"'),
        refused("keys-twice", "a key once", stream(keys=pkl(lst(text("0"), text("0"))), storages=STORAGE * 2), 'that the object refers to, once, found the text "0"'),
        refused("keys-missing", "a key for each storage", stream(keys=pkl(b"]"), storages=b""), 'tensor "w": expected a storage "0", found none'),
        refused("keys-broken", "a pickle", stream(keys=b"\x80\x02"), "the keys: byte"),
        refused("count-more", "the told count", stream(storages=count(5, DATA + bytes(4))), 'storage "0": expected 4 elements, found 5'),
        refused("count-less", "the told count", stream(storages=count(3)), "expected 4 elements, found 3"),
        refused("count-0", "the told count", stream(storages=count(0)), "expected 4 elements, found 0"),
        refused("count-negative", "the told count", stream(storages=count(-4)), "expected 4 elements, found -4"),
        refused("count-2-61", "data inside the file", stream(object=view(2**61), storages=count(2**61)), "expected 2305843009213693952 elements of 4 bytes, found 16 bytes (cut short)"),
        refused("count-2-62", "bytes that can be counted", stream(object=view(2**62), storages=count(2**62)), "expected 4611686018427387904 elements of 4 bytes"),
        refused("count-negative-twice", "a count", stream(object=view(-4), storages=count(-4)), "expected a number of elements that is an integer from 0 to 2^63 - 1, found the integer -4"),
        refused("two-dtypes", "a storage of one dtype", stream(object=two_dtypes), 'storage "0": expected elements of one dtype, found two'),
        refused("two-sizes", "a storage of one size", stream(object=other_size), 'tensor "v": storage "0": expected 3 elements of 4 bytes, found 16 bytes'),
        refused("out-of-storage", "elements inside the storage", stream(object=view(4, offset=1)), "expected elements inside its storage of 4 float32, found shape (4,), strides (1,), offset 1"),
        refused("laughs", "a bounded number of values", stream(object=pkl(b"]q\1" + b"".join(b"0](h\1h\1eq\1" for _ in range(60))), keys=pkl(b"]"), storages=b""), "expected at most 4000000 values"),
        refused("many-pickles-of-nothing", "memory that the pickle pays for", stream(facts=pkl(b"Nr\xff\xff\xff\x7f")), "the facts on the machine: byte 8 of the pickle: expected values of at most 160 MiB, found more"),
    ]  # fmt: skip


def others() -> list[Case]:
    """Files of other formats, which people give by mistake."""
    none = "not a weights file: expected safetensors (8 bytes of length, then '{') or a file of PyTorch, found "
    meant = "expected safetensors or a file of PyTorch, found "

    def refused(name, content, message):
        return Case(f"other-{name}", "a weights file", content, refused=message)

    return [
        refused("empty", b"", "expected a weights file, found an empty file"),
        refused("one-byte", b"\x80", none + "1 bytes"),
        refused("zeros", bytes(4096), none + "4096 bytes"),
        refused("text", b"no tensors here\n", none + '16 bytes that begin with "no tensors here'),
        refused("escape", b"\x1b[31m\r\nmha: verdict: bit-exact\n", none + '31 bytes that begin with "\\x1b[31m\\x0d\\x0amha'),
        refused("random", bytes((i * i * 7 + 13) % 251 for i in range(1000)), none + "1000 bytes"),
        refused("png", b"\x89PNG\r\n\x1a\n" + bytes(100), none + "108 bytes"),
        refused("gzip", b"\x1f\x8b\x08" + bytes(100), none + "103 bytes"),
        refused("tar", b"sys_info" + bytes(504), none + "512 bytes"),
        refused("onnx", b"\x08\x07\x12\x07pytorch" + bytes(100), none),
        refused("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(100), meant + "HDF5 (Keras), which is not supported"),
        refused("gguf", b"GGUF\x03\0\0\0" + bytes(100), meant + "GGUF (llama.cpp), which is not supported"),
        refused("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", meant + "a Git LFS pointer; fetch the file itself with git lfs pull"),
        refused("pickle", pickle.dumps({"a": 1}, 2), meant + "a pickle that torch.save did not write, which is not supported"),
        refused("pickle-4", pickle.dumps({"a": [1.0]}, 4), meant + "a pickle that torch.save did not write"),
        refused("zip-magic", b"PK\x03\x04", "expected a zip directory at the end, found none"),
        refused("zip-spanned", b"PK\x07\x08PK\x03\x04" + bytes(30), none),
    ]  # fmt: skip


def cases() -> list[Case]:
    return [*legal(), *broken(), *others()]

"""What the corpus is made of: files byte by byte, so that every number in them can be made wrong."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field


@dataclass
class Expected:
    """A tensor that a file must give.

    Bytes of its name that are not UTF-8 are surrogates. `values`, its row-major little-endian bytes, is left out where
    they say nothing.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: bytes | None = None


@dataclass
class Case:
    """One file, or a folder of files of which `main` is read, and what must come of it.

    Either `reads`, the tensors it holds, or `refused`, a part of the message.
    """

    name: str
    rule: str
    content: bytes | dict[str, bytes]
    reads: list[Expected] | None = None
    refused: str | None = None
    main: str = ""
    blames: str = ""  # the file with whose name the message begins, where it is not the one that is read
    size: int = 0  # of a sparse file: `content` is then {offset: bytes}
    parts: dict[int, bytes] = field(default_factory=dict)
    listed_only: bool = False  # its tensors stand for more elements than can be looked at one by one


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


DATA = floats(1, 2, 3, 4)  # of most cases
W = Expected("w", "float32", (4,), DATA)


# safetensors


def st(header: bytes | str | dict, data: bytes = b"", length: int | None = None) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return u64(len(header) if length is None else length) + header + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# zip archives


@dataclass
class File:
    """An entry of an archive. What is None is what it should be."""

    name: bytes
    data: bytes = b""  # as it lies in the file
    method: int = 0
    flags: int = 0
    size: int | None = None  # once unpacked
    packed: int | None = None
    crc: int | None = None
    header: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    local_name: bytes | None = None
    local_method: int | None = None
    local_flags: int | None = None
    local_size: int | None = None
    local_packed: int | None = None
    local_extra: bytes = b""
    local_signature: bytes = b"PK\x03\x04"
    before: bytes = b""  # between the entry before and this one


def file(name: str | bytes, data: bytes = b"", **wrong) -> File:
    return File(name.encode() if isinstance(name, str) else name, data, **wrong)


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def deflated(name: str, data: bytes, **wrong) -> File:
    return file(name, deflate(data), **{"method": 8, "size": len(data), "crc": zlib.crc32(data), **wrong})


def local_header(each: File, packed: int, size: int, crc: int) -> bytes:
    def own(value, default):
        return default if value is None else value

    name = own(each.local_name, each.name)
    return (
        each.local_signature
        + u16(20)
        + u16(own(each.local_flags, each.flags))
        + u16(own(each.local_method, each.method))
        + bytes(4)
        + u32(crc)
        + u32(own(each.local_packed, packed))
        + u32(own(each.local_size, size))
        + u16(len(name))
        + u16(len(each.local_extra))
        + name
        + each.local_extra
    )


def directory_header(each: File, packed: int, size: int, crc: int, header: int) -> bytes:
    return (
        b"PK\x01\x02"
        + u16(20)
        + u16(20)
        + u16(each.flags)
        + u16(each.method)
        + bytes(4)
        + u32(crc)
        + u32(packed)
        + u32(size)
        + u16(len(each.name))
        + u16(len(each.extra))
        + u16(len(each.comment))
        + bytes(8)
        + u32(header)
        + each.name
        + each.extra
        + each.comment
    )


def end_record(count: int, size: int, begin: int, comment: bytes = b"", disk: int = 0) -> bytes:
    return b"PK\x05\x06" + u16(disk) * 2 + u16(count) * 2 + u32(size) + u32(begin) + u16(len(comment)) + comment


def zip64_end(count: int, size: int, begin: int, at: int, locator: int | None = None) -> bytes:
    record = b"PK\x06\x06" + u64(44) + u16(45) * 2 + u32(0) * 2 + u64(count) * 2 + u64(size) + u64(begin)
    return record + b"PK\x06\x07" + u32(0) + u64(at if locator is None else locator) + u32(1)


def archive(files: list[File], prefix: bytes = b"", end=end_record, zip64=None, **shifts) -> bytes:
    """`shifts` (count, size, begin) are added to what the end record says; `zip64` makes the records of zip64."""
    out = [prefix]
    at = len(prefix)
    directory = []
    for each in files:
        packed = len(each.data) if each.packed is None else each.packed
        size = packed if each.size is None else each.size
        crc = zlib.crc32(each.data) if each.crc is None else each.crc
        at += len(each.before)
        header = at if each.header is None else each.header
        local = local_header(each, packed, size, crc)
        out += [each.before, local, each.data]
        directory.append(directory_header(each, packed, size, crc, header))
        at += len(local) + len(each.data)
    whole = b"".join(directory)
    count, size, begin = len(files), len(whole), at
    more = b"" if zip64 is None else zip64(count, size, begin, at + size)
    numbers = (
        min(count, 0xFFFF) + shifts.pop("count", 0),
        size + shifts.pop("size", 0),
        begin + shifts.pop("begin", 0),
    )
    return b"".join(out) + whole + more + end(*numbers, **shifts)


# Pickles: each function gives the bytes that push one value.


def pkl(value: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + value + b"."


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return b"X" + u32(len(value)) + value


def integer(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def tup(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def lst(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


def dct(items: dict[str, bytes] | list[tuple[bytes, bytes]]) -> bytes:
    pairs = [(text(key), value) for key, value in items.items()] if isinstance(items, dict) else items
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def call(callable: bytes, *arguments: bytes) -> bytes:
    return callable + tup(*arguments) + b"R"


def ints(*values: int) -> bytes:
    return tup(*map(integer, values))


def storage(key: str = "0", elements: int = 4, kind: str = "FloatStorage", location: str = "cpu") -> bytes:
    return tup(text("storage"), glob("torch", kind), text(key), text(location), integer(elements)) + b"Q"


REBUILD = glob("torch._utils", "_rebuild_tensor_v2")
HOOKS = call(glob("collections", "OrderedDict"))


def tensor(held: bytes = b"", offset: int = 0, shape=(4,), strides=(1,), *more: bytes) -> bytes:
    return call(REBUILD, held or storage(), integer(offset), ints(*shape), ints(*strides), b"\x89", HOOKS, *more)


def saved(value: bytes, *storages: bytes, protocol: int = 2) -> bytes:
    """An archive of `torch.save` with this pickled value and these storages, "0", "1", ..."""
    return archive(
        [
            file("m/data.pkl", pkl(value, protocol)),
            file("m/byteorder", b"little"),
            *(file(f"m/data/{i}", data) for i, data in enumerate(storages or (DATA,))),
            file("m/version", b"3\n"),
        ]
    )


def saved_pickle(pickle: bytes, data: bytes = DATA) -> bytes:
    """The same with a pickle given to its last byte."""
    return archive([file("m/data.pkl", pickle), file("m/data/0", data)])

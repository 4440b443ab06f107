"""Zip archives: what other tools may write, and one file for each rule that is broken (PKWARE's APPNOTE.TXT)."""

from __future__ import annotations

import zlib

from build import (
    DATA, Case, Expected, W, archive, call, dct, deflate, deflated, end_record, file, glob, pkl, storage, tensor, tup, u16, u32, u64, zip64_end,
)  # fmt: skip

PICKLE = pkl(dct({"w": tensor()}))
LOCAL = 30  # bytes of a local header before the name
ZIP64_EXTRA = 1


def m(*more, pickle=None, data=None, **options) -> bytes:
    """The archive of most cases, "m/data.pkl" and "m/data/0", and what comes behind them."""
    return archive([pickle or file("m/data.pkl", PICKLE), data or file("m/data/0", DATA), *more], **options)


def data(**wrong):
    return m(data=file("m/data/0", DATA, **wrong))


def extra(kind: int, content: bytes) -> bytes:
    return u16(kind) + u16(len(content)) + content


def legal() -> list[Case]:
    def reads(name, rule, content, tensors=(W,)):
        return Case(name, rule, content, reads=list(tensors))

    def zip64(**wrong):
        return lambda count, size, begin, at: zip64_end(count, size, begin, at, **wrong)

    def all_in_zip64(count, size, begin, comment=b"", disk=0):
        return end_record(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, comment, disk)

    packed = [deflated("m/data.pkl", PICKLE), deflated("m/data/0", DATA)]
    sizes = u64(len(DATA)) * 2
    empty = pkl(dct({"w": tensor(storage(elements=0), 0, (0,))}))
    zeros = pkl(dct({"w": tensor(storage(elements=1 << 20), 0, (1 << 20,))}))
    return [
        reads("stored", "stored entries", m()),
        reads("deflated", "deflated entries", archive(packed)),
        reads("deflated-data", "one entry deflated, one stored", m(data=packed[1])),
        reads("comment", "a comment at the end", m(comment=b"a comment")),
        reads("comment-longest", "a comment of 65535 bytes", m(comment=b"c" * 0xFFFF)),
        reads("comment-with-end", "a comment that looks like an end record", m(comment=b"PK\x05\x06" + bytes(4))),
        reads("entry-comment", "a comment of an entry", data(comment=b"its comment")),
        reads("zip64", "the end record of zip64, as PyTorch writes it", m(zip64=zip64())),
        reads("zip64-only", "numbers in the end record of zip64 alone", m(zip64=zip64(), end=all_in_zip64)),
        reads("zip64-entry", "sizes and offset in the entry's zip64 field", m(data=file(
            "m/data/0", DATA, size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=extra(ZIP64_EXTRA, sizes),
            local_extra=extra(ZIP64_EXTRA, sizes)))),
        reads("zip64-unneeded", "a zip64 field that nothing refers to", data(extra=extra(ZIP64_EXTRA, sizes))),
        reads("extra", "fields of other tools", data(extra=extra(0x5455, b"12345"), local_extra=extra(0x4246, b"Z" * 40))),
        reads("many", "more entries than 16 bits count", m(*(file(f"m/x/{i}") for i in range(66_000)), zip64=zip64())),
        reads("descriptor", "sizes behind the data", archive([file("m/data.pkl", PICKLE), file("m/data/0", DATA, flags=8, local_packed=0, local_size=0),
                                   file("m/version", b"3", before=b"PK\x07\x08" + u32(zlib.crc32(DATA)) + u32(16) * 2)])),
        reads("crc", "CRCs are not compared: PyTorch can write archives without", data(crc=0)),
        reads("utf8-flag", "names told to be UTF-8", data(flags=0x800)),
        reads("folders", "entries for folders", m(file("m/"), file("m/data/"))),
        reads("other-folder", "another folder beside it", archive([file("__MACOSX/x", b"?"), file("m/data.pkl", PICKLE), file("m/data/0", DATA)])),
        reads("deeper-pickle", "a data.pkl further down is another", m(file("m/x/data.pkl", b"?"))),
        reads("other-order", "records before the pickle", archive([file("m/data/0", DATA), file("m/data.pkl", PICKLE)])),
        reads("gaps", "bytes that belong to no entry", archive([file("m/data.pkl", PICKLE), file("m/data/0", DATA, before=b"gap")], prefix=b"PK\x03\x04")),
        reads("little", "a record of the byte order", m(file("m/byteorder", b"little"))),
        reads("extra-records", "records that mean nothing here", m(file("m/.data/serialization_id", b"1"), file("m/version", b"3"), file("m/.format_version", b"1"))),
        *(reads(f"unaligned-{i}", "data anywhere in the file", archive([file("m/x", b"x" * i), file("m/data.pkl", PICKLE), file("m/data/0", DATA)]))
          for i in range(4)),
        reads("parent-folder", "a folder's name means nothing", archive([file("../data.pkl", PICKLE), file("../data/0", DATA)])),
        reads("utf8-names", "names in UTF-8", archive([file("größe/data.pkl", PICKLE), file("größe/data/0", DATA)])),
        reads("empty-record", "a record of no byte", archive([file("m/data.pkl", empty), file("m/data/0")]),
              [Expected("w", "float32", (0,), b"")]),
        reads("empty-deflated", "no bytes, deflated", archive([file("m/data.pkl", empty), deflated("m/data/0", b"")]),
              [Expected("w", "float32", (0,), b"")]),
        reads("unused-records", "records that no tensor refers to", m(file("m/data/1", b"?"))),
        reads("deflated-zeros", "4 MiB of zeros in 4 KiB", archive([file("m/data.pkl", zeros), deflated("m/data/0", bytes(1 << 22))]),
              [Expected("w", "float32", (1 << 20,))]),
    ]  # fmt: skip


def end_cases(refused) -> list[Case]:
    good = m()

    def zip64(count=0, size=0, begin=0, locator=None):
        def make(real_count, real_size, real_begin, at):
            return zip64_end(real_count + count, real_size + size, real_begin + begin, at, locator)

        return make

    def only64(count, size, begin, comment=b"", disk=0):
        return end_record(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)

    none = "expected a zip directory at the end, found none (file cut short?)"
    return [
        refused("cut-4", "a whole file", good[:4], none),
        refused("cut-half", "a whole file", good[: len(good) // 2], none),
        refused("cut-1", "a whole file", good[:-1], none),
        refused("cut-end", "an end record", good[:-22], none),
        refused("trailing", "an end record at the end", good + b"x", none),
        refused("comment-short", "a comment of the told length", end_cut(m(comment=b"comment")), none),
        refused("end-only", "an archive of PyTorch", archive([]), "with an entry <folder>/data.pkl, found 0 entries"),
        refused("count-more", "as many entries as told", m(count=1), "expected a zip directory of 3 entries, found"),
        refused("count-less", "as many entries as told", m(count=-1), "expected a zip directory of 1 entries, found"),
        refused("count-65534", "a directory as large as its count", m(count=65532), "expected a zip directory of 65534 entries, found"),
        refused("size-more", "a directory that ends at its end", m(size=1), "expected a zip directory that ends at byte"),
        refused("size-less", "a directory that ends at its end", m(size=-1), "expected a zip directory that ends at byte"),
        refused("begin-more", "a directory where it is told", m(begin=1), "expected a zip directory that ends at byte"),
        refused("begin-less", "a directory where it is told", m(begin=-1), "expected a zip directory that ends at byte"),
        refused("prefixed", "offsets from the first byte of the file", b"PK\x03\x04#!/bin/sh" + good, "expected a zip directory that ends at byte"),
        refused("size-2-32", "zip64 numbers where the old ones are full", m(end=lambda *_, **__: end_record(2, 0xFFFFFFFF, 0)), "expected a zip directory that ends at byte"),
        refused("disk", "one disk", m(disk=1), "expected a zip archive on one disk, found a part of several"),
        refused("zip64-count", "the same count in both end records", m(zip64=zip64(count=1)), "expected the same zip directory in the end record and the zip64 end record, found two"),
        refused("zip64-begin", "the same offset in both", m(zip64=zip64(begin=1)), "found two"),
        refused("zip64-size", "the same size in both", m(zip64=zip64(size=-1)), "found two"),
        refused("zip64-count-2-62", "a count that the directory can hold", m(zip64=zip64(count=2**62), end=only64), "expected a zip directory of 4611686018427387906 entries, found"),
        refused("zip64-size-wraps", "a size inside the file", m(zip64=zip64(size=2**63), end=only64), "expected a zip directory that ends at byte"),
        refused("zip64-begin-wraps", "an offset inside the file", m(zip64=zip64(begin=2**63, size=2**63), end=only64), "expected a zip directory that ends at byte"),
        refused("zip64-locator-0", "a locator that points to the record", m(zip64=zip64(locator=0)), "expected the zip64 end record that its locator tells of, found none at byte 0"),
        refused("zip64-locator-far", "a locator inside the file", m(zip64=zip64(locator=2**64 - 1)), "found none at byte 18446744073709551615"),
        refused("zip64-locator-alone", "a record before the locator", archive([], zip64=lambda *_: b"PK\x06\x07" + bytes(16), prefix=b"PK\x03\x04"), "found none at byte 0"),
        refused("directory-signature", "signed entries", m().replace(b"PK\x01\x02", b"PK\x01\x03"), 'expected an entry of the zip directory, found "PK\\x01\\x03"'),
    ]  # fmt: skip


def end_cut(archive_bytes: bytes) -> bytes:
    return archive_bytes[:-2]


def entry_cases(refused) -> list[Case]:
    sizes = "expected the same sizes in its local header, found others"
    zip64 = "expected a zip64 field with its sizes and offset, found none"
    return [
        refused("encrypted", "plain data", data(flags=1), 'entry "m/data/0": expected plain data, found it encrypted'),
        refused("encrypted-strongly", "plain data", data(flags=0x41), "found it encrypted"),
        refused("encrypted-locally", "plain data", data(local_flags=1), "expected the same method in its local header, found another"),
        *(refused(f"method-{number}", "stored or deflated", data(method=number),
                  f'entry "m/data/0": expected the method stored (0) or deflated (8), found {number}')
          for number in (1, 9, 12, 14, 93, 99, 65535)),
        refused("method-locally", "one method", data(local_method=8), "expected the same method in its local header, found another"),
        refused("header-far", "a local header inside the file", data(header=0x7FFFFFFF), "expected a local header before the directory, found it at byte 2147483647"),
        refused("header-in-directory", "a local header before the directory", m(data=file("m/data/0", DATA, header=len(m()) - 80)), "expected a local header before the directory"),
        refused("header-shifted", "a local header where it is told", data(header=1), "expected a local header at byte 1, found"),
        refused("header-signature", "a signed local header", data(local_signature=b"PK\x03\x05"), 'found "PK\\x03\\x05"'),
        refused("name-locally", "one name", data(local_name=b"m/data/1"), 'entry "m/data/0": expected the same name in its local header, found "m/data/1"'),
        refused("name-longer-locally", "one name", data(local_name=b"m/data/0\0"), "expected the same name in its local header"),
        refused("size-locally", "one size", data(local_size=15), sizes),
        refused("packed-locally", "one size", data(local_packed=17), sizes),
        refused("size-0-locally", "one size", data(local_packed=0, local_size=0), sizes),
        refused("stored-sizes", "a stored entry of one size", data(size=17), "expected as many bytes in the file as stored, 17, found 16"),
        refused("size-far", "data inside the file", data(packed=1 << 30), 'entry "m/data/0": expected 1073741824 bytes before the directory, found'),
        refused("local-extra-far", "data inside the file", data(local_extra=b"", before=b"").replace(u16(8) + u16(0) + b"m/data/0" + DATA, u16(8) + u16(0xFFFF) + b"m/data/0" + DATA), "bytes before the directory, found 0"),
        refused("name-far", "a name inside the directory",
                name_size(m(), 0xFFFF), "expected an entry inside the zip directory, found one past its end"),
        refused("extra-past-end", "a field inside the entry", data(extra=u16(0x5455) + u16(5) + b"1234"), "expected extra fields inside the entry, found one past its end"),
        refused("zip64-missing", "a zip64 field", data(size=0xFFFFFFFF, packed=0xFFFFFFFF), zip64),
        refused("zip64-short", "a zip64 field of all numbers", data(size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=extra(ZIP64_EXTRA, u64(16))), zip64),
        refused("zip64-size-2-63", "data inside the file", data(size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=extra(ZIP64_EXTRA, u64(2**63) * 2)),
                "expected 9223372036854775808 bytes before the directory"),
        refused("zip64-header-wraps", "a local header inside the file", data(header=0xFFFFFFFF, extra=extra(ZIP64_EXTRA, u64(2**64 - 16))),
                "expected a local header before the directory, found it at byte 18446744073709551600"),
        refused("twice", "a name once", m(file("m/data/0", DATA)), 'entry "m/data/0": expected once, found twice'),
        refused("overlap", "bytes of its own", overlapping(), 'entry "m/data/0": expected bytes of its own, found those of "m/data/1"'),
        refused("overlap-deflated", "bytes of its own: nested headers make a bomb of any size", nested_bomb(), "expected bytes of its own, found those of"),
        refused("name-empty", "a name", m(file("")), 'expected entries named in UTF-8, found ""'),
        refused("name-nul", "a name without NUL", m(file(b"m/x\0y")), 'expected entries named in UTF-8, found "m/x\\x00y"'),
        refused("name-latin1", "a name in UTF-8", m(file(b"gr\xf6\xdfe")), 'expected entries named in UTF-8, found "gr\\xf6\\xdfe"'),
        refused("name-overlong", "a name in UTF-8", m(file(b"a\xc0\xafb")), "expected entries named in UTF-8"),
    ]  # fmt: skip


def name_size(bytes_: bytes, size: int) -> bytes:
    """The first entry of the directory, its name of another size."""
    at = bytes_.index(b"PK\x01\x02") + 28
    return bytes_[:at] + u16(size) + bytes_[at + 2 :]


def overlapping() -> bytes:
    """A second entry whose header lies in the data of the first."""
    inner = archive([file("m/data/0", DATA)])[: LOCAL + 8 + 16]
    first = file("m/data.pkl", PICKLE)
    outer = file("m/data/1", inner)
    at = LOCAL + 10 + len(PICKLE) + LOCAL + 8
    return archive([first, outer, file("m/data/0", DATA, header=at)])


def nested_bomb() -> bytes:
    """Deflated entries that all end at the same byte: each unpacks the headers and data of all that follow."""
    kernel = deflate(bytes(1 << 16))
    files = [deflated("m/data.pkl", PICKLE)]
    at = LOCAL + 10 + len(files[0].data)
    for i in range(8):
        files.append(file(f"m/data/{i}", b"", method=8, packed=(7 - i) * (LOCAL + 8) + len(kernel), size=1 << 16, header=at))
        at += LOCAL + 8
    files[-1].data = kernel
    return archive(files)


def data_cases(refused) -> list[Case]:
    packed = deflate(DATA)
    huge = pkl(dct({"w": tensor(storage(elements=1 << 28), 0, (1 << 28,))}))

    def inflated(data_, **wrong):
        return m(data=file("m/data/0", data_, **{"method": 8, "size": 16, **wrong}))

    where = 'tensor "w": '
    entry = where + 'entry "m/data/0": '
    return [
        refused("deflate-cut", "a whole stream", inflated(packed[:-2]), entry + "expected a whole deflate stream, found it cut short"),
        refused("deflate-empty", "a stream", inflated(b""), "expected a whole deflate stream, found it cut short"),
        refused("deflate-none", "a stream", inflated(b"\xff" * 20), "expected a deflate stream, found bytes that are none"),
        refused("deflate-more", "as many bytes as told", inflated(packed, size=15), "expected 15 bytes once inflated, found more"),
        refused("deflate-less", "as many bytes as told", inflated(packed, size=17), "expected 17 bytes once inflated, found 16"),
        refused("deflate-trailing", "nothing after the stream", inflated(packed + b"x"), "expected 16 bytes once inflated, found bytes after the stream"),
        refused("deflate-claim", "at most 1032 times the packed bytes", inflated(packed, size=1 << 20), "expected at most 1032 times its compressed size"),
        refused("deflate-zlib", "a raw stream", inflated(zlib.compress(DATA)), "expected a deflate stream, found bytes that are none"),
        refused("bomb", "inflated data of a bounded size", archive([file("m/data.pkl", huge), deflated("m/data/0", bytes(1 << 28))]), "expected deflated entries of at most"),
        refused("bomb-claim", "the same, before anything is inflated", archive([file("m/data.pkl", huge), file("m/data/0", bytes(1 << 20), method=8, size=1 << 30)]), "expected deflated entries of at most"),
        refused("bomb-pickle", "the same of the pickle", archive([deflated("m/data.pkl", pkl(b"N0" * (1 << 27)))]), "expected deflated entries of at most"),
        refused("bombs", "the same of all entries together", archive([file("m/data.pkl", PICKLE), *(deflated(f"m/data/{i}", bytes(1 << 24)) for i in range(20))]), "expected deflated entries of at most"),
        refused("record-missing", "a record for each storage", archive([file("m/data.pkl", PICKLE)]), where + 'expected its data in an entry "m/data/0", found none'),
        refused("record-elsewhere", "records in the folder of the pickle", archive([file("m/data.pkl", PICKLE), file("n/data/0", DATA)]), 'in an entry "m/data/0", found none'),
        refused("record-short", "a record of the told size", m(data=file("m/data/0", DATA[:-1])), where + 'storage "0": expected 4 elements of 4 bytes, found 15 bytes'),
        refused("record-empty", "a record of the told size", m(data=file("m/data/0")), "expected 4 elements of 4 bytes, found 0 bytes"),
        refused("record-long", "a record of the told size", m(data=file("m/data/0", DATA + DATA)), "expected 4 elements of 4 bytes, found 32 bytes"),
        refused("pickle-missing", "a pickle", archive([file("m/data/0", DATA), file("m/version", b"3")]), 'with an entry <folder>/data.pkl, found 2 entries, the first "m/data/0"'),
        refused("pickle-bare", "a pickle in a folder", archive([file("data.pkl", PICKLE), file("data/0", DATA)]), "with an entry <folder>/data.pkl, found 2 entries"),
        refused("pickle-absolute", "a folder with a name", archive([file("/data.pkl", PICKLE), file("/data/0", DATA)]), "with an entry <folder>/data.pkl"),
        refused("pickle-deep", "a pickle in a folder", archive([file("a/b/data.pkl", PICKLE)]), "with an entry <folder>/data.pkl"),
        refused("pickle-upper-case", "its name as it is", archive([file("m/DATA.PKL", PICKLE)]), "with an entry <folder>/data.pkl"),
        refused("pickle-folder", "a pickle that is no folder", archive([file("m/data.pkl/", b"")]), "with an entry <folder>/data.pkl"),
        refused("pickle-empty", "a whole pickle", m(pickle=file("m/data.pkl")), 'entry "m/data.pkl": byte 0 of the pickle: expected 1 more bytes, found 0 (cut short)'),
        refused("two-folders", "one pickle", archive([file("a/data.pkl", PICKLE), file("b/data.pkl", PICKLE)]), 'expected one entry <folder>/data.pkl, found it in "a" and in "b/data.pkl"'),
        refused("big-endian", "little-endian data", m(file("m/byteorder", b"big")), 'entry "m/byteorder": expected little-endian data ("little"), found "big"'),
        refused("byteorder-empty", "a byte order", m(file("m/byteorder")), 'expected little-endian data ("little"), found ""'),
        refused("byteorder-long", "a byte order; the message stays short", m(deflated("m/byteorder", b"little" * 100_000)), 'expected little-endian data ("little"), found "littlelittle'),
        refused("npz", "weights of PyTorch", archive([file("arr_0.npy", b"\x93NUMPY")]), 'found 1 entries, the first "arr_0.npy"'),
        refused("export", "weights of PyTorch", archive([file("m/archive_format", b"pt2"), file("m/models/model.json", b"{}")]), 'found 2 entries, the first "m/archive_format"'),
    ]  # fmt: skip


def cases() -> list[Case]:
    def refused(name, rule, content, message):
        return Case(name, rule, content, refused=message)

    return [*legal(), *end_cases(refused), *entry_cases(refused), *data_cases(refused)]

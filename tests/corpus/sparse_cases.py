"""Files beyond 4 GiB, almost all of which are holes that no disk holds."""

from __future__ import annotations

from build import (
    DATA, Case, Expected, W, dct, directory_header, end_record, file, local_header, pkl, storage, tensor, u16, u32, u64, zip64_end,
)  # fmt: skip

ELEMENTS = 5 << 28  # float32: 5 GiB
BEHIND = pkl(dct({"big": tensor(storage("0", ELEMENTS), 0, (ELEMENTS,)), "w": tensor(storage("1"))}))


def zip64() -> dict[int, bytes]:
    """A storage of 5 GiB, aligned as PyTorch does by a field FB, and behind it the pickle and a storage whose offsets need 64 bits."""
    parts, directory, at = {}, b"", 0
    full = 0xFFFFFFFF
    for each, size in ((file("m/data/0"), 4 * ELEMENTS), (file("m/data.pkl", BEHIND), len(BEHIND)), (file("m/data/1", DATA), len(DATA))):
        in_zip64 = (u64(size) * 2 if size > full else b"") + (u64(at) if at > full else b"")
        each.local_extra = u16(1) + u16(16) + u64(size) * 2 + u16(0x4246) + u16(2) + bytes(2) if size > full else b""
        each.extra = u16(1) + u16(len(in_zip64)) + in_zip64 if in_zip64 else b""
        told = min(size, full)
        parts[at] = local_header(each, told, told, 0) + each.data
        directory += directory_header(each, told, told, 0, min(at, full))
        at += len(parts[at]) + size - len(each.data)
    parts[at] = directory + zip64_end(3, len(directory), at, at + len(directory)) + end_record(3, len(directory), full)
    return parts


def cases() -> list[Case]:
    big = Expected("big", "float32", (ELEMENTS,))
    return [Case("zip64", "an archive of more than 4 GiB", b"", reads=[big, W], parts=zip64(), listed_only=True)]

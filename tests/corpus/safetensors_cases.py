"""safetensors: every shape of a legal file, and one file for each rule that is broken.

The rules are those of https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json

from build import Case, Expected, entry, st

DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "C64": ("complex64", 8), "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip

EIGHT = bytes(range(8))


def one(**changes) -> dict:
    """A header of one tensor "a", two float32."""
    return {"a": {**entry("F32", [2], 0, 8), **changes}}


def raw(fields: str, data: bytes = EIGHT) -> bytes:
    """The same, its fields as written."""
    return st('{"a":{' + fields + "}}", data)


def legal() -> list[Case]:
    a = Expected("a", "float32", (2,), EIGHT)

    def reads(name, rule, content, *tensors):
        return Case(name, rule, content, reads=list(tensors))

    at, header, data, tensors = 0, {}, b"", []
    for name, (dtype, size) in DTYPES.items():
        values = bytes([1, 0] * size)[: 2 * size] if name == "BOOL" else bytes(range(1, 2 * size + 1))
        header[name] = entry(name, [2], at, at + 2 * size)
        tensors.append(Expected(name, dtype, (2,), values))
        data += values
        at += 2 * size
    return [
        reads("one", "a tensor", st(one(), EIGHT), a),
        reads("dtypes", "every dtype that LibTorch has", st(header, data), *tensors),
        reads("nothing", "no tensor", st("{}")),
        reads("metadata-only", "no tensor but metadata", st({"__metadata__": {"k": "v"}})),
        reads("metadata", "free text", st({"__metadata__": {"k": "v", "": ""}, **one()}, EIGHT), a),
        reads("padded", "spaces after the header", st(json.dumps(one()) + "   ", EIGHT), a),
        reads("white-space", "JSON may be spread", st(json.dumps(one(), indent=2), EIGHT), a),
        reads("unaligned", "data at an odd offset is copied", st(json.dumps(one()) + " " * (len(json.dumps(one())) % 2 + 1), EIGHT), a),
        reads("scalar", "a shape of no dimension", st({"a": entry("F32", [], 0, 4)}, EIGHT[:4]), Expected("a", "float32", (), EIGHT[:4])),
        reads("empty-tensors", "tensors of no element share an offset",
              st({"b": entry("F32", [0], 8, 8), **one(), "c": entry("I64", [3, 0], 0, 0)}, EIGHT),
              Expected("c", "int64", (3, 0), b""), a, Expected("b", "float32", (0,), b"")),
        reads("empty-but-wide", "a dimension of 0 beside a large one", st({"a": entry("F32", [0, 2**40], 0, 0)}),
              Expected("a", "float32", (0, 2**40), b"")),
        reads("other-order", "a header in another order than the data",
              st({"b": entry("U8", [3], 5, 8), "a": entry("U8", [5], 0, 5)}, EIGHT),
              Expected("a", "uint8", (5,), EIGHT[:5]), Expected("b", "uint8", (3,), EIGHT[5:])),
        reads("64-dimensions", "as many dimensions as are taken", st({"a": entry("U8", [1] * 63 + [8], 0, 8)}, EIGHT),
              Expected("a", "uint8", (1,) * 63 + (8,), EIGHT)),
        reads("names", "any text is a name",
              st({"": entry("U8", [2], 0, 2), "a.b": entry("U8", [2], 2, 4), "größe\n": entry("U8", [2], 4, 6), "../x": entry("U8", [2], 6, 8)}, EIGHT),
              Expected("", "uint8", (2,), EIGHT[:2]), Expected("a.b", "uint8", (2,), EIGHT[2:4]),
              Expected("größe\n", "uint8", (2,), EIGHT[4:6]), Expected("../x", "uint8", (2,), EIGHT[6:])),
        reads("length-123", "a header of 123 bytes: the file begins with a brace, as JSON does", st(json.dumps(one()).ljust(123), EIGHT), a),
        reads("nul-name", "an escaped NUL is a character", st('{"a\\u0000":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', EIGHT),
              Expected("a\0", "uint8", (8,), EIGHT)),
        reads("one-dimension-of-one", "views of one element", st({"a": entry("F64", [1, 1], 0, 8)}, EIGHT),
              Expected("a", "float64", (1, 1), EIGHT)),
    ]  # fmt: skip


def length_cases(refused) -> list[Case]:
    good = st(one(), EIGHT)
    header_size = len(json.dumps(one()))
    return [
        refused("length-missing", "8 bytes of length", good[:7], "not a weights file"),
        refused("length-alone", "a header after the length", good[:8], "not a weights file"),
        refused("length-past-end", "a header inside the file", st(one(), EIGHT, length=header_size + 9),
                f"expected a safetensors header of {header_size + 9} bytes, found {header_size + 8} (file cut short)"),
        refused("length-100-million", "a header of at most 100 MB", st(one(), EIGHT, length=100_000_001),
                "expected a safetensors header of at most 100000000 bytes, found 100000001"),
        refused("length-2-55", "the same", st(one(), EIGHT, length=2**55), "at most 100000000 bytes, found 36028797018963968"),
        refused("length-2-64", "the same", st(one(), EIGHT, length=2**64 - 1), "not a weights file"),
        refused("length-negative", "the same", st(one(), EIGHT, length=2**63), "not a weights file"),
        refused("length-0", "a header", st(b"", b"{}"), "expected a header that begins with '{', found \"\""),
        refused("length-1", "a whole header", st(one(), EIGHT, length=1), "expected a header that ends with '}' and spaces"),
        refused("length-short", "a whole header", st(one(), EIGHT, length=header_size - 1), "expected a header of valid JSON"),
        refused("length-into-data", "a header that ends with '}'", st(one(), b"12345678", length=header_size + 4), "expected a header that ends with '}' and spaces"),
        refused("cut-in-header", "a whole file", good[:20], "bytes, found 12 (file cut short)"),
        refused("cut-in-data", "a whole file", good[:-1], "expected 8 bytes of data after the header, found 7 (file cut short)"),
        refused("trailing", "no byte left over", good + b"\0", "expected 8 bytes of data after the header, found 9 (trailing bytes)"),
    ]  # fmt: skip


def json_cases(refused) -> list[Case]:
    text = json.dumps(one())
    return [
        refused("json-broken", "JSON", st(text.replace(":", ";", 1), EIGHT), "valid JSON, found at its byte"),
        refused("json-two", "one object", st("{}{}"), "expected a header of valid JSON"),
        refused("json-more", "nothing after the object", st(text + "x", EIGHT), "expected a header that ends with '}'"),
        refused("json-tabs", "padding by spaces", st(text + "\t", EIGHT), "expected a header that ends with '}' and spaces"),
        refused("json-nul", "no NUL", st(text[:-1] + "\0}", EIGHT), f"found at its byte {len(text) - 1}: NUL"),
        refused("json-comma", "no comma before the end", st(text[:-1] + ",}", EIGHT), "expected a header of valid JSON"),
        refused("json-comment", "no comments", st("{/**/}"), "expected a header of valid JSON"),
        refused("json-nan", "no NaN", raw('"dtype":"F32","shape":[NaN],"data_offsets":[0,8]'), "expected a header of valid JSON"),
        refused("json-latin1", "UTF-8", st(b'{"a\xff":{}}'), "expected a header of valid JSON"),
        refused("json-overlong", "UTF-8 of shortest form", st(b'{"a\xc0\x80":{}}'), "expected a header of valid JSON"),
        refused("json-surrogate", "no half of a pair", st('{"\\ud800":{}}'), "expected a header of valid JSON"),
        refused("json-array", "an object", st("[]"), "not a weights file"),
        refused("json-deep-objects", "no nesting", st('{"a":' * 100_000 + "}"), 'tensor "a": expected the fields dtype, shape and data_offsets, found "a"'),
        refused("json-deep-arrays", "no nesting", st('{"a":{"shape":' + "[" * 1_000_000 + "}"), "shape: expected integers from 0 to 2^63 - 1, found an array"),
        refused("json-bom", "no byte order mark", st("\ufeff{}"), "not a weights file"),
        refused("json-unterminated", "closed strings", st('{"a}'), "expected a header of valid JSON"),
    ]  # fmt: skip


def header_cases(refused) -> list[Case]:
    fields = '"dtype":"F32","shape":[2],"data_offsets":[0,8]'
    a = '"a":{' + fields + "}"
    return [
        refused("tensor-twice", "a name once", st("{" + a + "," + a + "}", EIGHT), 'tensor "a": expected once in the header, found twice'),
        refused("tensor-twice-escaped", "a name once, however written", st("{" + a + ',"\\u0061":{' + fields + "}}", EIGHT), 'tensor "a": expected once in the header, found twice'),
        refused("metadata-twice", "metadata once", st('{"__metadata__":{},"__metadata__":{}}'), 'tensor "__metadata__": expected once in the header, found twice'),
        refused("metadata-key-twice", "a key once", st('{"__metadata__":{"k":"1","k":"2"}}'), 'metadata key "k": expected once, found twice'),
        refused("metadata-number", "metadata of strings", st('{"__metadata__":{"k":1}}'), 'metadata key "k": expected a string, found 1'),
        refused("metadata-nested", "metadata of strings", st('{"__metadata__":{"k":{}}}'), 'metadata key "k": expected a string, found an object'),
        refused("metadata-null", "metadata in an object", st('{"__metadata__":null}'), "__metadata__: expected an object of strings, found null"),
        refused("metadata-list", "metadata in an object", st('{"__metadata__":[]}'), "__metadata__: expected an object of strings, found an array"),
        refused("value-number", "a tensor in an object", st('{"a":1}'), 'tensor "a": expected an object with dtype, shape and data_offsets, found 1'),
        refused("value-text", "a tensor in an object", st('{"a":"x"}'), 'expected an object with dtype, shape and data_offsets, found "x"'),
        refused("value-list", "a tensor in an object", st('{"a":[]}'), "expected an object with dtype, shape and data_offsets, found an array"),
        refused("value-false", "a tensor in an object", st('{"a":false}'), "found false"),
        refused("field-unknown", "three fields", raw(fields + ',"device":"cpu"'), 'expected the fields dtype, shape and data_offsets, found "device"'),
        refused("field-twice", "a field once", raw(fields + ',"shape":[2]'), 'expected the field "shape" once, found it twice'),
        refused("field-none", "three fields", raw(""), 'expected a field "dtype", found none'),
        refused("shape-missing", "three fields", raw('"dtype":"F32","data_offsets":[0,8]'), 'expected a field "shape", found none'),
        refused("offsets-missing", "three fields", raw('"dtype":"F32","shape":[2]'), 'expected a field "data_offsets", found none'),
        refused("dtype-unknown", "a known dtype", st(one(dtype="F128"), EIGHT), 'found "F128"'),
        refused("dtype-f4", "a dtype of whole bytes", st(one(dtype="F4"), EIGHT), 'found "F4"'),
        refused("dtype-lower-case", "a known dtype", st(one(dtype="f32"), EIGHT), 'found "f32"'),
        refused("dtype-number", "a dtype in text", st(one(dtype=1), EIGHT), "dtype: expected a string, found 1"),
        refused("dtype-long", "a known dtype; the message stays short", st(one(dtype="x" * 100_000), EIGHT), "expected a dtype of F64 F32"),
        refused("shape-number", "a shape in an array", st(one(shape=2), EIGHT), "shape: expected an array of integers, found 2"),
        refused("shape-text", "a shape of integers", st(one(shape=["2"]), EIGHT), 'shape: expected integers from 0 to 2^63 - 1, found "2"'),
        refused("shape-negative", "no negative dimension", st(one(shape=[-2]), EIGHT), "shape: expected integers from 0 to 2^63 - 1, found -2"),
        refused("shape-minus-zero", "an integer written as one", raw('"dtype":"F32","shape":[-0],"data_offsets":[0,8]'), "found -0"),
        refused("shape-real", "a shape of integers", st(one(shape=[2.0]), EIGHT), "found 2.0"),
        refused("shape-2-63", "a dimension below 2^63", st(one(shape=[2**63]), EIGHT), "found 9223372036854775808"),
        refused("shape-2-64", "a dimension below 2^63", st(one(shape=[2**64]), EIGHT), "found 18446744073709551616"),
        refused("shape-nested", "a flat shape", st(one(shape=[[2]]), EIGHT), "shape: expected integers from 0 to 2^63 - 1, found an array"),
        refused("shape-65", "at most 64 dimensions", st(one(shape=[1] * 65), EIGHT), "expected at most 64 dimensions, found more"),
        refused("offsets-one", "two offsets", st(one(data_offsets=[0]), EIGHT), "expected two data_offsets, found 1"),
        refused("offsets-three", "two offsets", st(one(data_offsets=[0, 8, 8]), EIGHT), "expected two data_offsets, found more"),
        refused("offsets-none", "two offsets", st(one(data_offsets=[]), EIGHT), "expected two data_offsets, found 0"),
        refused("offsets-object", "offsets in an array", st(one(data_offsets={}), EIGHT), "data_offsets: expected an array of integers, found an object"),
        refused("offsets-negative", "no negative offset", st(one(data_offsets=[-8, 0]), EIGHT), "data_offsets: expected integers from 0 to 2^63 - 1, found -8"),
        refused("offsets-text", "offsets of integers", st(one(data_offsets=["0", 8]), EIGHT), 'data_offsets: expected integers from 0 to 2^63 - 1, found "0"'),
    ]  # fmt: skip


def data_cases(refused) -> list[Case]:
    wide = 2**32
    b = {"b": entry("F32", [2], 8, 16)}
    return [
        refused("offsets-reversed", "offsets that do not decrease", st(one(data_offsets=[8, 0]), EIGHT), "expected data_offsets that do not decrease, found [8, 0]"),
        refused("offsets-past-end", "data inside the file", st({**one(), **b}, EIGHT), "expected 16 bytes of data after the header, found 8 (file cut short)"),
        refused("offsets-far", "data inside the file", st({"a": entry("U8", [2**62], 0, 2**62)}), "expected 4611686018427387904 bytes of data after the header, found 0 (file cut short)"),
        refused("offsets-2-64", "data that can be counted", st(one(data_offsets=[2**64 - 8, 2**64 - 1]), EIGHT), "found data_offsets [18446744073709551608, 18446744073709551615]"),
        refused("size-more", "as many bytes as the shape says", st(one(shape=[3]), EIGHT), 'tensor "a": expected 12 bytes for F32 (3,), found data_offsets [0, 8]'),
        refused("size-less", "as many bytes as the shape says", st(one(shape=[1]), EIGHT), "expected 4 bytes for F32 (1,)"),
        refused("size-dtype", "as many bytes as the dtype says", st(one(dtype="F64"), EIGHT), "expected 16 bytes for F64 (2,)"),
        refused("size-empty", "no bytes for no element", st(one(shape=[0]), EIGHT), "expected 0 bytes for F32 (0,)"),
        refused("wraps-to-0", "a product of dimensions below 2^63", st(one(shape=[wide, wide], data_offsets=[0, 0])), "expected a shape of less than 2^63 bytes, found (4294967296, 4294967296)"),
        refused("wraps-to-8", "a product of dimensions below 2^63", st(one(shape=[2**62 + 2, 1, 4, 1]), EIGHT), "expected a shape of less than 2^63 bytes"),
        refused("wraps-by-item", "a product with the item size below 2^63", st(one(shape=[2**62]), EIGHT), "expected a shape of less than 2^63 bytes, found (4611686018427387904,)"),
        refused("wraps-empty", "countable strides", st(one(shape=[0, wide, wide], data_offsets=[0, 0])), "expected a shape of less than 2^63 bytes"),
        refused("overlap", "a byte to one tensor", st({**one(), "b": entry("F32", [2], 4, 12)}, EIGHT + EIGHT[:4]), 'tensor "b": expected data that begins at 8, where the tensor before ends, found [4, 12] (an overlap)'),
        refused("overlap-same", "a byte to one tensor", st({**one(), "b": entry("F32", [2], 0, 8)}, EIGHT), "(an overlap)"),
        refused("hole", "no byte to none", st({**one(), "b": entry("F32", [1], 12, 16)}, EIGHT * 2), "found [12, 16] (a gap)"),
        refused("hole-first", "data from the first byte on", st(one(data_offsets=[8, 16]), EIGHT * 2), "expected data that begins at 0, where the tensor before ends, found [8, 16] (a gap)"),
        refused("hole-empty", "also for tensors of no element", st({**one(), "b": entry("F32", [0], 9, 9)}, EIGHT), "found [9, 9] (a gap)"),
        refused("bool-2", "bytes 0 and 1", st({"a": entry("BOOL", [3], 0, 3)}, b"\0\1\2"), "expected bytes 0 and 1 in a BOOL tensor, found 2 at element 2"),
        refused("many-metadata", "a header that is worth its memory",
                st('{"__metadata__":{' + ",".join(f'"{i}":""' for i in range(2_000_000)) + "}}"), "expected a header of at most"),
        refused("many-tensors", "a header that is worth its memory",
                st("{" + ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(600_000)) + "}"), "expected a header of at most"),
        refused("many-dimensions", "a header that is worth its memory",
                st("{" + ",".join(f'"{i}":{{"dtype":"U8","shape":[{"0," * 63}0],"data_offsets":[0,0]}}' for i in range(200_000)) + "}"), "expected a header of at most"),
    ]  # fmt: skip


def cases() -> list[Case]:
    def refused(name, rule, content, message):
        return Case(name, rule, content, refused=message)

    return [*legal(), *length_cases(refused), *json_cases(refused), *header_cases(refused), *data_cases(refused)]

"""Sharded files: an index, `{"metadata": {...}, "weight_map": {"tensor": "shard"}}`, and the shards beside it."""

from __future__ import annotations

import json

from build import DATA, Case, Expected, W, dct, entry, floats, saved, st, tensor

INDEX = "model.safetensors.index.json"
ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
V = Expected("v", "float32", (2,), floats(5, 6))
SHARDS = {
    ONE: st({"w": entry("F32", [4], 0, 16)}, DATA),
    TWO: st({"v": entry("F32", [2], 0, 8)}, V.values),
}
MAP = {"w": ONE, "v": TWO}


def folder(index: bytes | str | dict, shards: dict[str, bytes] | None = None) -> dict[str, bytes]:
    if isinstance(index, dict):
        index = json.dumps(index)
    return {INDEX: index.encode() if isinstance(index, str) else index, **(SHARDS if shards is None else shards)}


def weight_map(mapped: dict) -> dict:
    return {"metadata": {"total_size": 24}, "weight_map": mapped}


def legal() -> list[Case]:
    def reads(name, rule, content, *tensors):
        return Case(name, rule, content, reads=list(tensors), main=INDEX)

    torch_shards = {"pytorch_model-00001-of-00001.bin": saved(dct({"w": tensor()}))}
    return [
        reads("two-shards", "tensors of two files", folder(weight_map(MAP)), W, V),
        reads("order", "the order of the index", folder(weight_map({"v": TWO, "w": ONE})), V, W),
        reads("no-metadata", "metadata is optional", folder({"weight_map": MAP}), W, V),
        reads("metadata-nested", "metadata of any shape", folder({"metadata": {"a": {"b": [1, {"weight_map": 1}]}}, "weight_map": MAP}), W, V),
        reads("other-keys", "other keys", folder({"x": [[[]]], "weight_map": MAP, "y": None}), W, V),
        reads("part", "an index of some of a shard's tensors", folder(weight_map({"w": ONE})), W),
        reads("nothing", "no tensor", folder({"weight_map": {}})),
        reads("torch", "shards of torch.save", folder(weight_map({"w": next(iter(torch_shards))}), torch_shards), W),
        reads("unlisted-shard", "files that the index does not name", folder(weight_map({"w": ONE}), {**SHARDS, "other": b"?"}), W),
    ]  # fmt: skip


def names() -> list[Case]:
    """Names of shards that lead out of the folder."""

    def refused(name, shard, shown):
        return Case(f"shard-{name}", "a plain file name", folder(weight_map({"w": shard})), main=INDEX,
                    refused=f'tensor "w": expected a shard that is a plain file name, found "{shown}"')  # fmt: skip

    return [
        refused("parent", "../model.safetensors", "../model.safetensors"),
        refused("parent-inside", f"x/../{ONE}", f"x/../{ONE}"),
        refused("parent-alone", "..", ".."),
        refused("here", ".", "."),
        refused("sub-folder", "sub/model.safetensors", "sub/model.safetensors"),
        refused("absolute", "/etc/passwd", "/etc/passwd"),
        refused("windows", "..\\model.safetensors", "..\\\\model.safetensors"),
        refused("drive", "C:model.safetensors", "C:model.safetensors"),
        refused("empty", "", ""),
        refused("nul", f"{ONE}\0.json", f"{ONE}\\x00.json"),
    ]


def broken() -> list[Case]:
    def refused(name, rule, content, message, blames=""):
        return Case(name, rule, content, refused=message, main=INDEX, blames=blames)

    not_json = "expected an index of valid JSON, found at its byte "
    laughs = saved(b"]q\1" + b"".join(b"0](h\1h\1eq\1" for _ in range(60)))
    return [
        refused("shard-missing", "shards that exist", folder(weight_map(MAP), {ONE: SHARDS[ONE]}), "cannot open", TWO),
        refused("shard-broken", "shards that can be read", folder(weight_map(MAP), {**SHARDS, TWO: SHARDS[TWO][:-1]}), "expected 8 bytes of data after the header, found 7", TWO),
        refused("shard-laughs", "shards that can be read", folder(weight_map(MAP), {**SHARDS, TWO: laughs}), "expected at most 4000000 values", TWO),
        refused("shard-of-nothing", "shards that can be read", folder(weight_map(MAP), {**SHARDS, TWO: b""}), "expected a weights file, found an empty file", TWO),
        refused("shard-is-index", "shards that hold tensors: an index in an index has no end", folder(weight_map({"w": INDEX})), "not a weights file", INDEX),
        refused("shard-long", "a file name that the system takes", folder(weight_map({"w": "x" * 300})), "cannot open", "x" * 300),
        refused("tensor-missing", "tensors that their shard holds", folder(weight_map({**MAP, "u": ONE})), f'tensor "u": expected in its shard "{ONE}", found no tensor of that name there'),
        refused("tensor-in-other-shard", "tensors that their shard holds", folder(weight_map({"w": TWO, "v": TWO})), f'tensor "w": expected in its shard "{TWO}"'),
        refused("tensor-twice", "a tensor once", folder('{"weight_map":{"w":"%s","w":"%s"}}' % (ONE, TWO)), 'tensor "w": expected once, found twice'),
        refused("tensor-twice-escaped", "a tensor once, however written", folder('{"weight_map":{"w":"%s","\\u0077":"%s"}}' % (ONE, ONE)), 'tensor "w": expected once, found twice'),
        refused("map-twice", "one map", folder('{"weight_map":{},"weight_map":{"w":"%s"}}' % ONE), 'key "weight_map": expected once, found twice'),
        refused("metadata-twice", "metadata once", folder('{"metadata":{},"metadata":{},"weight_map":{}}'), 'key "metadata": expected once, found twice'),
        refused("map-missing", "a map", folder({"metadata": {}}), 'expected the index of a sharded file, with a "weight_map", found other JSON'),
        refused("map-deeper", "a map at the top", folder({"a": weight_map(MAP)}), 'with a "weight_map", found other JSON'),
        refused("empty-object", "a map", folder("{}"), 'with a "weight_map", found other JSON'),
        refused("map-list", "a map that is an object", folder({"weight_map": list(MAP.items())}), "weight_map: expected an object of file names, found an array"),
        refused("map-text", "a map that is an object", folder({"weight_map": ONE}), f'weight_map: expected an object of file names, found \\"{ONE}\\"'),
        refused("map-null", "a map that is an object", folder({"weight_map": None}), "weight_map: expected an object of file names, found null"),
        refused("map-number", "a map that is an object", folder({"weight_map": 1}), "weight_map: expected an object of file names, found 1"),
        refused("value-number", "names of shards", folder({"weight_map": {"w": 1}}), 'tensor "w": expected the name of its shard, found 1'),
        refused("value-list", "names of shards", folder({"weight_map": {"w": [ONE]}}), 'tensor "w": expected the name of its shard, found an array'),
        refused("value-object", "names of shards", folder({"weight_map": {"w": {"file": ONE}}}), 'tensor "w": expected the name of its shard, found an object'),
        refused("value-null", "names of shards", folder({"weight_map": {"w": None}}), 'tensor "w": expected the name of its shard, found null'),
        refused("array", "an object", folder(f"[{json.dumps(MAP)}]"), "not a weights file"),
        refused("json-cut", "a whole index", folder(json.dumps(weight_map(MAP))[:-1]), not_json),
        refused("json-more", "nothing after the object", folder(json.dumps(weight_map(MAP)) + "x"), not_json),
        refused("json-comma", "JSON", folder('{"weight_map":{},}'), not_json),
        refused("json-latin1", "UTF-8", folder(b'{"weight_map":{"\xff":"a"}}'), not_json),
        refused("json-surrogate", "no half of a pair", folder('{"weight_map":{"\\ud800":"a"}}'), not_json),
        refused("json-nul", "no NUL", folder(json.dumps(weight_map(MAP)) + "\0"), "NUL"),
        refused("json-deep", "JSON to its end, however deep", folder('{"a":' + "[" * 1_000_000), not_json),
        refused("json-huge-number", "numbers that fit", folder('{"a":1e999,"weight_map":{}}'), not_json),
    ]  # fmt: skip


def cases() -> list[Case]:
    return [*legal(), *names(), *broken()]

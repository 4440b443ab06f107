"""Pickles inside archives: legal ones of every shape, each opcode misused, and what asks for too much or runs code.

Opcodes and their meanings: https://github.com/python/cpython/blob/main/Lib/pickletools.py
"""

from __future__ import annotations

import argparse
import collections
import io
import pickle
import struct

from build import (
    DATA, HOOKS, REBUILD, Case, Expected, W, archive, call, dct, deflated, file, glob, integer, lst, pkl, saved, saved_pickle, storage, tensor, text, tup, u32, u64,
)  # fmt: skip

T = tensor()
NAMED = dct({"w": T})
CANARY = "mha-canary"  # a file that code in a pickle would make
TOUCH = text(f"touch {CANARY}")


def empty_object(module: str = "a", name: str = "B") -> bytes:
    return call(glob(module, name))


def mapping(*pairs: tuple[bytes, bytes]) -> bytes:
    return dct(list(pairs))


def beside(*values: bytes) -> bytes:
    """A dict of the tensor "w" and of values that hold no tensor."""
    return dct({"w": T, **{f"v{i}": value for i, value in enumerate(values)}})


def written(value, protocol: int) -> bytes:
    """What Python itself writes for a value, as it stands between the first and the last opcode."""
    bytes_ = pickle.dumps(value, protocol)
    return bytes_[2:-1]


def module_state(parameters: bytes, buffers: bytes = b"}", modules: bytes = b"}", **more: bytes) -> bytes:
    return dct({"_parameters": parameters, "_buffers": buffers, "_modules": modules, **more})


def legal() -> list[Case]:
    def reads(name, rule, value, *names, protocol=2, content=None):
        tensors = [Expected(each, "float32", (4,), DATA) for each in names]
        return Case(name, rule, content or saved(value, protocol=protocol), reads=tensors)

    plain = {
        "none": None, "true": True, "int": -5, "long": 2**70, "float": 0.5, "text": "größe", "list": [1, [2]], "tuple": (1, 2, 3, 4),
        "dict": {1: 2}, "complex": 1j, "range": range(3),
    }  # fmt: skip
    modern = {**plain, "bytes": b"\0\1", "set": {1}, "frozen": frozenset([1])}
    classes = [argparse.Namespace(a=1), collections.Counter("aab"), collections.defaultdict(list), io.BytesIO]
    module = call(glob("my", "Model")) + module_state(dct({"w": T, "none": b"N"}), dct({"b": T, "c": T}),
                                                       dct({"sub": call(glob("my", "Sub")) + module_state(dct({"w": T})) + b"b", "absent": b"N"}),
                                                       _non_persistent_buffers_set=call(glob("builtins", "set"), lst(text("c")))) + b"b"  # fmt: skip
    return [
        reads("tensor", "a tensor alone has the empty name", T, ""),
        reads("dict", "a dict", NAMED, "w"),
        reads("list", "a list, by index", lst(T, lst(T)), "0", "1.0"),
        reads("tuple", "a tuple, by index", tup(T, b"N", T), "0", "2"),
        reads("nested", "dicts in dicts", dct({"model": dct({"a": dct({"w": T})}), "epoch": b"K\x07"}), "model.a.w"),
        reads("ordered-dict", "an OrderedDict, its pairs set one by one", HOOKS + b"(" + text("w") + T + b"u", "w"),
        reads("ordered-dict-python-2", "an OrderedDict of a list of pairs", call(glob("collections", "OrderedDict"), lst(lst(text("w"), T))), "w"),
        reads("ordered-dict-state", "an OrderedDict with attributes: _metadata of a state_dict",
              HOOKS + b"(" + text("w") + T + b"u" + dct({"_metadata": HOOKS}) + b"b", "w"),
        reads("default-dict", "a dict of a subclass", call(glob("collections", "defaultdict"), glob("builtins", "list")) + text("w") + T + b"s", "w"),
        reads("module", "a whole module", module, "w", "b", "sub.w"),
        reads("integer-keys", "keys that are integers", mapping((b"K\x00", T), (integer(2**40), T), (integer(-1), T)), "0", str(2**40), "-1"),
        reads("bytes-keys", "keys of Python 2", mapping((b"U\x01w", T)), "w"),
        reads("latin1-keys", "keys of Python 2 in no encoding", mapping((text(b"gr\xf6\xdfe"), T)), b"gr\xf6\xdfe".decode(errors="surrogateescape")),
        reads("surrogate-keys", "half of a pair, which Python writes", mapping((text(b"\xed\xa0\x80"), T)), b"\xed\xa0\x80".decode(errors="surrogateescape")),
        reads("empty-keys", "empty keys", dct({"": dct({"": T})}), "."),
        reads("long-key", "a long name", dct({"k" * 10_000: T}), "k" * 10_000),
        reads("none-beside", "a key without a value", dct({"w": T, "v": b"N"}), "w"),
        reads("none", "None", b"N"),
        reads("number", "a number", b"K\x01"),
        reads("text", "text", text("w")),
        reads("empty-dict", "an empty dict", b"}"),
        reads("parameters", "attributes of a tensor", call(glob("torch._utils", "_rebuild_parameter"), T, b"\x88", HOOKS), ""),
        *(reads(f"values-protocol-{protocol}", "values that are no tensors", beside(*(written(value, protocol) for value in (modern if protocol > 2 else plain).values())), "w", protocol=protocol)
          for protocol in (2, 3, 4, 5)),
        reads("unknown-classes", "objects of other classes are left out", beside(*(written(value, 2) for value in classes)), "w"),
        reads("unknown-with-tensor", "and not looked into", beside(call(glob("a", "B"), T), empty_object() + dct({"t": T}) + b"b", b"\x8f(" + T + b"\x90"), "w"),
        reads("frames", "frames of protocol 4", b"", "w", content=saved_pickle(b"\x80\x04\x95" + u64(len(NAMED) + 1) + NAMED + b".")),
        reads("frames-lie", "frames are hints: their sizes do not matter", b"", "w", content=saved_pickle(b"\x80\x04\x95" + u64(2**64 - 1) + NAMED + b".")),
        reads("no-protocol", "a pickle of protocol 1 begins without one", b"", "w", content=saved_pickle(NAMED + b".")),
        reads("protocol-in-the-middle", "a protocol may be told again", b"\x80\x02" + NAMED, "w"),
        reads("trailing", "bytes after the end", b"", "w", content=saved_pickle(pkl(NAMED) + b"more")),
        reads("more-on-the-stack", "the topmost value is it", b"K\x01K\x02" + NAMED, "w"),
        reads("memo", "memos of all kinds", b"]\x94(K\x01q\x010h\x00j\x00\x00\x00\x00r\x07\x00\x00\x000t0" + NAMED, "w"),
        reads("shared", "a value under several names", T + b"q\x01" + b"0" + dct({"a": b"h\x01", "b": lst(b"h\x01", b"h\x01")}), "a", "b.0", "b.1"),
        reads("many", "100 000 values", dct({"w": T, "n": lst(*([b"K\x01"] * 100_000))}), "w"),
        reads("many-names", "3000 tensors", dct({f"layer.{i}.weight": T for i in range(3000)}), *(f"layer.{i}.weight" for i in range(3000))),
        reads("deep", "200 levels", b"](" * 200 + T + b"e" * 200, ".".join("0" * 200)),
        reads("deep-unreached", "depth in what is not looked into", beside(empty_object() + b"](" * 100_000 + b"e" * 100_000 + b"b"), "w"),
        reads("unhashable-keys", "keys that Python could not use, of what is no tensor", mapping((text("w"), T), (b"]", b"K\x01"), (b"}", b"]")), "w"),
        reads("state-of-a-tensor", "a tensor that is given a state", T + dct({"note": b"N"}) + b"b", ""),
        reads("class-as-a-value", "a class", beside(glob("torch", "float16"), glob("os", "system")), "w"),
        reads("device", "devices, dtypes, sizes", beside(call(glob("torch", "device"), text("cuda"), b"K\x00"), glob("torch", "float16"), call(glob("torch", "Size"), lst(b"K\x01"))), "w"),
        reads("persistent-other", "a persistent id of no storage, not used as one", beside(b"NQ", tup(text("x")) + b"Q"), "w"),
        reads("self-in-state", "an unknown object that holds itself", beside(empty_object() + b"q\x09" + dct({"me": b"h\x09"}) + b"b"), "w"),
    ]  # fmt: skip


def code() -> list[Case]:
    """Calls of what a real unpickler would call: they are recorded and left out, and the canary stays away."""
    system, evaluate, popen = glob("os", "system"), glob("builtins", "eval"), glob("subprocess", "Popen")
    exploit = text(f"__import__('os').system('touch {CANARY}')")

    def harmless(name, value):
        return Case(name, "no code is run", saved(beside(value)), reads=[W])

    return [
        harmless("system", call(system, TOUCH)),
        harmless("posix-system", call(glob("posix", "system"), TOUCH)),
        harmless("eval", call(evaluate, exploit)),
        harmless("exec", call(glob("builtins", "exec"), exploit)),
        harmless("python-2", call(glob("__builtin__", "eval"), exploit)),
        harmless("popen", call(popen, lst(text("touch"), text(CANARY)))),
        harmless("new", system + tup(TOUCH) + b"\x81"),
        harmless("new-with-keywords", popen + tup(lst(text("touch"), text(CANARY))) + b"}\x92"),
        harmless("object", b"(" + system + TOUCH + b"o"),
        harmless("instance", b"(" + TOUCH + b"ios\nsystem\n"),
        harmless("stack-global", text("os") + text("system") + b"\x93" + tup(TOUCH) + b"R"),
        harmless("getattr", call(call(glob("builtins", "getattr"), call(glob("builtins", "__import__"), text("os")), text("system")), TOUCH)),
        harmless("build", empty_object() + dct({"__reduce__": call(system, TOUCH), "__setstate__": system}) + b"b" + b"0" + text("x")),
        harmless("runpy", call(glob("runpy", "_run_code"), exploit, b"}")),
        harmless("numpy", call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), tup(b"K\x00"), b"C\x01b")),
        harmless("torch-load", call(glob("torch.serialization", "load"), text("m.pt"))),
        Case("system-alone", "no code is run", saved(call(system, TOUCH)), reads=[]),
        Case("system-as-rebuild", "only PyTorch's functions rebuild tensors", saved(dct({"w": call(system, TOUCH), "v": T})),
             reads=[Expected("v", "float32", (4,), DATA)]),
        Case("system-as-hooks", "no hook is called", saved(dct({"w": tensor(b"", 0, (4,), (1,))[:-2] + call(system, TOUCH) + b"tR"})), reads=[W]),
        Case("system-as-key", "a key that is a call", saved(mapping((call(system, TOUCH), T))), refused='expected keys that are text or integers, found an object of "os.system"'),
    ]  # fmt: skip


def misused() -> list[Case]:
    byte = "of the pickle: expected "

    def refused(name, rule, value, message, content=None):
        return Case(name, rule, content or saved(value), refused=message)

    def none(name, opcode, what="1 values on the stack, found 0"):
        return refused(f"{name}-of-nothing", "a value to work on", opcode, byte + what)

    mark = "a mark on the stack, found none"
    unknown = [
        ("protocol-0-int", b"I1\n", "I"), ("protocol-0-float", b"F1\n", "F"), ("protocol-0-long", b"L1L\n", "L"), ("protocol-0-string", b"S'a'\n", "S"),
        ("protocol-0-text", b"Va\n", "V"), ("protocol-0-get", b"g0\n", "g"), ("protocol-0-put", b"p0\n", "p"), ("protocol-0-persistent", b"P1\n", "P"),
        ("extension-1", b"\x82\x01", "\\x82"), ("extension-2", b"\x83\1\1", "\\x83"), ("extension-4", b"\x84\1\1\1\1", "\\x84"),
        ("next-buffer", b"\x97", "\\x97"), ("readonly-buffer", b"N\x98", "\\x98"), ("no-opcode", b"\xff", "\\xff"), ("no-opcode-0", b"\0", "\\x00"),
    ]  # fmt: skip
    return [
        *(refused(name, "an opcode of protocols 2 to 5", opcode, f'{byte}an opcode of pickle protocols 2 to 5, found "{found}"') for name, opcode, found in unknown),
        refused("protocol-6", "a known protocol", b"", byte + "a pickle of protocol 5 at most, found 6", content=saved(NAMED, protocol=6)),
        refused("protocol-255", "a known protocol", b"", "protocol 5 at most, found 255", content=saved(NAMED, protocol=255)),
        refused("no-end", "an end", b"", "expected 1 more bytes, found 0 (cut short)", content=saved_pickle(pkl(NAMED)[:-1])),
        *(refused(f"cut-{at}", "a whole pickle", b"", "(cut short)", content=saved_pickle(pkl(NAMED)[:at])) for at in (1, 2, 5, 20, 60, 100)),
        none("stop", b""), none("pop", b"0"), none("duplicate", b"2"), none("put", b"q\1"), none("memoize", b"\x94"), none("persistent", b"Q"),
        none("build", b"Nb"), none("append", b"K\1a"), none("tuple-1", b"\x85"), none("tuple-2", b"N\x86", "2 values on the stack, found 1"),
        none("tuple-3", b"NN\x87", "3 values on the stack, found 2"), none("set-item", b"Ns", "2 values on the stack, found 1"),
        none("reduce", b"NR", "2 values on the stack, found 1"), none("new", b"N\x81", "2 values on the stack, found 1"),
        none("new-with-keywords", b"NN\x92", "3 values on the stack, found 2"), none("stack-global", b"N\x93", "2 values on the stack, found 1"),
        none("stop-at-mark", b"N("), none("pop-below-mark", b"N(\x85"), none("object", b"(o", "a class after the mark, found nothing"),
        *(refused(f"{name}-without-mark", "a mark", value, byte + mark) for name, value in (
            ("tuple", b"Nt"), ("list", b"Nl"), ("dict", b"Nd"), ("appends", b"]Ne"), ("set-items", b"}NNu"), ("add-items", b"\x8fN\x90"),
            ("frozen-set", b"N\x91"), ("pop-mark", b"N1"), ("object", b"No"), ("instance", b"Nia\nb\n"))),
        refused("get-of-nothing", "a memo", b"h\7", byte + "a memo of number 7, found none"),
        refused("get-from-a-hole", "a memo", b"Nq\5h\4", "a memo of number 4, found none"),
        refused("long-get", "a memo", b"j" + u32(0xFFFFFFFF), "a memo of number 4294967295, found none"),
        refused("long-put-2-32", "memos that the pickle pays for", b"Nr" + u32(0xFFFFFFFF), byte + "values of at most 160 MiB, found more"),
        refused("long-put-8-million", "memos that the pickle pays for", b"Nr" + u32(8_000_000), "values of at most 160 MiB, found more"),
        refused("key-without-value", "a value for each key", b"}(NNNu", byte + "a value for each key, found 3 keys and values"),
        refused("dict-without-value", "a value for each key", b"(Nd", "a value for each key, found 1"),
        refused("append-to-tuple", "a list to add to", b")Na", byte + "a list to add to, found a tuple of 0"),
        refused("append-to-dict", "a list to add to", b"}Na", "a list to add to, found a dict"),
        refused("appends-to-text", "a list to add to", text("x") + b"(Ne", 'a list to add to, found the text "x"'),
        refused("set-item-of-list", "a dict to add to", b"]NNs", byte + "a dict to add to, found a list"),
        refused("set-items-of-none", "a dict to add to", b"N(NNu", "a dict to add to, found None"),
        refused("set-items-of-class", "a dict to add to", glob("a", "B") + b"(NNu", 'a dict to add to, found the class or function "a.B"'),
        refused("add-items-to-list", "a set to add to", b"](N\x90", byte + "a set to add to, found a list"),
        refused("items-and-pairs", "an object that is one kind of container", empty_object() + b"(NNu(Ne", 'a list to add to, found an object of "a.B"'),
        refused("reduce-list", "arguments in a tuple", glob("a", "B") + b"]R", byte + "arguments in a tuple, found a list"),
        refused("new-none", "arguments in a tuple", glob("a", "B") + b"N\x81", "arguments in a tuple, found None"),
        refused("build-dict", "an object to give its state", b"}}b", byte + "an object to give its state, found a dict"),
        refused("build-class", "an object to give its state", glob("a", "B") + b"}b", 'found the class or function "a.B"'),
        refused("build-storage", "an object to give its state", b")Q}b", "an object to give its state, found a storage"),
        refused("build-twice", "one state", empty_object() + b"}b}b", byte + 'one state for an object of "a.B", found two'),
        refused("stack-global-numbers", "names that are text", b"K\1K\2\x93", byte + "a module and a name as text, found the integer 1 and the integer 2"),
        refused("global-cut", "the end of a line", b"", byte + "the end of a line, found none (cut short)", content=saved_pickle(b"\x80\x02cos")),
        refused("ordered-dict-number", "a list of pairs", call(glob("collections", "OrderedDict"), b"K\1"), byte + "an OrderedDict of a list of pairs, found the integer 1"),
        refused("ordered-dict-triples", "pairs", call(glob("collections", "OrderedDict"), lst(tup(b"N", b"N", b"N"))), "an OrderedDict of pairs, found a tuple of 3"),
        refused("text-4-gib", "text inside the pickle", b"X" + u32(0xFFFFFFFF), byte + "4294967295 more bytes, found"),
        refused("text-2-63", "text of less than 4 GiB", b"\x8d" + u64(2**63), byte + "text of less than 4 GiB, found 9223372036854775808 bytes"),
        refused("bytes-4-gib", "bytes inside the pickle", b"B" + u32(0xFFFFFFF0), "4294967280 more bytes"),
        refused("bytes-2-64", "bytes of less than 4 GiB", b"\x8e" + u64(2**64 - 1), "less than 4 GiB"),
        refused("byte-array-2-64", "bytes of less than 4 GiB", b"\x96" + u64(2**64 - 1), "less than 4 GiB"),
        refused("string-2-31", "a string inside the pickle", b"T" + u32(2**31), "2147483648 more bytes"),
        refused("long-negative-size", "a size that is none below 0", b"\x8b" + struct.pack("<i", -1), "4294967295 more bytes"),
        refused("long-2-31", "a long inside the pickle", b"\x8b" + u32(2**31 - 1), "2147483647 more bytes"),
        refused("short-text-cut", "text inside the pickle", b"", "(cut short)", content=saved_pickle(b"\x80\x02\x8c\xffabc")),
        refused("frame-cut", "a whole frame header", b"", "expected 8 more bytes, found 3 (cut short)", content=saved_pickle(b"\x80\x04\x95abc")),
    ]  # fmt: skip


def shapes() -> list[Case]:
    """Values that are legal pickles and no state dict."""
    keys = "expected keys that are text or integers, found "

    def refused(name, rule, value, message):
        return Case(name, rule, saved(value), refused=message)

    def key(name, value, found):
        return refused(f"key-{name}", "a tensor under a key that names it", mapping((value, T)), keys + found)

    return [
        key("none", b"N", "None"), key("bool", b"\x88", "True"), key("float", b"G?\xe0" + bytes(6), "the number 0.5"),
        key("tuple", tup(b"K\1"), "a tuple of 1"), key("list", b"]", "a list"), key("dict", b"}", "a dict"), key("class", glob("a", "B"), 'the class or function "a.B"'),
        key("big", b"\x8a\x09" + bytes(8) + b"\1", "an integer of 9 bytes"),
        key("tensor", T, 'an object of "torch._utils._rebuild_tensor_v2"'),
        refused("key-outside", "a tensor below such a key", mapping((tup(b"K\1"), dct({"a": lst(T)}))), keys + "a tuple of 1"),
        refused("name-twice", "one tensor of a name", dct({"a.b": T, "a": dct({"b": T})}), 'tensor "a.b": expected one tensor of that name, found two'),
        refused("key-twice", "one tensor of a name", mapping((text("w"), T), (text("w"), T)), 'tensor "w": expected one tensor of that name, found two'),
        refused("number-and-text", "one tensor of a name", mapping((text("0"), T), (b"K\0", T)), 'tensor "0": expected one tensor of that name, found two'),
        refused("circle-list", "an end", b"]q\1(h\1e", "expected at most 256 levels, found more (a circle?)"),
        refused("circle-dict", "an end", b"}q\1" + text("a") + b"h\1s", "under \"a.a.a."),
        refused("circle-tuple", "an end", b"]q\1(h\1" + T + b"\x86e", "at most 256 levels"),
        refused("circle-module", "an end", empty_object() + b"q\1" + module_state(b"}", modules=dct({"me": b"h\1"})) + b"b", "at most 256 levels"),
        refused("circle-object", "an end", call(glob("my", "List")) + b"q\1(h\1e", "at most 256 levels"),
        refused("circle-parameter", "a tensor", lst(b"]q\1" + b"0" + call(glob("torch._utils", "_rebuild_parameter"), b"h\1")), "expected the arguments of torch._utils._rebuild_parameter, found a list"),
        refused("circle-build", "a tensor", call(glob("torch._utils", "_rebuild_parameter"), b"N") + b"q\1" + b"h\1b", "expected the arguments of torch._utils._rebuild_parameter, found None"),
        refused("deep-lists", "at most 256 levels", b"](" * 300 + b"e" * 300, "at most 256 levels"),
        refused("deep-300000", "at most 256 levels", b"]" * 300_000 + b"a" * 299_999, "at most 256 levels"),
        refused("deep-tuples", "at most 256 levels", b")" + b"\x85" * 300_000, "at most 256 levels"),
        refused("deep-dicts", "at most 256 levels", b"}" * 1 + (b"q\1" + b"0}" + text("a") + b"h\1s") * 100_000, "at most 256 levels"),
        refused("deep-objects", "at most 256 levels", b"N" + (b"q\1" + b"0" + call(glob("my", "List")) + b"h\1a") * 10_000, "at most 256 levels"),
        refused("parameter-of-list", "tensors among parameters", empty_object() + module_state(dct({"p": b"]"})) + b"b", 'expected tensors among parameters and buffers, found a list at the text "p"'),
        refused("buffer-of-text", "tensors among buffers", empty_object() + module_state(b"}", dct({"b": text("x")})) + b"b", 'found the text "x" at the text "b"'),
    ]  # fmt: skip


def greedy() -> list[Case]:
    """Small files that ask for much."""
    budget = "expected values of at most 160 MiB, found more"

    def refused(name, rule, value, message):
        content = value if value.startswith(b"PK") else saved(value)
        return Case(name, rule, content, refused=message)

    def laughs(item: bytes, levels: int, width: int) -> bytes:
        """Lists of lists, each `width` times the one before."""
        value = item + b"q\1"
        for _ in range(levels):
            value += b"0](" + b"h\1" * width + b"eq\1"
        return value

    long_text = text("x" * (1 << 20)) + b"q\2" + b"0"
    big_list = b"](" + b"N" * 200_000 + b"eq\2" + b"0"
    big_dict = b"}(" + (b"K\1N" * 200_000) + b"uq\2" + b"0"
    big_set = b"\x8f(" + (text("abcdefgh") * 20_000) + b"\x90q\2" + b"0"
    unit = tensor()
    in_module = empty_object() + module_state(b"}", _non_persistent_buffers_set=b"h\2") + b"bq\3" + b"0"
    v3 = glob("torch._utils", "_rebuild_tensor_v2") + b"q\4" + b"0"
    return [
        refused("laughs", "a bounded number of values", laughs(b"]", 60, 2), "expected at most 4000000 values in dicts, lists and modules, found more"),
        refused("laughs-wide", "a bounded number of values", laughs(b"]", 6, 200), "expected at most 4000000 values"),
        refused("laughs-dict", "a bounded number of values", b"}q\1" + b"".join(b"0}(K\1h\1K\2h\1uq\1" for _ in range(60)), "expected at most 4000000 values"),
        refused("laughs-tensors", "a bounded number of names", laughs(unit, 5, 40), "expected at most"),
        refused("laughs-module", "a bounded number of values", b"Nq\1" + b"".join(b"0" + empty_object() + module_state(b"}", modules=dct({"a": b"h\1", "b": b"h\1"})) + b"bq\1" for _ in range(60)), "expected at most 4000000 values"),
        refused("laughs-script", "a bounded number of values", b"Nq\1" + b"".join(b"0" + glob("__torch__", "M") + b")\x81" + dct({"a": b"h\1", "b": b"h\1"}) + b"bq\1" for _ in range(60)), "expected at most 4000000 values"),
        refused("aliases", "a bounded number of names", unit + b"q\1" + b"0](" + b"h\1" * 1_500_000 + b"e", "expected at most 400000 tensors, found more"),
        refused("records", "a bounded number of tensors", archive([deflated("m/data.pkl", pkl(many_records(400_001))), file("m/data/0", DATA)]), budget),
        refused("long-names", "names of a bounded size", long_text + b"]q\1" + b"0}(" + b"h\2h\1" * 100 + b"u", "expected names of at most 64 MiB together"),
        refused("big-set-in-modules", "a bounded number of values, those of sets too", big_set + in_module + b"](" + b"h\3" * 20_000 + b"e", "expected at most 4000000 values"),
        refused("big-dict-in-lists", "a bounded number of values", big_dict + b"](" + b"h\2" * 1000 + b"e", "expected at most 4000000 values"),
        refused("big-flags", "few flags of a tensor", big_dict + v3 + lst(*([b"h\4" + tup(storage(), b"K\0", b"K\4\x85", b"K\1\x85", b"\x89", b"N", b"h\2") + b"R"] * 1000)), "expected at most 16 flags of a tensor, found 200000"),
        refused("nones", "values that the pickle pays for", archive([deflated("m/data.pkl", pkl(b"N" * 12_000_000))]), budget),
        refused("marks", "values that the pickle pays for", archive([deflated("m/data.pkl", pkl(b"(" * 12_000_000))]), budget),
        refused("dicts", "values that the pickle pays for", archive([deflated("m/data.pkl", pkl(b"}" * 2_000_000))]), budget),
        refused("names", "values that the pickle pays for", archive([deflated("m/data.pkl", pkl(b"".join(b"ca\n%d\n" % i for i in range(1_200_000))))]), budget),
        refused("ordered-dicts", "values that the pickle pays for", saved(b"](" + b"NN\x86" * 5000 + b"eq\1" + (glob("collections", "OrderedDict") + b"h\1\x85R") * 5000), budget),
        refused("tuples-of-tuples", "values that the pickle pays for", archive([deflated("m/data.pkl", pkl(b"N" + b"\x85" * 1_500_000))]), budget),
        refused("big-list-again", "a bounded number of values", big_list + b"](" + b"h\2" * 100 + b"e", "expected at most 4000000 values"),
    ]  # fmt: skip


def many_records(count: int) -> bytes:
    """That many tensors, in as few bytes as can be."""
    parts = [REBUILD, storage(), tup(b"K\4"), tup(b"K\1")]
    memo = b"".join(part + b"q" + bytes([i]) + b"0" for i, part in enumerate(parts))
    return memo + b"](" + b"h\0(h\1K\0h\2h\3tR" * count + b"e"


def cases() -> list[Case]:
    return [*legal(), *code(), *misused(), *shapes(), *greedy()]

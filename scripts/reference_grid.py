"""The list of reference cases that `export_reference.py --grid` writes, by topic."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from reference_inputs import Case

# PyTorch refuses float16 with any mask: the fill does not fit.
MASKABLE_DTYPES = ("float32", "float64", "bfloat16")


def grid_cases() -> list[Case]:
    """All cases; those that several topics ask for come once."""
    topics = (
        _modes_and_dtypes,
        _head_sizes,
        _lengths,
        _mask_kinds_and_shapes,
        _mask_dtypes,
        _layouts,
        _values,
        _weights,
        _fresh_initialisation,
        _threads,
        _without_gradients,
        _the_lessons_question,
    )
    return list(dict.fromkeys(case for topic in topics for case in topic()))


def _modes_and_dtypes() -> Iterator[Case]:
    modes = (("eval", 0.1), ("train", 0.0), ("train", 0.1), ("train", 0.5))
    for dtype, (mode, dropout), attention in product((*MASKABLE_DTYPES, "float16"), modes, ("self", "cross")):
        plain = Case(dtype=dtype, mode=mode, dropout=dropout, attention=attention)
        yield plain
        if dtype != "float16":
            yield replace(plain, mask="causal")
    for attention in ("distinct", "shared_qk"):
        yield Case(attention=attention)
        yield Case(attention=attention, mode="train")
    yield Case(mode="train", seed=1)
    yield Case(mode="train", dropout=1.0)


def _head_sizes() -> Iterator[Case]:
    for d_k, (batch, length) in product((1, 3, 6, 64, 80, 128), ((1, 1), (2, 50), (1, 257))):
        heads = 2 if d_k > 6 else 3
        yield Case(d_model=heads * d_k, num_heads=heads, batch=batch, query_len=length, key_len=length)
    for d_k, dtype in product((1, 3, 6, 64, 80, 128), ("float64", "bfloat16", "float16")):
        yield Case(dtype=dtype, d_model=2 * d_k, num_heads=2, query_len=50, key_len=50)
    for d_k in (6, 64, 80):
        yield Case(d_model=2 * d_k, num_heads=2, mode="train", mask="causal")
    yield Case(d_model=512, num_heads=1, batch=1, grads=False)
    yield Case(d_model=192, num_heads=3, mask="causal")
    yield Case(d_model=1, num_heads=1)
    yield Case(d_model=16, num_heads=16)


def _lengths() -> Iterator[Case]:
    for query_len, key_len in ((50, 7), (7, 50), (1, 50), (50, 1), (257, 31), (31, 257)):
        lengths = Case(query_len=query_len, key_len=key_len)
        yield replace(lengths, attention="cross")
        yield replace(lengths, attention="distinct", mode="train")
        yield replace(lengths, attention="cross", mask="causal")
        yield replace(lengths, attention="cross", mask="causal_bottom_right")
        yield replace(lengths, attention="cross", mask="padding", mask_shape="b11s")
    for query_len, key_len in ((0, 5), (5, 0), (0, 0)):
        empty = Case(query_len=query_len, key_len=key_len, attention="cross")
        yield empty
        yield replace(empty, mask="causal")
        yield replace(empty, dtype="float64", attention="distinct", mode="train")
    yield Case(query_len=0, key_len=0)
    for batch, length in ((1, 50), (32, 1), (32, 17), (1, 257)):
        sizes = Case(batch=batch, query_len=length, key_len=length)
        yield replace(sizes, mask="causal")
        yield replace(sizes, mode="train", grads=length < 257)
        yield replace(sizes, dtype="bfloat16")


def _mask_kinds_and_shapes() -> Iterator[Case]:
    # The batch equals the number of heads: a mask that meets the wrong one of them still fits.
    small = Case(batch=3, query_len=7, key_len=7)
    shapes = ("ls", "b11s", "11ls", "b1ls", "bhls", "1hls", "s", "scalar", "l1", "b1l1", "1h11", "bls")
    for mask, shape in product(("random", "full_row"), shapes):
        yield replace(small, mask=mask, mask_shape=shape)
    for mask, shape in product(("causal", "padding", "all_blocked", "none_blocked"), ("ls", "b11s", "bhls")):
        yield replace(small, mask=mask, mask_shape=shape)
    for mask, shape in product(("random", "padding"), ("ls", "b11s", "bhls", "s")):
        yield replace(small, attention="cross", key_len=9, mask=mask, mask_shape=shape)
    for mask, dtype in product(("full_row", "all_blocked"), ("float64", "bfloat16")):
        yield replace(small, mask=mask, dtype=dtype)
    for mask, shape in (("full_row", "b1ls"), ("padding", "b11s"), ("random", "bhls"), ("all_blocked", "ls")):
        yield replace(small, mode="train", mask=mask, mask_shape=shape)
    for shape in ("s", "b11s", "11ls", "b1ls", "l1", "scalar"):
        yield replace(small, mask="random", mask_shape=shape, mask_layout="expanded")
    for layout, shape in product(("transposed", "every_second"), ("ls", "bhls")):
        yield replace(
            small, attention="cross", key_len=9, mask="random", mask_shape=shape, mask_layout=layout
        )
    for dtype in MASKABLE_DTYPES:  # 0 / -inf to be added, passed as it is: the lesson reads it inverted.
        yield Case(dtype=dtype, mask="additive", mask_shape="ls", mask_dtype="float32")


def _mask_dtypes() -> Iterator[Case]:
    integers, floats = ("uint8", "int8", "int64"), ("float32", "float64", "float16", "bfloat16", "special")
    for dtype in (*integers, *floats):
        yield Case(mask="random", mask_shape="b1ls", mask_dtype=dtype)
        yield Case(mask="full_row", mask_dtype=dtype, dtype="bfloat16", mode="train")
    for dtype in ("uint8", "float32"):
        yield Case(mask="padding", mask_shape="b11s", mask_dtype=dtype, mask_layout="expanded")


def _layouts() -> Iterator[Case]:
    strided = ("length_first", "features_first", "every_second_row", "every_second_feature", "padded")
    expanded = ("expanded_batch", "expanded_length", "expanded_features", "expanded_all")
    for layout, dtype in product((*strided, *expanded), MASKABLE_DTYPES):
        yield Case(layout=layout, dtype=dtype)
    for layout in (*strided, *expanded):
        yield Case(layout=layout, attention="distinct", key_len=31, mode="train")
    for layout in strided:
        yield Case(layout=layout, d_model=128, num_heads=2, mask="causal")
        yield Case(layout=layout, dtype="float16")
    for layout, name in product(("length_first", "padded", "expanded_batch"), ("query", "key", "value")):
        yield Case(layout=layout, layout_of=name, attention="distinct", mask="causal")


def _values() -> Iterator[Case]:
    for values, dtype in product(("nan_query", "inf_query", "neginf_query"), MASKABLE_DTYPES):
        yield Case(values=values, dtype=dtype)
    padded = Case(attention="distinct", query_len=7, key_len=9, mask="padding", mask_shape="b11s")
    for special, name in product(("nan", "inf", "neginf"), ("key", "value")):
        yield replace(padded, values=f"{special}_last_{name}")
    yield replace(padded, values="nan_last_key", attention="cross")
    yield replace(padded, values="nan_last_key", dtype="bfloat16")
    yield replace(padded, values="nan_last_value", mode="train")
    for values in ("large", "beyond_fill", "huge", "subnormal", "zeros", "negative_zeros", "equal_rows"):
        yield Case(values=values)
        yield Case(values=values, mask="causal")
    for values, dtype in product(("large", "beyond_fill", "subnormal"), ("float64", "bfloat16")):
        yield Case(values=values, dtype=dtype, mask="causal")
    for values in ("large", "overflow", "subnormal", "nan_query"):
        yield Case(values=values, dtype="float16")


def _weights() -> Iterator[Case]:
    for weights in ("zeros", "identity", "large", "subnormal", "nan", "inf", "negative_zeros"):
        yield Case(weights=weights)
    for weights in ("zeros", "nan", "subnormal"):
        yield Case(weights=weights, dtype="bfloat16", mask="causal")


def _fresh_initialisation() -> Iterator[Case]:
    for dtype, seed in product((*MASKABLE_DTYPES, "float16"), (0, 7)):
        yield Case(weights="init", dtype=dtype, seed=seed)
    for d_model, heads in ((1, 1), (12, 2), (192, 3), (512, 8)):
        one = Case(weights="init", d_model=d_model, num_heads=heads, batch=1, query_len=7, key_len=7, seed=7)
        yield replace(one, grads=d_model < 512)
    yield Case(weights="init", mode="train", mask="causal", seed=7)


def _threads() -> Iterator[Case]:
    wide = Case(threads=2, d_model=128, num_heads=2)
    for dtype, mode in product((*MASKABLE_DTYPES, "float16"), ("eval", "train")):
        yield replace(wide, dtype=dtype, mode=mode)
    for threads in (1, 2):
        yield replace(wide, threads=threads, mask="causal")
        yield replace(wide, threads=threads, batch=1, query_len=257, key_len=257, mode="train", mask="causal")
        yield replace(wide, threads=threads, attention="cross", query_len=1, key_len=257)


def _without_gradients() -> Iterator[Case]:
    for dtype, mode in product((*MASKABLE_DTYPES, "float16"), ("eval", "train")):
        yield Case(grads=False, dtype=dtype, mode=mode)
    yield Case(grads=False, mask="full_row", attention="cross", key_len=31)
    yield Case(grads=False, layout="padded", attention="distinct")
    yield Case(grads=False, threads=2, batch=8, d_model=128, num_heads=2)


def _the_lessons_question() -> Iterator[Case]:
    question = Case(batch=32, query_len=50, key_len=50, d_model=512, num_heads=8, weights="init", threads=2)
    yield question
    yield replace(question, mode="train", mask="causal")

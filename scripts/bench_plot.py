"""The results of `bench_peers.py` as one picture: how fast each engine is, and how time and memory grow with length."""

import io

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from bench_cases import CROSS, CURVE, DTYPES, SELF  # noqa: E402

# Ours stand out, peers are told apart by hue; readable with red-green blindness and in grey.
_COLOURS = {
    "mha fused": "#b2182b",
    "mha lesson": "#ef8a62",
    "Python lesson": "#bdbdbd",
    "Python SDPA": "#737373",
    "PyTorch module": "#9ecae1",
    "compiled lesson": "#4292c6",
    "compiled SDPA": "#08519c",
    "ONNXRuntime lesson": "#c7e9c0",
    "ONNXRuntime fused": "#41ab5d",
    "OpenVINO lesson": "#6a51a3",
}


def plot(results: dict, suffix: str) -> bytes:
    """The picture in the format that `suffix` names."""
    threads = max(row["threads"] for row in results["rows"])
    rows = [row for row in results["rows"] if row["threads"] == threads]
    bars = {
        dtype: [row for row in rows if row["dtype"] == dtype and row["case"] in (SELF, CROSS)]
        for dtype in DTYPES
    }
    bars = {dtype: some for dtype, some in bars.items() if some}
    curve = [row for row in rows if row["case"] == CURVE]
    columns = len(bars) + bool(curve)
    figure = pyplot.figure(figsize=(6.2 * columns, 10), layout="constrained")
    grid = figure.add_gridspec(2, columns)
    peaks = {p["dtype"]: p["gflops"] for p in results["machine"]["peak"] if p["threads"] == threads}
    for column, (dtype, some) in enumerate(bars.items()):
        _draw_bars(figure.add_subplot(grid[:, column]), dtype, some, peaks[dtype])
    if curve:
        memory = [row for row in curve if row["extra_bytes"]]
        _draw_curve(figure.add_subplot(grid[0, -1]), curve, "min_ms", 1, "time of one call in ms")
        if memory:
            _draw_curve(
                figure.add_subplot(grid[1, -1]),
                memory,
                "extra_bytes",
                2**20,
                "memory that one call takes, in MiB",
            )
    handles = {}
    for axes in figure.axes:
        handles.update(zip(*reversed(axes.get_legend_handles_labels())))
    ordered = [name for name in _COLOURS if name in handles]
    figure.legend(
        [handles[name] for name in ordered], ordered, loc="outside lower center", ncols=min(5, len(ordered))
    )
    machine = results["machine"]
    figure.suptitle(
        f"Multi-head attention on {machine['cpu_model']}, {threads} thread{'s' if threads > 1 else ''}"
    )
    file = io.BytesIO()
    figure.savefig(file, format=suffix.lstrip(".") or "png", dpi=120)
    pyplot.close(figure)
    return file.getvalue()


def _draw_bars(axes: Axes, dtype: str, rows: list[dict], peak: float) -> None:
    """One group for each case, the first engine on top."""
    cases = list(dict.fromkeys(_case(row) for row in rows))
    engines = [name for name in _COLOURS if any(row["engine"] == name for row in rows)]
    height = 0.84 / len(engines)
    for place, engine in enumerate(engines):
        mine = [row for row in rows if row["engine"] == engine]
        positions = [cases.index(_case(row)) + height * (place - (len(engines) - 1) / 2) for row in mine]
        values = [row["gflops"] for row in mine]
        axes.barh(positions, values, height, color=_COLOURS[engine], label=engine)
        if engine == "mha fused":
            for position, value in zip(positions, values):
                axes.text(value, position, f" {value:.0f}", va="center", fontsize=7)
    axes.axvline(peak, color="black", linewidth=1, linestyle="--")
    axes.text(peak, -0.58, f"peak of matrix products: {peak:.0f}", ha="right", va="bottom", fontsize=8)
    axes.set_yticks(range(len(cases)), cases)
    axes.set_ylim(len(cases) - 0.45, -0.75)
    axes.set_xlabel("GF/s (longer is faster)")
    axes.set_title(dtype)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_curve(axes: Axes, rows: list[dict], field: str, unit: float, title: str) -> None:
    for engine in (name for name in _COLOURS if any(row["engine"] == name for row in rows)):
        mine = sorted((row for row in rows if row["engine"] == engine), key=lambda row: row["shape"][1])
        lengths = [row["shape"][1] for row in mine]
        width = 2.5 if engine.startswith("mha") else 1.5
        values = [row[field] / unit for row in mine]
        axes.plot(
            lengths, values, marker="o", markersize=4, linewidth=width, color=_COLOURS[engine], label=engine
        )
    batch, _, d_model, num_heads = rows[0]["shape"]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths := sorted({row["shape"][1] for row in rows}), [str(length) for length in lengths])
    axes.set_xlabel("length")
    axes.set_title(f"{title}: ({batch}, length, {d_model}, {num_heads}), float32", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _case(row: dict) -> str:
    batch, length, d_model, num_heads = row["shape"]
    if row["case"] == CROSS:
        return f"({batch}, {length}, {d_model}, {num_heads})\n{row['key_len']} keys"
    return f"({batch}, {length},\n{d_model}, {num_heads})"

"""Tables and figure of what skipping heads saves, from the file of ``python -m suites execution``."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tabulate import tabulate

from reports.figures import look

Row = Mapping[str, Any]
PARTS = ("grid", "encoders", "peers", "memory")

LINES = {
    "auto / full": ("#D55E00", "o", "auto, over full attention by the same means"),
    "plain / plain full": ("#0072B2", "s", "without the kernel, over PyTorch's full attention"),
    "mixture of heads / plain full": ("#CC79A7", "x", "masked mixture of heads, over PyTorch's full attention"),
}
"""Colour, marker and label of each curve of the figure."""


def load_execution(path: Path) -> dict[str, Any]:
    """Reads the file.

    Raises:
        ValueError: if it is not one of these.
        OSError: if it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(isinstance(found[part], list) for part in PARTS):
            raise ValueError("it lacks a part")
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no file of python -m suites execution: {error}") from error
    return found


def tables(found: Mapping[str, Any]) -> str:
    """Everything as Markdown: a summary, then a row per measurement, and notes."""
    sections: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
        "One layer": ("grid", lambda rows: _table(rows, _GRID)),
        "Whole encoders": ("encoders", lambda rows: _table(rows, _ENCODER)),
        "Full attention and its peers": ("peers", _peer_table),
        "Memory at the peak, beside the input and the layer": ("memory", lambda rows: _table(rows, _MEMORY)),
    }
    parts = ["## Summary", _summary(found)]
    for title, (part, table) in sections.items():
        if found[part]:
            parts += [f"## {title}", table(found[part])]
    notes = "\n".join(f"- {note}" for note in _notes(found, found["circumstance"]))
    return "\n\n".join([*parts, notes]) + "\n"


def _summary(found: Mapping[str, Any]) -> str:
    grid = found["grid"]
    batches = [row for row in grid if row["shape"]["batch"] >= 8]
    few = [row for row in batches if row["s"] <= 0.5]
    dense = [row for row in grid if row["s"] == 1]
    wide = [row for row in found["encoders"] if row["width"] >= 256]
    lines = [
        _line("auto / bound, all cells", grid, "auto / bound"),
        _line("auto / bound, B >= 8", batches, "auto / bound"),
        _line("auto / plain bound, all cells", grid, "auto / plain bound"),
        _line("auto / plain bound, B >= 8", batches, "auto / plain bound"),
        _line("plain / plain bound, all cells", grid, "plain / plain bound"),
        _line("plain / plain bound, B >= 8", batches, "plain / plain bound"),
        _line("auto / full, s = 1", dense, "auto / full"),
        ("auto / full minus k / H, B >= 8, s <= 0.5", *_extremes(few, _beyond_share)),
        ("auto / plain full minus k / H, B >= 8, s <= 0.5", *_extremes(few, _beyond_share_of_plain)),
        _line("full / plain full, all cells", grid, "full / plain full"),
        ("noise: full again / full, most", *_extremes(grid, _ratio("full again / full"))),
        ("noise: full again / full, least", *_extremes(grid, _ratio("full again / full"), min)),
        _line("mixture of heads / plain full, B >= 8, s <= 0.5", few, "mixture of heads / plain full"),
        ("plain / the faster of gathered and masked", *_extremes(grid, _regret)),
        ("encoders: saved / allowed, D >= 256", *_extremes(wide, _ratio("saved / allowed"), min)),
        ("the same, with choosing", *_extremes(wide, _ratio("saved / allowed, with choosing"), min)),
        ("memory: auto / full", *_extremes(found["memory"], _ratio("auto / full"))),
        ("memory: auto / plain full", *_extremes(found["memory"], _ratio("auto / plain full"))),
        ("memory: plain / plain full", *_extremes(found["memory"], _ratio("plain / plain full"))),
    ]
    lines = [line for line in lines if line[-1] != "--"]
    return tabulate(lines, ["what", "geometric mean", "worst", "where"], tablefmt="pipe", disable_numparse=True)


def _ratio(key: str) -> Callable[[Row], float | None]:
    return lambda row: row["ratios"][key]


def _beyond_share(row: Row) -> float:
    return float(row["ratios"]["auto / full"] - row["share"])


def _beyond_share_of_plain(row: Row) -> float:
    return float(row["ratios"]["auto / plain full"] - row["share"])


def _regret(row: Row) -> float:
    return float(row["seconds"]["plain"] / min(row["seconds"]["gathered"], row["seconds"]["masked"]))


def _line(title: str, rows: Sequence[Row], key: str | None = None) -> tuple[str, ...]:
    return (title, *_extremes(rows, _ratio(key or title)))


def _extremes(
    rows: Sequence[Row], value: Callable[[Row], float | None], worst: Callable[..., Any] = max
) -> tuple[str, str, str]:
    values = [(number, row) for row in rows if (number := value(row)) is not None]
    if not values:
        return "--", "--", "--"
    numbers = [number for number, _ in values]
    of_ratios = value not in (_beyond_share, _beyond_share_of_plain)
    mean = f"{geometric_mean(numbers):.3f}" if of_ratios else "--"
    number, row = worst(values, key=lambda pair: pair[0])
    return mean, f"{number:.3f}", _where(row)


def _where(row: Row) -> str:
    if "shape" in row:
        return f"{_shape(row)}, s = {row['s']}, {row['kind']}"
    return f"{row['task']}, D = {row['width']}, s = {row['s']}"


def _shape(row: Row) -> str:
    return "({batch}, {tokens}, {width}, {num_heads})".format(**row["shape"])


_GRID = {
    "B, T, D, H": _shape,
    "s": lambda row: f"{row['s']}",
    "sets": lambda row: row["kind"],
    "mean k / H": lambda row: f"{row['share']:.3f}",
    "full, ms": lambda row: _milliseconds(row, "full"),
    "auto, ms": lambda row: _milliseconds(row, "auto"),
    "auto / full": lambda row: _two(row, "auto / full"),
    "auto / bound": lambda row: _two(row, "auto / bound"),
    "auto / PyTorch full": lambda row: _two(row, "auto / plain full"),
    "auto / PyTorch bound": lambda row: _two(row, "auto / plain bound"),
    "no kernel / PyTorch full": lambda row: _two(row, "plain / plain full"),
    "no kernel / PyTorch bound": lambda row: _two(row, "plain / plain bound"),
    "masked MoH / PyTorch full": lambda row: _two(row, "mixture of heads / plain full"),
    "MHA / PyTorch full": lambda row: _two(row, "MultiheadAttention / plain full"),
}
_ENCODER = {
    "task": lambda row: row["task"],
    "D": lambda row: f"{row['width']}",
    "s": lambda row: f"{row['s']}",
    "full, ms": lambda row: _milliseconds(row, "full"),
    "attention's share of the time, %": lambda row: f"{100 * row['attention_share']:.1f}",
    "time / full": lambda row: f"{row['ratios']['given / full']:.3f}",
    "noise": lambda row: f"{row['ratios']['full again / full']:.3f}",
    "saved, %": lambda row: f"{100 * (1 - row['ratios']['given / full']):.1f}",
    "allowed by Amdahl, %": lambda row: f"{100 * row['attention_share'] * (1 - row['share']):.1f}",
    "saved / allowed": lambda row: _two(row, "saved / allowed"),
    "with choosing": lambda row: _two(row, "saved / allowed, with choosing"),
}
_MEMORY = {
    "B, T, D, H": _shape,
    "s": lambda row: f"{row['s']}",
    "auto, MB": lambda row: _megabytes(row, "auto"),
    "full, MB": lambda row: _megabytes(row, "full"),
    "no kernel, MB": lambda row: _megabytes(row, "plain"),
    "PyTorch full, MB": lambda row: _megabytes(row, "plain full"),
    "auto / full": lambda row: _two(row, "auto / full"),
    "auto / PyTorch full": lambda row: _two(row, "auto / plain full"),
    "no kernel / PyTorch full": lambda row: _two(row, "plain / plain full"),
}


def _milliseconds(row: Row, name: str) -> str:
    return f"{1000 * row['seconds'][name]:.1f}"


def _megabytes(row: Row, name: str) -> str:
    value = row["bytes"][name]
    return "--" if value is None else f"{value / 1e6:.1f}"


def _two(row: Row, key: str) -> str:
    value = row["ratios"][key]
    return "--" if value is None else f"{value:.2f}"


def _table(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    cells = [[value(row) for value in columns.values()] for row in rows]
    return tabulate(cells, list(columns), tablefmt="pipe", disable_numparse=True)


def _peer_table(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        for key, value in row["ratios"].items():
            kind, _, ratio = key.partition(": ")
            ms = 1000 * row["seconds"][f"{kind}: ours"]
            cells.append([row["task"], f"{row['width']}", kind, f"{ms:.1f}", ratio, f"{value:.3f}"])
    return tabulate(cells, ["task", "D", "what", "ours, ms", "over", "ratio"], tablefmt="pipe", disable_numparse=True)


def _notes(found: Mapping[str, Any], circumstance: Mapping[str, Any]) -> list[str]:
    noise = [row["ratios"]["full again / full"] for row in (*found["grid"], *found["encoders"])]
    of_noise = f"{min(noise):.3f} to {max(noise):.3f}, median {median(noise):.3f}" if noise else "not measured"
    return [
        f"Each ratio is the median over interleaved rounds in one process (at most {found['rounds']} per call and "
        f"batch). Full attention over itself: {of_noise}.",
        "auto: what the library runs, by the kernel where there is one. Full, bound: full attention, and a layer that "
        "physically has the mean number of heads (interpolated between the two whole numbers), by the same means.",
        "No kernel: in PyTorch's operators alone. PyTorch full, PyTorch bound: the same two in PyTorch's operators, "
        "with its fused attention. Masked MoH: router, all heads, weights. MHA: torch.nn.MultiheadAttention.",
        "Whole encoders: 4 layers, three batches of 32 real test inputs (short, middling, long), timed together; s H "
        "random heads per input, chosen beforehand; with choosing, random-k's own gates run too. Attention's share of "
        "the time is what the same encoder without attention saves.",
        f"Kernel: {circumstance['kernel']}. Hardware: {circumstance['cpu_model']}, {circumstance['cores']} cores, "
        f"{circumstance['threads']} threads, device {circumstance['device']}. torch "
        f"{circumstance['versions']['torch']}. Sources {circumstance['code_fingerprint'][:12]}.",
    ]


def break_even(found: Mapping[str, Any]) -> Figure:
    """Time over full attention against the share of heads that run, one facet per shape: below 1 skipping pays."""
    facets = [(shape, list(rows)) for shape, rows in groupby(found["grid"], key=_shape)]
    assert facets
    columns = min(3, len(facets))
    lines = -(-len(facets) // columns)
    with look():
        figure = Figure(figsize=(3.0 * columns, 2.4 * lines + 0.8), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
        for (shape, rows), facet in zip(facets, axes, strict=False):
            _draw(rows, facet)
            facet.set_title(f"B, T, D, H = {shape}", fontsize="small")
        for unused in axes[len(facets) :]:
            unused.remove()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
        for facet in axes[max(0, len(facets) - columns) : len(facets)]:
            facet.set_xlabel("share of heads, mean k / H")
        for facet in axes[: len(facets) : columns]:
            facet.set_ylabel("time / full attention")
    return figure


def _draw(rows: Sequence[Row], facet: Axes) -> None:
    for key, (colour, marker, label) in LINES.items():
        points = sorted((row["share"], row["ratios"][key]) for row in rows)
        shares, ratios = zip(*points, strict=True)
        facet.plot(shares, ratios, color=colour, marker=marker, markersize=3, linestyle="none", label=label)
    facet.plot([0, 1], [0, 1], color="black", linewidth=0.8, label="as much time as heads")
    facet.axhline(1, color="grey", linewidth=0.8, linestyle="--", label="break-even")
    facet.set_ylim(0, 1.5)

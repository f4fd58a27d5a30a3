"""Figures of what the tables hold. Nothing is computed here: a point and its bar are cells of the table."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.tables.cells import Number, Table, Text

STYLES = {
    "full-mha": ("#000000", "o"),
    "no-attention": ("#999999", "X"),
    "layer-drop": ("#999999", "P"),
    "random-k": ("#E69F00", "s"),
    "random-subset": ("#E69F00", "v"),
    "static-pruning": ("#0072B2", "^"),
    "l0-gates": ("#009E73", "^"),
    "subset-pruning": ("#56B4E9", "s"),
    "budgeted-gates": ("#B8A200", "d"),
    "mixture-of-heads": ("#CC79A7", "D"),
    "budgetformer": ("#D55E00", "D"),
    "budgetformer-st": ("#D55E00", "h"),
}
"""Colour and marker by method, the same in every figure. The colours are Okabe and Ito's, told apart by everyone."""

_SPARE_COLOURS = ("#009E73", "#CC79A7", "#56B4E9", "#B8A200")
_SPARE_MARKERS = ("v", "P", "<", "h", ">", "d", "p", "8")

_FACET_INCHES = (3.4, 2.7)
"""One facet fills a column of a two-column page."""

# No date: the same records give the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def style_of(method: str) -> tuple[str, str]:
    """Colour and marker of a method, by its label alone: whoever else is in the figure changes nothing.

    A known method with other parameters keeps its colour.
    """
    name = method.partition("(")[0].strip()
    if method in STYLES:
        return STYLES[method]
    colour = STYLES[name][0] if name in STYLES else _SPARE_COLOURS[zlib.crc32(name.encode()) % len(_SPARE_COLOURS)]
    markers = [marker for marker in _SPARE_MARKERS if (colour, marker) not in STYLES.values()]
    return colour, markers[zlib.crc32(method.encode()) % len(markers)]


def has_points(table: Table) -> bool:
    """Whether a table has anything to draw."""
    return bool(_points(table))


def accuracy_versus_cost(tables: Sequence[Table]) -> Figure:
    """Accuracy over executed FLOPs, one facet per table; bars are the standard deviation over seeds.

    Args:
        tables: of which at least one ``has_points``; the others get no facet.
    """
    drawn = [table for table in tables if has_points(table)]
    assert drawn
    num_columns = min(2, len(drawn))
    num_rows = -(-len(drawn) // num_columns)
    width, height = _FACET_INCHES
    with look():
        figure = Figure(figsize=(width * num_columns, height * num_rows), layout="constrained")
        axes = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
        handles: dict[str, Any] = {}
        for table, facet in zip(drawn, axes, strict=False):
            handles |= _draw(table, facet)
        for unused in axes[len(drawn) :]:
            unused.remove()
        # What a label takes, about: its letters, and its marker.
        inches = 0.5 + 0.065 * max(map(len, handles))
        num_legend_columns = min(max(1, int(width * num_columns / inches)), num_columns + 1)
        num_legend_rows = -(-len(handles) // num_legend_columns)
        figure.set_figwidth(max(width * num_columns, inches))
        figure.set_figheight(height * num_rows + 0.5 + 0.15 * max(0, num_legend_rows - 2))
        legend = figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=num_legend_columns,
            frameon=False,
            title=_bars(drawn),
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes a figure as PDF, PNG and SVG; returns the files."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in _METADATA]
    with look():
        for path, metadata in zip(paths, _METADATA.values(), strict=True):
            figure.savefig(path, dpi=300, metadata=metadata)
    return paths


@contextmanager
def look() -> Iterator[None]:
    """The settings of every figure."""
    settings: dict[Any, Any] = {
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that every machine has it
        "pdf.fonttype": 42,  # letters stay letters; some publishers refuse the default
        "grid.linewidth": 0.5,
        "axes.linewidth": 0.8,
        "svg.hashsalt": "budgetformer",
    }
    with sns.axes_style("whitegrid"), sns.plotting_context("paper", font_scale=0.9), mpl.rc_context(settings):
        yield


def _points(table: Table) -> dict[str, tuple[Number, Number]]:
    """Cost and accuracy by method, of those that have both."""
    columns = (table.cells(key) for key in ("method", "executed_mflops", "accuracy_percent"))
    return {
        method.text: (cost, accuracy)
        for method, cost, accuracy in zip(*columns, strict=True)
        if isinstance(method, Text) and isinstance(cost, Number) and isinstance(accuracy, Number)
    }


def _draw(table: Table, axes: Axes) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for method, (cost, accuracy) in _points(table).items():
        colour, marker = style_of(method)
        handles[method] = axes.errorbar(
            [cost.mean],
            [accuracy.mean],
            yerr=None if accuracy.spread is None else [accuracy.spread],
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=5,
            capsize=2,
            elinewidth=1,
        )
    axes.margins(0.12)
    axes.set_title(table.title, parse_math=False, wrap=True)
    axes.set_xlabel("executed MFLOPs per input")
    axes.set_ylabel("accuracy, %")
    sns.despine(ax=axes)
    return handles


def _bars(tables: Sequence[Table]) -> str:
    """What the bars are."""
    counts = sorted({accuracy.n for table in tables for _, accuracy in _points(table).values()})
    if counts == [1]:
        return "one seed: no bars"
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"bars: standard deviation over {seeds} seeds"

"""The break-even figure: time over full attention against the share of heads that run."""

from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.figures import look
from reports.measured import ratio_of, shape_of, sizes
from suites.records.record import Record

LINES = {
    ("auto", "full"): ("#D55E00", "o", "auto, over full attention by the same means"),
    ("plain", "plain full"): ("#0072B2", "s", "without the kernel, over PyTorch's full attention"),
    ("mixture of heads", "plain full"): ("#CC79A7", "x", "masked mixture of heads, over PyTorch's full attention"),
}
"""Colour, marker and label of each curve."""


def break_even(records: Sequence[Record]) -> Figure:
    """One facet per shape and dtype: below 1 skipping pays.

    Args:
        records: times of layers, at least one.
    """

    def facet_of(record: Record) -> str:
        return f"B, T, D, H = {shape_of(record)}, {record.question['dtype']}"

    facets = [(title, list(rows)) for title, rows in groupby(sizes(records), key=facet_of)]
    assert facets
    columns = min(3, len(facets))
    lines = -(-len(facets) // columns)
    with look():
        figure = Figure(figsize=(3.0 * columns, 2.4 * lines + 0.8), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
        for (title, rows), facet in zip(facets, axes, strict=False):
            _draw(rows, facet)
            facet.set_title(title, fontsize="small")
        for unused in axes[len(facets) :]:
            unused.remove()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
        for facet in axes[max(0, len(facets) - columns) : len(facets)]:
            facet.set_xlabel("share of heads, mean k / H")
        for facet in axes[: len(facets) : columns]:
            facet.set_ylabel("time / full attention")
    return figure


def _draw(records: Sequence[Record], facet: Axes) -> None:
    for (ours, theirs), (colour, marker, label) in LINES.items():
        found = [(record.timed.metrics["active_share"], ratio_of(record, ours, theirs)) for record in records]
        points = sorted((share, ratio) for share, ratio in found if ratio is not None)
        facet.plot(
            [share for share, _ in points],
            [ratio for _, ratio in points],
            color=colour,
            marker=marker,
            markersize=3,
            linestyle="none",
            label=label,
        )
    facet.plot([0, 1], [0, 1], color="black", linewidth=0.8, label="as much time as heads")
    facet.axhline(1, color="grey", linewidth=0.8, linestyle="--", label="break-even")
    facet.set_ylim(0, 1.5)

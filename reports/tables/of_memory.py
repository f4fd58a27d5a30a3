"""Memory of one layer at its peak, a row per measurement."""

from collections.abc import Sequence
from functools import partial

from reports.measured import number_column, shape_of, sizes, text_column
from reports.tables.cells import Table, make_table
from suites.records.record import Record


def peak_of(record: Record, call: str) -> float | None:
    """Bytes of a call; None where nothing tells."""
    peaks = record.timed.metrics["peak_bytes"]
    return None if peaks is None else float(peaks[record.question["calls"].index(call)])


def peak_ratio(record: Record, ours: str, theirs: str) -> float | None:
    """One call's peak over another's; None where either is not known, or the other needs nothing."""
    mine, other = peak_of(record, ours), peak_of(record, theirs)
    return None if mine is None or not other else mine / other


def _megabytes(record: Record, call: str) -> float | None:
    peak = peak_of(record, call)
    return None if peak is None else peak / 1e6


_CALLS = (("auto", "auto"), ("full", "full"), ("plain", "no kernel"), ("plain full", "PyTorch full"))
_RATIOS = (("auto", "full"), ("auto", "plain full"), ("plain", "plain full"))
_HEADERS = dict(_CALLS)

SPEC = (
    text_column("shape", "B, T, D, H", shape_of),
    text_column("s", "s", lambda record: record.question["cell"]["s"]),
    *(
        number_column(f"{call.replace(' ', '_')}_mb", f"{header}, MB", partial(_megabytes, call=call), 1)
        for call, header in _CALLS
    ),
    *(
        number_column(
            f"{ours}_over_{theirs}".replace(" ", "_"),
            f"{_HEADERS[ours]} / {_HEADERS[theirs]}",
            partial(peak_ratio, ours=ours, theirs=theirs),
            2,
        )
        for ours, theirs in _RATIOS
    ),
)
NOTES = ("Above the input and the layer, in a process of its own; the kernel's copy of the weights is not in it.",)


def memory_table(records: Sequence[Record]) -> Table:
    """A row per shape and budget."""
    return make_table("Memory at the peak, beside the input and the layer", SPEC, sizes(records), NOTES)

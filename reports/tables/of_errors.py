"""Errors of the executions against ``masked`` in float32, a row per measurement."""

from collections.abc import Sequence
from functools import partial

from reports.measured import CELL_COLUMNS, number_column, sizes
from reports.tables.cells import Table, make_table
from suites.records.record import Record


def _error(record: Record, execution: str) -> float | None:
    """In millionths of the largest output."""
    executions = record.question["executions"]
    errors = record.timed.metrics["output_errors"]
    return 1e6 * errors[executions.index(execution)] if execution in executions else None


SPEC = (
    *CELL_COLUMNS,
    *(
        number_column(f"{name}_error_ppm", f"error of {name}, millionths", partial(_error, execution=name), 2)
        for name in ("auto", "gathered", "masked")
    ),
)


def error_table(outputs: Sequence[Record], gradients: Sequence[Record]) -> Table:
    """A row per point of the grid; the gradients' errors are a note."""
    notes = ["Largest difference from masked in float32 over the largest output."]
    worst = [max(map(max, record.timed.metrics["gradient_errors"])) for record in gradients]
    if worst:
        notes.append(f"Largest error of a gradient: {max(worst):.1e}.")
    return make_table("Errors of the executions", SPEC, sizes(outputs), notes)

"""Does it train? A row per method."""

import statistics
from collections.abc import Sequence

from reports.measured import number_column, text_column
from reports.tables.cells import Table, make_table
from suites.records.record import Record

SPEC = (
    text_column("method", "method", lambda record: record.question["method"]),
    number_column("loss_before", "loss before", lambda record: record.learned.history[0]["loss"], 4),
    number_column("loss_after", "loss after", lambda record: record.learned.history[-1]["loss"], 4),
    number_column("accuracy_percent", "test accuracy, %", lambda record: 100 * record.learned.metrics["accuracy"], 2),
    number_column("step_ms", "ms per step", lambda record: 1000 * statistics.median(record.timed.timings["step"]), 2),
    text_column("ran", "auto ran", lambda record: ", ".join(record.learned.ran)),
)
NOTES = ("On the task lookup, by its recipe. Loss: mean over the training split, of the model that would be run.",)


def training_table(records: Sequence[Record]) -> Table:
    """A row per method."""
    return make_table("Training", SPEC, records, NOTES)

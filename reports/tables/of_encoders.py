"""Whole encoders: what skipping heads saves of what Amdahl's law allows, a row per measurement and budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.measured import number, ratio_of, seconds_of
from reports.tables.cells import Column, Spec, Table, Text, make_table
from suites.records.record import Record


@dataclass(frozen=True)
class Saving:
    """One budget of one measurement.

    Attributes:
        record: the measurement.
        s: the fraction of heads asked for.
        share: k / H.
    """

    record: Record
    s: float
    share: float

    @property
    def attention_share(self) -> float:
        """Attention's share of the time: what the same encoder without attention saves."""
        return 1 - self._over_full("no attention")

    @property
    def allowed(self) -> float:
        """What can be saved at the most, as a share of the time."""
        return self.attention_share * (1 - self.share)

    def over_full(self, heads: str) -> float:
        """Time over full attention, with the heads ``given`` beforehand or chosen inside (``heads``)."""
        return self._over_full(f"{heads} {self.s}")

    def saved_of_allowed(self, heads: str) -> float | None:
        """The share of the possible saving that was had; None where nothing could be saved."""
        return (1 - self.over_full(heads)) / self.allowed if self.allowed > 0 else None

    def _over_full(self, call: str) -> float:
        value = ratio_of(self.record, call, "full")
        assert value is not None
        return value


SPEC: Spec[Saving] = (
    (Column("task", "task", ("all",), "text"), lambda row: Text(row.record.question["task"]["name"])),
    (Column("width", "D", ("all",), "text"), lambda row: Text(str(row.record.question["width"]))),
    (Column("s", "s", ("all",), "text"), lambda row: Text(str(row.s))),
    (Column("full_ms", "full, ms", ("all",)), lambda row: number(1000 * (seconds_of(row.record, "full") or 0), 1)),
    (
        Column("attention_share_percent", "attention's share of the time, %", ("all",)),
        lambda row: number(100 * row.attention_share, 1),
    ),
    (Column("given_over_full", "time / full", ("all",)), lambda row: number(row.over_full("given"), 3)),
    (Column("noise", "noise", ("all",)), lambda row: number(ratio_of(row.record, "full again", "full"), 3)),
    (Column("saved_percent", "saved, %", ("all",)), lambda row: number(100 * (1 - row.over_full("given")), 1)),
    (Column("allowed_percent", "allowed by Amdahl, %", ("all",)), lambda row: number(100 * row.allowed, 1)),
    (Column("saved_of_allowed", "saved / allowed", ("all",)), lambda row: number(row.saved_of_allowed("given"), 2)),
    (
        Column("saved_of_allowed_with_choosing", "with choosing", ("all",)),
        lambda row: number(row.saved_of_allowed("heads"), 2),
    ),
)
NOTES = (
    "Three batches of 32 real test inputs (short, middling, long), timed together; s H random heads per input, chosen "
    "beforehand; with choosing, random-k's own gates run too. Attention's share of the time is what the same encoder "
    "without attention saves; -- where that leaves nothing to save. Noise: full attention over itself.",
)


def savings(records: Sequence[Record]) -> list[Saving]:
    """The rows, by task, width and budget."""
    ordered = sorted(records, key=lambda record: (record.question["task"]["name"], record.question["width"]))
    return [
        Saving(record, s, share)
        for record in ordered
        for s, share in zip(record.question["budgets"], record.question["shares"], strict=True)
    ]


def encoder_table(records: Sequence[Record]) -> Table:
    """A row per task, width and budget."""
    return make_table("Whole encoders", SPEC, savings(records), NOTES)

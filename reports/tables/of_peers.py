"""Full attention against other libraries' encoders, a row per pair."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.measured import number, ratio_of, seconds_of
from reports.tables.cells import Column, Spec, Table, Text, make_table
from suites.records.record import Record


@dataclass(frozen=True)
class Pair:
    """Ours and a peer, in one kind of work."""

    record: Record
    work: str
    peer: str


SPEC: Spec[Pair] = (
    (Column("task", "task", ("all",), "text"), lambda row: Text(row.record.question["task"]["name"])),
    (Column("width", "D", ("all",), "text"), lambda row: Text(str(row.record.question["width"]))),
    (Column("work", "what", ("all",), "text"), lambda row: Text(row.work)),
    (
        Column("ours_ms", "ours, ms", ("all",)),
        lambda row: number(1000 * (seconds_of(row.record, f"{row.work}: ours") or 0), 1),
    ),
    (Column("peer", "peer", ("all",), "text"), lambda row: Text(row.peer)),
    (
        Column("ours_over_peer", "ours / peer", ("all",)),
        lambda row: number(ratio_of(row.record, f"{row.work}: ours", f"{row.work}: {row.peer}"), 3),
    ),
)
NOTES = ("Encoders of the same sizes on the same batches, in turns; training is a step: forward, backward, AdamW.",)


def peer_table(records: Sequence[Record]) -> Table:
    """A row per kind of work and peer."""
    ordered = sorted(records, key=lambda record: (record.question["task"]["name"], record.question["width"]))
    rows = [
        Pair(record, work, peer)
        for record in ordered
        for work, peer in (name.split(": ") for name in record.timed.timings)
        if peer != "ours"
    ]
    return make_table("Full attention and its peers", SPEC, rows, NOTES)

"""Records of measurements of the layer itself, and what all their tables share."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.stats import paired_ratio
from reports.tables.cells import Cell, Column, Missing, Number, Text
from suites.records.record import Record
from suites.records.store import Store

Value = Callable[[Record], float | None]


@dataclass(frozen=True)
class Measured:
    """What was measured in one way: on one machine, with one torch, kernel and number of threads.

    Attributes:
        title: what tells it from the others of its folder; empty if it is the only one.
        records: what was measured.
    """

    title: str
    records: list[Record]

    def of_kind(self, kind: str) -> list[Record]:
        """The finished records of a kind."""
        return [record for record in self.records if record.kind == kind]


def load_measured(results: Path) -> tuple[list[Measured], list[str]]:
    """Reads a folder; measurements that were made in different ways stay apart.

    Returns:
        What was measured, and a line for each measurement that failed.

    Raises:
        ValueError: if nothing was measured.
    """
    contents = Store(results, create=False).load()
    records = [record for record in contents.records.values() if record.kind != "trial"]
    failed = [
        f"{record.kind} {record.id} failed: {record.error_line}." for record in records if record.status == "failed"
    ]
    ways: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "done":
            ways.setdefault(json.dumps(way_of(record), sort_keys=True), []).append(record)
    if not ways:
        reason = f"{len(failed)} failed, such as {failed[0].rstrip('.')}" if failed else "there are none"
        make = f"make some: python -m suites execution --results {results}"
        raise ValueError(f"no measurements in {results}: {reason}; {make}")
    titles = [json.loads(way) for way in ways]
    differing = [key for key in titles[0] if len({json.dumps(title[key]) for title in titles}) > 1]
    return [
        Measured(", ".join(f"{key} {title[key]}" for key in differing), found)
        for title, found in zip(titles, ways.values(), strict=True)
    ], failed


def way_of(record: Record) -> dict[str, Any]:
    """What two measurements must share to stand in one table; dtypes are a column there."""
    shown = ("dtype", "batch_sizes")
    return {"device": record.question["device"]} | {
        key: value for key, value in record.timing_key.items() if key not in shown
    }


def ratio_of(record: Record, ours: str, theirs: str) -> float | None:
    """The median over rounds of one call's time over another's; None where either was not timed."""
    samples = record.timed.timings
    return paired_ratio(samples[ours], samples[theirs]) if {ours, theirs} <= samples.keys() else None


def seconds_of(record: Record, call: str) -> float | None:
    """The median time of a call; None where it was not timed."""
    samples = record.timed.timings.get(call)
    return statistics.median(samples) if samples else None


def shape_of(record: Record) -> str:
    """A layer's sizes, as in ``(64, 128, 256, 8)``: batch, tokens, width, heads."""
    return f"({', '.join(map(str, record.question['cell']['shape']))})"


def text_column(key: str, header: str, value: Callable[[Record], Any]) -> tuple[Column, Callable[[Record], Cell]]:
    """A column of words."""
    return Column(key, header, ("all",), "text"), lambda record: Text(str(value(record)))


def number_column(key: str, header: str, value: Value, digits: int) -> tuple[Column, Callable[[Record], Cell]]:
    """A column of numbers; -- where there is none."""
    return Column(key, header, ("all",)), lambda record: number(value(record), digits)


def ratio_column(header: str, ours: str, theirs: str, digits: int = 2) -> tuple[Column, Callable[[Record], Cell]]:
    """A column of ratios of times."""
    key = f"{ours}_over_{theirs}".replace(" ", "_")
    return number_column(key, header, lambda record: ratio_of(record, ours, theirs), digits)


def milliseconds_column(header: str, call: str) -> tuple[Column, Callable[[Record], Cell]]:
    """A column of median times."""

    def value(record: Record) -> float | None:
        seconds = seconds_of(record, call)
        return None if seconds is None else 1000 * seconds

    return number_column(f"{call.replace(' ', '_')}_ms", header, value, 1)


def number(value: float | None, digits: int) -> Cell:
    """A cell with one value, which has no spread."""
    return Missing() if value is None else Number(value, None, 1, digits)


def sizes(records: Sequence[Record]) -> list[Record]:
    """The records of layers in the order of tables: large work last, then by share, dtype and kind of sets."""

    def rank(record: Record) -> tuple[Any, ...]:
        cell = record.question["cell"]
        return (cell["shape"], record.question.get("dtype", ""), cell["s"], cell["kind"])

    return sorted(records, key=rank)


CELL_COLUMNS = (
    text_column("shape", "B, T, D, H", shape_of),
    text_column("dtype", "dtype", lambda record: record.question["dtype"]),
    text_column("s", "s", lambda record: record.question["cell"]["s"]),
    text_column("sets", "sets", lambda record: record.question["cell"]["kind"]),
    number_column("active_share", "mean k / H", lambda record: record.timed.metrics["active_share"], 3),
    text_column("ran", "auto ran", lambda record: record.timed.measuring["ran"]),
)
"""Which point of the grid a row is of, and what ran there."""

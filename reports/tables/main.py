"""The main table of each task."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports.load import Frame, setting_of
from reports.stats import Summary, best, paired_difference, summarise
from reports.tables.cells import Cell, Column, Difference, Failed, Missing, Number, Table, Text
from reports.tables.columns import (
    ACCURACY,
    CHOICE,
    COST,
    DIFFERENCE,
    ENERGY_SOURCE,
    EXECUTION,
    METHOD,
    REFERENCE,
    SEEDS,
    TIME,
    Measure,
)
from reports.tables.notes import notes
from reports.tables.provenance import energy_source, is_estimated
from suites.records.metrics import Direction


def main_tables(frame: Frame, *, allow_mixed: bool = False) -> list[Table]:
    """The tables of a results folder, by task.

    Args:
        frame: the records.
        allow_mixed: show times and emissions of several machines or protocols side by side, in a table that says so.

    Raises:
        ValueError: if a table would mix them and may not.
    """
    rows = frame.rows.assign(flops_cut=1 - frame.rows["macs_executed"] / frame.rows["macs_full"])
    settings = [part.sort_values("seed") for _, part in rows.groupby(["task", "setting"])]
    titles = _unambiguous(
        [part["task"].iloc[0] for part in settings], [setting_of(part["question"].iloc[0]) for part in settings]
    )
    bad = [f"Passed over {path.name}: {reason}." for path, reason in frame.bad.items()]
    return [_table(title, part, bad, allow_mixed) for title, part in zip(titles, settings, strict=True)]


def _table(title: str, rows: pd.DataFrame, bad: list[str], allow_mixed: bool) -> Table:
    groups = sorted((part for _, part in rows.groupby("group")), key=_rank)
    names = _unambiguous(
        [part["method"].iloc[0] for part in groups],
        [{key: part["question"].iloc[0].get(key) for key in ("method", "protocol")} for part in groups],
    )
    finished = [part[part["status"] == "done"] for part in groups]
    mixture = _mixture(names, finished)
    if mixture and not allow_mixed:
        raise ValueError(
            f"{title}: one table would compare times and emissions of several machines, versions or protocols: "
            f"{mixture}; keep them in folders of their own, or have them marked with --allow-mixed"
        )
    num_seeds = rows["seed"].nunique()
    if_mixed: tuple[str, ...] = ("time",) if mixture else ()

    def numbers(measure: Measure) -> list[Cell]:
        # The best of a mixed column would be the best machine.
        return _numbers(measure, finished, "none" if mixture else measure.direction)

    columns: list[tuple[Column, list[Cell]]] = [
        (METHOD, [Text(name) for name in names]),
        (SEEDS, [Text(_seeds(len(part), num_seeds)) for part in finished]),
        (EXECUTION, [_joined(part["execution"]) for part in finished]),
        (ACCURACY.column, _or_failed(numbers(ACCURACY), finished)),
        (DIFFERENCE, _differences(finished)),
        *((measure.column, numbers(measure)) for measure in (*COST, *CHOICE, *TIME)),
        (ENERGY_SOURCE, [_joined(part["energy"].map(energy_source)) for part in finished]),
        (
            Column("machine", "machine", if_mixed, "text"),
            [_joined(part["machine_id"].replace("", "unknown")) for part in finished],
        ),
        (Column("protocol", "protocol", if_mixed, "text"), [_joined(part["protocol"]) for part in finished]),
    ]
    return Table(
        title,
        tuple(column for column, _ in columns),
        tuple(zip(*(cells for _, cells in columns), strict=True)),
        (*notes(names, groups, mixture), *bad),
    )


def _rank(group: pd.DataFrame) -> tuple[bool, int, str, str, str]:
    """The reference, then by the place that a method's file says, then by name."""
    first = group.iloc[0]
    return (first["method_name"] != REFERENCE, first["place"], first["method"], first["protocol"], first["group"])


def _unambiguous(names: Sequence[str], details: Sequence[dict[str, Any]]) -> list[str]:
    """The names; where several are equal, with the details in which they differ."""
    flat = [_flat(detail) for detail in details]
    twins = [[other for same, other in zip(names, flat, strict=True) if same == name] for name in names]
    differing = [
        [f"{key}={value}" for key, value in detail.items() if any(other.get(key) != value for other in others)]
        for detail, others in zip(flat, twins, strict=True)
    ]
    return [f"{name} ({', '.join(parts)})" if parts else name for name, parts in zip(names, differing, strict=True)]


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def _mixture(names: Sequence[str], finished: Sequence[pd.DataFrame]) -> str:
    """Who was timed where and how, if not all in one way under one protocol; else empty."""
    where: dict[str, list[str]] = {}
    for name, part in zip(names, finished, strict=True):
        for way, trials in part.groupby(["timing", "protocol"]):
            timing, protocol = map(str, way)
            seeds = ", ".join(map(str, trials["seed"]))
            found = json.dumps(json.loads(timing) | {"protocol": protocol})
            where.setdefault(found, []).append(f"{name} seed {seeds}")
    num_unknown = sum(int((part["machine_id"] == "").sum()) for part in finished)
    # An unknown machine may be another one than the next unknown machine.
    if len(where) < 2 and num_unknown < 2:
        return ""
    ways = {text: json.loads(text) for text in where}
    differing = [key for key in next(iter(ways.values())) if len({json.dumps(way[key]) for way in ways.values()}) > 1]
    told = dict.fromkeys(("machine", *differing, "protocol"))
    return "; ".join(
        f"{', '.join(f'{key} {_plain(way[key])}' for key in told)}: {', '.join(where[text])}"
        for text, way in sorted(ways.items())
    )


def _plain(value: object) -> str:
    return "unknown" if value is None else str(value)


def _seeds(num_finished: int, num_seeds: int) -> str:
    return str(num_finished) if num_finished == num_seeds else f"{num_finished} of {num_seeds}"


def _joined(values: pd.Series) -> Cell:
    distinct = sorted({str(value) for value in values if value})
    return Text(", ".join(distinct)) if distinct else Missing()


def _or_failed(cells: list[Cell], finished: Sequence[pd.DataFrame]) -> list[Cell]:
    return [cell if len(part) else Failed() for cell, part in zip(cells, finished, strict=True)]


def _numbers(measure: Measure, finished: Sequence[pd.DataFrame], direction: Direction) -> list[Cell]:
    """A column's cells, one per group of trials that differ in the seed alone."""
    summaries = [_summary(part[measure.metric] * measure.factor) for part in finished]
    means = [None if summary is None else summary.mean for summary in summaries]
    digits = _decimals(means) if measure.digits is None else measure.digits
    flags = best(
        [mean if _competes(measure, part) else None for mean, part in zip(means, finished, strict=True)],
        direction,
        digits,
    )
    return [
        Missing()
        if summary is None
        else Number(
            summary.mean,
            summary.std,
            summary.n,
            digits,
            best=flag,
            estimated=bool(measure.energy)
            and is_estimated(part["energy"][part[measure.metric].notna()], measure.energy),
            partial=summary.n < len(part),
        )
        for summary, flag, part in zip(summaries, flags, finished, strict=True)
    ]


def _competes(measure: Measure, part: pd.DataFrame) -> bool:
    """A masked run computes all heads: it cannot be the fastest for having fewer."""
    return not (measure.metric.startswith("latency") and part["execution"].str.contains("masked").any())


def _summary(values: pd.Series) -> Summary | None:
    known = values.dropna()
    return summarise(known.to_numpy(dtype=float)) if len(known) else None


def _decimals(values: Sequence[float | None], significant: int = 3) -> int:
    """Decimals that show so many significant digits of the smallest value."""
    sizes = [abs(value) for value in values if value]
    return max(0, significant - 1 - math.floor(math.log10(min(sizes)))) if sizes else 0


def _differences(finished: Sequence[pd.DataFrame]) -> list[Cell]:
    """Accuracy against the reference of the same protocol, in points."""
    return [_difference(part, _reference(part, finished)) for part in finished]


def _reference(part: pd.DataFrame, finished: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Full attention under the same protocol: the only one, or of several the one at its defaults."""
    rivals = [
        other
        for other in finished
        if len(part)
        and len(other)
        and other["method_name"].iloc[0] == REFERENCE
        and other["protocol"].iloc[0] == part["protocol"].iloc[0]
    ]
    if len(rivals) > 1:
        rivals = [other for other in rivals if other["method"].iloc[0] == REFERENCE]
    return rivals[0] if len(rivals) == 1 else None


def _difference(part: pd.DataFrame, reference: pd.DataFrame | None) -> Cell:
    if reference is None:
        return Missing()
    if reference is part:
        return Text("reference")
    ours, theirs = (100 * each.set_index("seed")["accuracy"].dropna() for each in (part, reference))
    seeds = ours.index.intersection(theirs.index)
    if not len(seeds):
        return Missing()
    difference = paired_difference(ours.loc[seeds].to_numpy(dtype=float), theirs.loc[seeds].to_numpy(dtype=float))
    return Difference(difference.mean, difference.interval, difference.n, digits=2, partial=difference.n < len(part))

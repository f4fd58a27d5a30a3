"""From a results folder to one data frame, a row per trial."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from suites.records.metrics import METRICS
from suites.records.record import Record, question_id
from suites.records.store import Store

UNKNOWN_PLACE = 1000
"""The row of a method whose record does not say it: after those that do."""

SCALARS = tuple(key for key, metric in METRICS.items() if not metric.axes)


@dataclass(frozen=True)
class Frame:
    """What a results folder says.

    Attributes:
        rows: one row per record. ``id``, ``task``, ``method`` (its label), ``method_name``, ``place`` (its row),
            ``seed``, ``status``, ``error``, ``execution``, ``protocol``, ``timing`` (what
            must be equal for times to be compared, as JSON), ``machine_id`` (empty if unknown),
            ``num_layers``, ``num_heads``; every key of ``METRICS``, NaN where a scalar does not exist; ``question``,
            ``energy``, ``circumstance`` (of the measuring) and ``trained_in`` as they were stored; ``setting``, equal
            for trials that belong in one table, and ``group``, equal for trials that differ in nothing but the seed.
        bad: what is wrong, by file that is no record.
    """

    rows: pd.DataFrame
    bad: dict[Path, str]


def load(results: Path) -> Frame:
    """Reads all records of a folder.

    Raises:
        ValueError: if there are none.
    """
    contents = Store(results, create=False).load()
    trials = [record for record in contents.records.values() if record.kind == "trial"]
    if not trials:
        found = f"{len(contents.bad)} unreadable files and no records" if contents.bad else "no records"
        raise ValueError(f"{found} in {results}; run a suite first: python -m suites run quick --results {results}")
    rows = pd.DataFrame([_row(record) for record in trials])
    scalars = list(SCALARS)
    rows[scalars] = rows[scalars].astype(float)
    return Frame(rows, contents.bad)


def setting_of(question: dict[str, Any]) -> dict[str, Any]:
    """What the trials of one table share: the question without method, seed and protocol."""
    return {key: value for key, value in question.items() if key not in ("method", "seed", "protocol")}


def _row(record: Record) -> dict[str, Any]:
    question = record.question
    encoder = question.get("encoder", {})
    return {
        "id": record.id,
        "task": record.task,
        "method": record.method,
        "method_name": str(question["method"].get("name", record.method)),
        "place": int(question["method"].get("place", UNKNOWN_PLACE)),
        "seed": record.seed,
        "status": record.status,
        "error": record.error_line,
        "execution": record.learned.execution,
        "protocol": str(question.get("protocol", "")),
        "timing": json.dumps(record.timing_key),
        "machine_id": str(record.measured_in.get("machine_id") or ""),
        "num_layers": encoder.get("num_layers"),
        "num_heads": encoder.get("num_heads"),
        **dict.fromkeys(METRICS) | record.metrics,
        "question": question,
        "energy": record.timed.energy,
        "circumstance": record.measured_in,
        "trained_in": record.circumstance,
        "setting": json.dumps(setting_of(question), sort_keys=True),
        # As ids are made: neither a label, nor the order or the look of parameters, tells one method from another.
        "group": question_id(question | {"seed": None}),
    }

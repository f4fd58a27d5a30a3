"""Where trials run: here, one after the other. Methods and training know nothing of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from suites.environment import code_fingerprint, describe
from suites.plan import Rerun, Trial, is_stale, todo
from suites.progress import Progress, duration
from suites.record import Record, question_id
from suites.store import Store
from suites.trial import run_trial


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    Attributes:
        ran: trials that were run now, failed ones included.
        reused: trials whose record was there already.
        stale: of those, records that other source code made.
        failed: titles and errors of the trials that have a failed record.
    """

    ran: int
    reused: int
    stale: int
    failed: list[str]


def run(trials: Sequence[Trial], store: Store, rerun: Rerun = "failed") -> Outcome:
    """Runs what is missing of some trials and stores a record of each, failed ones included.

    A trial that raises does not end the sweep.

    Args:
        trials: what is wanted.
        store: the results folder.
        rerun: which records to make anew (``suites.plan.todo``).
    """
    fingerprint = code_fingerprint()
    known = store.load().records
    ids = [question_id(trial.question()) for trial in trials]
    missing = [trial for trial, key in zip(trials, ids, strict=True) if todo(key, known, rerun, fingerprint)]
    with Progress(len(missing)) as progress:
        for trial in missing:
            record = _run_one(trial, store, progress)
            known[record.id] = record
    wanted = [(trial, known[key]) for trial, key in zip(trials, ids, strict=True)]
    return Outcome(
        ran=len(missing),
        reused=len(trials) - len(missing),
        stale=sum(is_stale(record, fingerprint) for _, record in wanted),
        failed=[f"{trial.title}: {record.error}" for trial, record in wanted if record.status == "failed"],
    )


def _run_one(trial: Trial, store: Store, progress: Progress) -> Record:
    start_time = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    progress.begin(trial.title)
    try:
        record, arrays = run_trial(trial, start_time, progress.step)
    except Exception as error:
        record, arrays = (
            Record(
                question=trial.question(),
                status="failed",
                error=f"{type(error).__name__}: {error}",
                circumstance=describe(trial.device) | {"start_time": start_time},
            ),
            {},
        )
    store.save(record, arrays)
    accuracy = f"accuracy {record.metrics['accuracy']:.4f}" if record.status == "done" else f"failed, {record.error}"
    progress.end(trial.title, f"{accuracy}, {duration(time.monotonic() - start)}")
    return record

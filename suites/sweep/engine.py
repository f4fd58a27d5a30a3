"""Where trials run: in this process, or in several. Methods and training know nothing of it."""

import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from ctypes import Array, c_double
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from suites.measuring.circumstance import allowed_cores, describe
from suites.measuring.energy import WORLD, Electricity, idle_power
from suites.measuring.sharing import Share
from suites.records.record import Record, question_id
from suites.records.store import Arrays, Store
from suites.sweep.planning import Rerun, Trial, is_stale, todo
from suites.sweep.progress import Progress, duration
from suites.sweep.trial import run_trial

POLL_S = 0.5

IDLE_S = 3.0
"""How long the machine is watched while it idles, once per run; its power is what energy above idle is counted from."""


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


@dataclass(frozen=True)
class Attempt:
    """What became of one trial, and how long it took."""

    record: Record
    seconds: float


Work = Callable[[Trial, Share], Attempt]


def run(
    trials: Sequence[Trial],
    store: Store,
    rerun: Rerun = "failed",
    jobs: int = 1,
    electricity: Electricity = WORLD,
) -> Outcome:
    """Runs what is missing of some trials and stores a record of each, failed ones included.

    A trial that raises does not end the sweep. The number of workers changes no number: a trial trains on the threads
    of its recipe, and has the machine alone while it is timed.

    Args:
        trials: what is wanted.
        store: the results folder.
        rerun: which records to make anew (``suites.sweep.planning.todo``).
        jobs: trials at a time.
        electricity: what the emissions of the trials that run now are computed with.

    Raises:
        BrokenExecutor: if a worker was killed.
    """
    # Once, before anything runs: this is the code that will run, whatever is edited meanwhile.
    with Share():  # it may compile the kernel
        circumstance = describe(trials[0].device)
    known = store.load().records
    ids = [question_id(trial.question()) for trial in trials]
    missing = [trial for trial, key in zip(trials, ids, strict=True) if todo(key, known, rerun, circumstance)]
    if any(not trial.tuning for trial in missing):
        with Share().alone():
            circumstance |= {"idle_power": idle_power(IDLE_S, trials[0].device)}
    with Progress(len(missing)) as progress:
        jobs = min(jobs, len(missing))
        run_all = _in_workers if jobs > 1 else _here
        for trial, attempt in run_all(missing, jobs, progress, partial(_attempt, store, circumstance, electricity)):
            known[attempt.record.id] = attempt.record
            progress.end(trial.title, f"{_result(attempt.record)}, {duration(attempt.seconds)}")
    wanted = [(trial, known[key]) for trial, key in zip(trials, ids, strict=True)]
    return Outcome(
        ran=len(missing),
        reused=len(trials) - len(missing),
        stale=sum(is_stale(record, circumstance) for _, record in wanted),
        failed=[f"{trial.title}: {record.error}" for trial, record in wanted if record.status == "failed"],
    )


def default_jobs(trials: Sequence[Trial]) -> int:
    """As many trials at a time as the allowed cores have threads for; one on a GPU, and where nothing can be locked."""
    if sys.platform == "win32" or any(trial.device != "cpu" for trial in trials):
        return 1
    threads = max(trial.task.recipe.threads for trial in trials)
    return max(1, int(allowed_cores()) // threads)


def _attempt(
    store: Store, circumstance: dict[str, Any], electricity: Electricity, trial: Trial, share: Share
) -> Attempt:
    """Runs one trial and stores its record; whatever it raises becomes a failed record."""
    start = time.monotonic()
    ours = circumstance | {"start_time": datetime.now(UTC).isoformat(timespec="seconds")}
    arrays: Arrays = {}
    try:
        record, arrays = run_trial(trial, ours, electricity, share)
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}"
        ours |= {"traceback": "".join(traceback.format_exception(error))}
        record = Record(question=trial.question(), status="failed", error=message, circumstance=ours)
    store.save(record, arrays)
    return Attempt(record, time.monotonic() - start)


def _result(record: Record) -> str:
    if record.status == "failed":
        return f"failed, {record.error}"
    key = "accuracy" if "accuracy" in record.metrics else "validation_accuracy"  # all that a tuning trial has
    return f"{key.replace('_', ' ')} {record.metrics[key]:.4f}"


def _here(trials: Sequence[Trial], _: int, progress: Progress, work: Work) -> Iterator[tuple[Trial, Attempt]]:
    for trial in trials:
        with Share(lambda share: progress.show([share])) as share:
            attempt = work(trial, share)
        yield trial, attempt


def _in_workers(trials: Sequence[Trial], jobs: int, progress: Progress, work: Work) -> Iterator[tuple[Trial, Attempt]]:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(trials), lock=False)  # a worker that is killed must not keep it from the others
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(shares,))
    try:
        running = {pool.submit(_in_worker, work, trial, index): trial for index, trial in enumerate(trials)}
        while running:
            for future in wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
            progress.show(shares[:])
        pool.shutdown()
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _start_worker(shares: "Array[c_double]") -> None:
    global _shares  # noqa: PLW0603 - a pool has no other way to hand a worker what it shares
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; the parent says what happened
    _shares = shares


def _in_worker(work: Work, trial: Trial, index: int) -> Attempt:
    with Share(lambda share: _shares.__setitem__(index, share)) as share:
        attempt = work(trial, share)
        share.report(0)
        return attempt


_shares: "Array[c_double]"

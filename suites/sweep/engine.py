"""Where trials run: in this process, or in several. Methods and training know nothing of it."""

import math
import multiprocessing
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

from suites.definitions.sources import fingerprint
from suites.measuring.circumstance import allowed_cores, describe
from suites.measuring.energy import idle_power
from suites.measuring.sharing import Share
from suites.records.record import Record, question_id
from suites.records.store import Entry, Store
from suites.sweep.planning import Job, Rerun, circumstance_of, is_stale, todo
from suites.sweep.progress import Cell, Progress, duration
from suites.sweep.stopping import follow_parent, kill_children
from suites.sweep.trial import Trial

POLL_S = 0.5

IDLE_S = 3.0
"""How long the machine is watched while it idles, once per run; its power is what energy above idle is counted from."""


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    Attributes:
        ran: trials that were run now, failed ones included.
        reused: trials whose record was there already.
        stale: of all that is wanted, records that other source code made.
        failed: titles and errors of the trials that have a failed record.
        left: trials that were not begun for want of time.
        taken: trials that another command was running in the same folder.
    """

    ran: int
    reused: int
    stale: int
    failed: list[str]
    left: int = 0
    taken: int = 0


@dataclass(frozen=True)
class Attempt:
    """What became of one job, and how long it took; no record if somebody else is at it."""

    record: Record | None
    seconds: float


Do = Callable[[Any, dict[str, Any], Share], Entry]
"""Does a job, told the circumstance and its share of the machine; a function of a module, for workers to find."""

Work = Callable[[Job, Share], Attempt]


def say_accuracy(record: Record) -> str:
    """That of a trial, or all that a tuning trial has."""
    key = "accuracy" if "accuracy" in record.metrics else "validation_accuracy"
    return f"{key.replace('_', ' ')} {record.metrics[key]:.4f}"


def run(
    jobs: Sequence[Job],
    do: Do,
    store: Store,
    *,
    device: str = "cpu",
    rerun: Rerun = "failed",
    workers: int = 1,
    watch_idle: bool = True,
    prepare: Callable[[Sequence[Any]], None] = lambda jobs: None,
    limit_s: float = math.inf,
    say: Callable[[Record], str] = say_accuracy,
) -> Outcome:
    """Does what is missing of some jobs and stores a record of each, failed ones included.

    A job that raises does not end the sweep, and a failure never takes the place of a result. The number of workers
    changes no number: a trial trains on the threads of its recipe, and has the machine alone while it is timed.

    Args:
        jobs: what is wanted.
        do: how.
        store: the results folder.
        device: where, as torch names it.
        rerun: which records to make anew (``suites.sweep.planning.todo``).
        workers: jobs at a time.
        watch_idle: first measure the power of the idle machine, which energy above idle is counted from.
        prepare: told the jobs that will be done, before anything is: what it raises leaves everything as it was.
        limit_s: no job is begun after that many seconds.
        say: what progress tells of a record.

    Raises:
        BrokenExecutor: if a worker was killed.
    """
    # Once, before anything runs: this is the code that will run, whatever is edited meanwhile.
    with Share():  # it may compile the kernel
        circumstance = describe(device)
    began = time.time()
    known = store.load().records
    ids = [question_id(job.question()) for job in jobs]
    missing = [job for job in jobs if todo(job, known, rerun, circumstance)]
    prepare(missing)
    store.make()
    if missing and watch_idle:
        with Share().alone():
            circumstance |= {"idle_power": idle_power(IDLE_S, device)}
    codes = {job.modules: fingerprint(job.modules) for job in missing}
    failed = {}
    ran = taken = 0
    with Progress(len(missing)) as progress:
        workers = min(workers, len(missing))
        run_all = _in_workers if workers > 1 else _here
        deadline = time.monotonic() + limit_s
        work = partial(_attempt, do, store, circumstance, codes=codes, began=began)
        for job, attempt in run_all(missing, workers, progress, work):
            if attempt.record is None:
                taken += 1
                progress.end(job.title, "is being run by another command")
                continue
            record = attempt.record
            if record.status == "failed":
                failed[record.id] = record
            if record.status == "done" or not _is_done(known.get(record.id)):
                known[record.id] = record
            result = f"failed, {record.error_line}" if record.status == "failed" else say(record)
            progress.end(job.title, f"{result}, {duration(attempt.seconds)}", _cell(record))
            ran += 1
            if time.monotonic() > deadline:
                break
    wanted = [(job, known[key]) for job, key in zip(jobs, ids, strict=True) if key in known]
    return Outcome(
        ran=ran,
        reused=len(jobs) - len(missing),
        stale=sum(is_stale(record, circumstance_of(job, circumstance)) for job, record in wanted),
        failed=[
            f"{job.title}: {(failed.get(record.id) or record).error_line}"
            for job, record in wanted
            if record.id in failed or record.status == "failed"
        ],
        left=len(missing) - ran - taken,
        taken=taken,
    )


def _cell(record: Record) -> Cell | None:
    """Its place in the table that grows, if it has an accuracy there."""
    known = record.kind == "trial" and "accuracy" in record.metrics
    return Cell(record.method, record.task, record.metrics["accuracy"]) if known else None


def default_workers(trials: Sequence[Trial]) -> int:
    """As many trials at a time as the allowed cores have threads for; one on a GPU, and where nothing can be locked."""
    if sys.platform == "win32" or any(trial.device != "cpu" for trial in trials):
        return 1
    threads = max(trial.task.recipe.threads for trial in trials)
    return max(1, int(allowed_cores()) // threads)


def _attempt(
    do: Do,
    store: Store,
    circumstance: dict[str, Any],
    job: Job,
    share: Share,
    *,
    codes: dict[tuple[str, ...], str],
    began: float,
) -> Attempt:
    """Does one job and stores its record; whatever it raises becomes a failed record."""
    start = time.monotonic()
    ours = circumstance | {
        "code_fingerprint": codes[job.modules],
        "start_time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    trial_id = question_id(job.question())
    with store.claim(trial_id) as is_ours:
        if not is_ours:
            return Attempt(None, 0.0)
        old = store.find(trial_id)
        if old is not None and store.path(trial_id).stat().st_mtime > began:
            return Attempt(old, 0.0)  # another command has made it since this one looked
        try:
            record, arrays, weights = do(job, ours, share)
        except (Exception, SystemExit) as error:
            message = f"{type(error).__name__}: {error}"
            ours |= {"traceback": "".join(traceback.format_exception(error))}
            record = Record(question=job.question(), status="failed", error=message, circumstance=ours)
            if not _is_done(old):
                store.save(record)
        else:
            record = store.save(record, arrays, weights)
    return Attempt(record, time.monotonic() - start)


def _is_done(record: Record | None) -> bool:
    return record is not None and record.status == "done"


def _here(jobs: Sequence[Job], _: int, progress: Progress, work: Work) -> Iterator[tuple[Job, Attempt]]:
    for job in jobs:
        with Share(lambda share: progress.show([share])) as share:
            attempt = work(job, share)
        yield job, attempt


def _in_workers(jobs: Sequence[Job], workers: int, progress: Progress, work: Work) -> Iterator[tuple[Job, Attempt]]:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(jobs), lock=False)  # a worker that is killed must not keep it from the others
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(shares,))
    try:
        running = {pool.submit(_in_worker, work, job, index): job for index, job in enumerate(jobs)}
        while running:
            for future in wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
            progress.show(shares[:])
        pool.shutdown()
    except BaseException:
        kill_children()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _start_worker(shares: "Array[c_double]") -> None:
    global _shares  # noqa: PLW0603 - a pool has no other way to hand a worker what it shares
    follow_parent()
    _shares = shares


def _in_worker(work: Work, job: Job, index: int) -> Attempt:
    with Share(lambda share: _shares.__setitem__(index, share)) as share:
        attempt = work(job, share)
        share.report(0)
        return attempt


_shares: "Array[c_double]"

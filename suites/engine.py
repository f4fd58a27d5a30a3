"""Where trials run: in this process, or in several. Methods and training know nothing of it."""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime

from suites.environment import allowed_cores, code_fingerprint, describe
from suites.plan import Rerun, Trial, is_stale, todo
from suites.progress import Progress, duration
from suites.record import Record, question_id
from suites.sharing import Floor, Share, Solo
from suites.store import Arrays, Store
from suites.trial import run_trial

POLL_S = 0.5


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
    arrays: Arrays
    seconds: float


def run(trials: Sequence[Trial], store: Store, rerun: Rerun = "failed", jobs: int = 1) -> Outcome:
    """Runs what is missing of some trials and stores a record of each, failed ones included.

    A trial that raises does not end the sweep. The number of workers changes no number: a trial trains on the threads
    of its recipe, and has the machine alone while it is timed.

    Args:
        trials: what is wanted.
        store: the results folder.
        rerun: which records to make anew (``suites.plan.todo``).
        jobs: trials at a time.

    Raises:
        BrokenExecutor: if a worker was killed.
    """
    fingerprint = code_fingerprint()
    known = store.load().records
    ids = [question_id(trial.question()) for trial in trials]
    missing = [trial for trial, key in zip(trials, ids, strict=True) if todo(key, known, rerun, fingerprint)]
    with Progress(len(missing)) as progress:
        jobs = min(jobs, len(missing))
        attempts = _in_workers(missing, jobs, progress) if jobs > 1 else _here(missing, progress)
        for trial, attempt in attempts:
            record = attempt.record
            store.save(record, attempt.arrays)
            known[record.id] = record
            progress.end(trial.title, f"{_result(record)}, {duration(attempt.seconds)}")
    wanted = [(trial, known[key]) for trial, key in zip(trials, ids, strict=True)]
    return Outcome(
        ran=len(missing),
        reused=len(trials) - len(missing),
        stale=sum(is_stale(record, fingerprint) for _, record in wanted),
        failed=[f"{trial.title}: {record.error}" for trial, record in wanted if record.status == "failed"],
    )


def default_jobs(trials: Sequence[Trial]) -> int:
    """As many trials at a time as the allowed cores have threads for; one on a GPU."""
    threads = max(trial.task.recipe.threads for trial in trials)
    return 1 if any(trial.device != "cpu" for trial in trials) else max(1, int(allowed_cores()) // threads)


def attempt(trial: Trial, share: Solo) -> Attempt:
    """Runs one trial; whatever it raises becomes a failed record."""
    start_time = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    arrays: Arrays = {}
    try:
        record, arrays = run_trial(trial, start_time, share)
    except Exception as error:
        record = Record(
            question=trial.question(),
            status="failed",
            error=f"{type(error).__name__}: {error}",
            circumstance=describe(trial.device) | {"start_time": start_time},
        )
    return Attempt(record, arrays, time.monotonic() - start)


def _result(record: Record) -> str:
    return f"accuracy {record.metrics['accuracy']:.4f}" if record.status == "done" else f"failed, {record.error}"


def _here(trials: Sequence[Trial], progress: Progress) -> Iterator[tuple[Trial, Attempt]]:
    for trial in trials:
        yield trial, attempt(trial, Solo(lambda share: progress.show([share])))


def _in_workers(trials: Sequence[Trial], jobs: int, progress: Progress) -> Iterator[tuple[Trial, Attempt]]:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    floor = Floor(jobs, context)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(floor,))
    try:
        running = {pool.submit(_attempt_in_worker, trial): trial for trial in trials}
        while running:
            for future in wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
            progress.show(floor.progress[:])
        pool.shutdown()
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _start_worker(floor: Floor) -> None:
    global _share  # noqa: PLW0603 - a pool has no other way to hand a worker its own state
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; the parent says what happened
    with floor.next_worker.get_lock():
        worker = floor.next_worker.value
        floor.next_worker.value += 1
    _share = Share(floor, worker)


def _attempt_in_worker(trial: Trial) -> Attempt:
    with _share as share:
        result = attempt(trial, share)
        share.report(0)
        return result


_share: Share

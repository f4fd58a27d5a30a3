import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from suites.measuring import sharing
from suites.measuring.sharing import Share

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")

SPAWN = multiprocessing.get_context("spawn")
Times = list[tuple[float, float]]
"""Starts and ends, by the clock that all processes have in common."""


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def share_of(folder: Path) -> Share:
    return Share(folder=folder)


@contextmanager
def another(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(timeout=30)
    assert not thread.is_alive()


def measure_once(folder: Path, measured: threading.Event) -> None:
    with share_of(folder).alone():
        measured.set()


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[float] = []
    share = Share(seen.append, tmp_path)
    share.step(1, 4)
    with share, share.alone():
        share.step(4, 4)
    assert seen == [0.25, 1.0]


def test_who_measures_has_the_machine_alone(tmp_path: Path) -> None:
    computing = [0, 0, 0]
    disturbed: list[int] = []
    measured: list[int] = []

    def work(worker: int) -> None:
        for _ in range(3):
            with share_of(tmp_path) as share:
                for step in range(20):
                    computing[worker] = 1
                    time.sleep(0.001)
                    computing[worker] = 0
                    share.step(step, 20)
                with share.alone():
                    for _ in range(5):
                        time.sleep(0.002)
                        disturbed.append(sum(computing))
                    measured.append(worker)

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(timeout=30)
    assert sorted(measured) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(disturbed) == {0}


def test_those_who_train_do_so_together(tmp_path: Path) -> None:
    with share_of(tmp_path) as one, share_of(tmp_path) as other:
        one.step(1, 2)
        other.step(1, 2)


def test_who_has_measured_computes_again(tmp_path: Path) -> None:
    measured = threading.Event()
    with share_of(tmp_path) as share:
        with share.alone():
            pass
        with another(lambda: measure_once(tmp_path, measured)):
            assert not measured.wait(0.05)
            while not measured.is_set():
                share.step(1, 1)


def test_who_only_measures_is_off_the_floor_after_it(tmp_path: Path) -> None:
    share, other = share_of(tmp_path), share_of(tmp_path)
    for each in (share, other, share):
        with each.alone():
            pass


def test_an_error_while_measuring_lets_the_others_go_on(tmp_path: Path) -> None:
    with share_of(tmp_path) as share, pytest.raises(RuntimeError), share.alone():
        raise RuntimeError("broken")
    with share_of(tmp_path) as other, other.alone():
        pass


def test_who_waits_to_measure_can_be_stopped(tmp_path: Path) -> None:
    stopped, has_turn = threading.Event(), share_of(tmp_path)
    main = threading.get_ident()

    def stop_the_other() -> None:
        with has_turn.alone():  # once the other waits for its turn
            signal.pthread_kill(main, signal.SIGINT)
            assert stopped.wait(30)

    with ExitStack() as stack:
        share = stack.enter_context(share_of(tmp_path))
        stack.enter_context(another(stop_the_other))
        eventually(share_of(tmp_path)._turn.is_taken)
        with pytest.raises(KeyboardInterrupt), share.alone():
            pass
        stopped.set()
    with share_of(tmp_path).alone():
        pass


def trains(folder: Path) -> Times:
    times = []
    with share_of(folder) as share:
        while not (folder / "enough").exists():
            start = time.monotonic()
            time.sleep(0.002)
            times.append((start, time.monotonic()))
            share.step(1, 1)
            (folder / "trains").touch()
    return times


def measures(folder: Path) -> Times:
    eventually((folder / "trains").exists)
    share, times = share_of(folder), []
    for _ in range(5):
        time.sleep(0.005)
        with share.alone():
            start = time.monotonic()
            time.sleep(0.02)
            times.append((start, time.monotonic()))
    return times


def test_processes_that_know_nothing_of_each_other_never_overlap_a_measurement(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=SPAWN) as pool:
        training = [pool.submit(trains, tmp_path) for _ in range(2)]
        measuring = [pool.submit(measures, tmp_path) for _ in range(2)]
        measured = [each for future in measuring for each in future.result(timeout=60)]
        (tmp_path / "enough").touch()
        steps = [each for future in training for each in future.result(timeout=60)]
    assert len(measured) == 10
    assert min(steps)[0] < min(measured)[0]  # they did meet
    for start, end in measured:
        assert sum(begun < end and start < ended for begun, ended in measured) == 1  # itself
        assert not any(begun < end and start < ended for begun, ended in steps)


def measures_for_ever(folder: Path) -> None:
    with share_of(folder) as share, share.alone():
        (folder / "measures").touch()
        time.sleep(600)


def test_who_is_killed_while_it_measures_blocks_nobody(tmp_path: Path) -> None:
    process = SPAWN.Process(target=measures_for_ever, args=(tmp_path,))
    process.start()
    try:
        eventually((tmp_path / "measures").exists)
        measured = threading.Event()
        with another(lambda: measure_once(tmp_path, measured)):
            assert not measured.wait(0.05)
            process.kill()
            assert measured.wait(30)
    finally:
        process.kill()
        process.join()


def test_a_file_that_is_left_over_blocks_nobody_and_is_open_to_all_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        share_of(tmp_path)
    finally:
        os.umask(before)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["budgetformer-bench.floor", "budgetformer-bench.turn"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666}
    with share_of(tmp_path) as share, share.alone():
        pass


@pytest.mark.parametrize("name", ["turn", "floor"])
def test_who_waits_long_to_measure_says_for_what(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with share_of(tmp_path).alone():
        pass
    assert not said.getvalue()
    monkeypatch.setattr(sharing, "PATIENCE_S", 0.05)
    with ExitStack() as stack:
        other = share_of(tmp_path)
        with other.alone() if name == "turn" else other:
            stack.enter_context(another(lambda: measure_once(tmp_path, threading.Event())))
            eventually(lambda: said.getvalue().endswith("\n"))
    (line,) = said.getvalue().splitlines()
    assert line.startswith("suites: waiting to measure alone; ")
    assert line.endswith(f"(lock file {tmp_path / f'budgetformer-bench.{name}'})")

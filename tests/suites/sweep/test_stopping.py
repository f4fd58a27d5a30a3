"""A run that is told to end: at once, with nobody left behind, and with what is done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from suites.definitions.sources import ROOT
from suites.records.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform == "win32", reason="needs signals")]
ASK = ("run", "smoke", "--task", "tweet-sentiment", "--method", "full-mha", "--method", "random-k", "--seeds", "4")


def start(results: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "suites", *ASK, "--results", str(results), *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_work(process: subprocess.Popen[str], results: Path, records: int) -> list[psutil.Process]:
    """Until that many records are there and something is computing again."""
    deadline = time.monotonic() + 120
    while len(list(results.glob("trials/*.json"))) < records:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    return psutil.Process(process.pid).children(recursive=True)


def left(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run a second later; one that nobody has buried yet is dead all the same."""
    alive = psutil.wait_procs(processes, timeout=1)[1]
    return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_within_two_seconds(number: int, code: int, jobs: str, tmp_path: Path) -> None:
    process = start(tmp_path, "--jobs", jobs)
    children = wait_for_work(process, tmp_path, records=1)
    told = time.monotonic()
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - told < 2
    assert process.returncode == code
    assert said.splitlines()[-1] == "suites: stopped; the same command goes on with what is missing"
    assert "Traceback" not in said
    assert left(children) == []
    contents = Store(tmp_path, create=False).load()
    assert contents.records
    assert not contents.bad
    assert all(Store(tmp_path, create=False).arrays(record) for record in contents.records.values())


def test_ctrl_c_in_a_terminal_reaches_all_and_is_told_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--jobs", "2")
    children = wait_for_work(process, tmp_path, records=0)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("suites: stopped")
    assert "worker was killed" not in said
    assert left(children) == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a child of its parent's end")
def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    process = start(tmp_path, "--jobs", "2")
    children = wait_for_work(process, tmp_path, records=1)
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) == 2
    process.kill()
    process.communicate()
    assert left(workers) == []


def test_two_commands_on_one_folder_share_the_work(tmp_path: Path) -> None:
    commands = [start(tmp_path, "--jobs", "1") for _ in range(2)]
    ended = [command.communicate(timeout=280)[1] for command in commands]
    assert [command.returncode for command in commands] == [0, 0]
    ran = [line for said in ended for line in said.splitlines() if "accuracy 0." in line and ", 0 s" not in line]
    assert len(ran) == 8  # each trial once
    assert len(Store(tmp_path).load().records) == 8
    assert not list(tmp_path.glob("trials/.*"))

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from suites.measuring import company
from suites.measuring.company import MAX_SHARE_OF_OTHERS, Company, Reading, processes_of_others, read, share_of_others
from tests.suites.measuring.nvml import FORMS, OWN_PID, fail, host

CUDA = torch.device("cuda")
START = Reading(at_s=100.0, busy_s=5000.0, own_s=20.0)


def later(seconds: float, busy_s: float, own_s: float) -> Reading:
    return Reading(START.at_s + seconds, START.busy_s + busy_s, START.own_s + own_s)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (later(10, busy_s=10, own_s=10), 0.0),  # one thread of ours, and nobody else
        (later(10, busy_s=40, own_s=40), 0.0),
        (later(10, busy_s=20, own_s=10), 0.25),
        (later(10, busy_s=40, own_s=0), 1.0),
        (later(10, busy_s=9.98, own_s=10), 0.0),  # the two clocks step at different moments
        (later(10, busy_s=41, own_s=0), 1.0),
        (later(0, busy_s=1, own_s=0), None),
        (None, None),
    ],
)
def test_the_share_of_others_is_what_was_spent_and_not_by_us(after: Reading | None, share: float | None) -> None:
    assert share_of_others(START, after, num_cpus=4) == share
    assert share_of_others(None, after, num_cpus=4) is None


def test_all_but_waiting_is_busy_and_a_guest_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"user": 1.0, "nice": 2.0, "system": 4.0, "idle": 1e6, "iowait": 1e5, "irq": 8.0, "softirq": 16.0}
    times |= {"steal": 32.0, "guest": 0.5, "guest_nice": 0.25}
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: times))
    reading = read()
    assert reading is not None
    assert reading.busy_s == 63.0


def burn(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


def test_our_own_work_and_that_of_children_that_ended_is_ours() -> None:
    before = read()
    burn(0.2)
    between = read()
    child = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", child], check=True)
    after = read()
    assert before is not None
    assert between is not None
    assert after is not None
    step_s = 0.02  # of the kernel's clocks
    assert between.own_s - before.own_s > 0.2 - step_s
    assert after.own_s - between.own_s > 0.3 - step_s
    assert between.busy_s - before.busy_s > 0.2 - 2 * step_s


def test_a_process_that_spins_is_seen() -> None:
    child = "print('spinning', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            with Company("cpu") as found:
                time.sleep(0.5)
        finally:
            other.kill()
    num_cpus = os.cpu_count() or 1
    assert found.found["cpu_share_of_others"] > 0.5 / num_cpus
    assert found.found["shared"] or num_cpus > 4
    assert found.found["gpu_processes_of_others"] is None


def found_by(
    monkeypatch: pytest.MonkeyPatch, readings: list[Reading | None], processes: tuple[int | None, int | None]
) -> dict[str, Any]:
    looks: Iterator[Reading | None] = iter(readings)
    counts = iter(processes)
    monkeypatch.setattr(company, "read", lambda: next(looks))
    monkeypatch.setattr(company, "processes_of_others", lambda device: next(counts))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with Company("cuda") as watched:
        pass
    assert json.loads(json.dumps(watched.found)) == watched.found
    return watched.found


@pytest.mark.parametrize(
    ("busy_s", "processes", "count", "shared"),
    [
        (10, (None, None), None, False),
        (10, (0, 0), 0, False),
        (10, (2, 0), 2, True),
        (10, (0, 1), 1, True),
        (10, (None, 1), 1, True),
        (10 + 0.99 * 40 * MAX_SHARE_OF_OTHERS, (0, 0), 0, False),
        (10 + 1.01 * 40 * MAX_SHARE_OF_OTHERS, (0, 0), 0, True),
    ],
)
def test_what_counts_as_company(
    busy_s: float,
    processes: tuple[int | None, int | None],
    count: int | None,
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_by(monkeypatch, [START, later(10, busy_s, own_s=10)], processes)
    assert found["cpu_share_of_others"] == pytest.approx((busy_s - 10) / 40)
    assert found["gpu_processes_of_others"] == count
    assert found["shared"] is shared


def test_what_cannot_be_told_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"cpu_share_of_others": None, "gpu_processes_of_others": None, "shared": False}
    assert found_by(monkeypatch, [START, None], (None, None)) == nothing
    assert Company("cpu").found == nothing
    monkeypatch.undo()

    def unreadable() -> None:
        raise OSError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", unreadable)
    with Company("cpu") as watched:
        pass
    assert watched.found == nothing


def test_an_error_in_the_block_passes() -> None:
    watched = Company("cpu")
    with pytest.raises(KeyError), watched:
        raise KeyError("work")
    assert watched.found["cpu_share_of_others"] is not None


def test_a_cpu_has_no_processes_on_a_card() -> None:
    assert processes_of_others(torch.device("cpu")) is None


@pytest.mark.parametrize("visible", FORMS)
def test_only_the_card_that_is_used_counts(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {index: [900 + index, 950 + index] for index in range(8)}
    host(monkeypatch, visible, others | {1: [901, OWN_PID]}, reserved_bytes=1)
    assert processes_of_others(CUDA) == 1
    host(monkeypatch, visible, others | {1: [OWN_PID]}, reserved_bytes=1)
    assert processes_of_others(CUDA) == 0


def test_a_device_is_counted_among_the_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "5,2", {5: [1], 2: [1, 2]})
    assert processes_of_others(torch.device("cuda:1")) == 2
    assert processes_of_others(torch.device("cuda:0")) == 1
    assert processes_of_others(torch.device("cuda:2")) is None


HOSTS_PID = OWN_PID + 1


@pytest.mark.parametrize(
    ("pids", "reserved_bytes", "count"),
    [
        ([HOSTS_PID], 1, 0),  # in a container: it must be us
        ([HOSTS_PID, HOSTS_PID + 1], 1, 1),
        ([HOSTS_PID], 0, 1),  # we are not there yet
        ([OWN_PID, OWN_PID, HOSTS_PID], 1, 1),  # one process may be listed twice
        ([], 0, 0),
        ([], 1, None),  # we are there, and the container hides it
    ],
)
def test_numbers_of_another_namespace(
    pids: list[int], reserved_bytes: int, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(monkeypatch, "1", {1: pids}, reserved_bytes)
    assert processes_of_others(CUDA) == count


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses"])
def test_a_library_that_fails_tells_nothing(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "1", {1: [OWN_PID]}, 0, **{function: fail})
    assert processes_of_others(CUDA) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an ImportError
    assert processes_of_others(CUDA) is None

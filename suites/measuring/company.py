"""Who else uses the machine while something is timed, so that a number made in company can be told from one made alone.

The locks of ``suites.measuring.sharing`` keep this bench's own commands apart; of everything else on the machine only
its traces can be seen: CPU time that was spent and not by this process, and processes on the card.
"""

import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil
import torch

from suites.measuring.circumstance import nvml_cards

MAX_SHARE_OF_OTHERS = 0.1
"""Of the machine's CPU time: more than a system takes that idles, less than one busy core of a small machine."""


@dataclass(frozen=True)
class Reading:
    """What the clocks say at one moment.

    Attributes:
        at_s: time.
        busy_s: CPU time that the whole machine has spent, and that its hypervisor has kept from it.
        own_s: CPU time of this process, and of those of its children that have ended.
    """

    at_s: float
    busy_s: float
    own_s: float


class Company:
    """Watches for others during a ``with`` block; ``found`` holds plain values afterwards.

    It looks once before and once after the block, so that it disturbs nothing, and it never raises. Children that are
    still running count as others.

    Args:
        device: where the block's work runs, as torch names it.

    Attributes:
        found: ``cpu_share_of_others``: the share, in [0, 1], of the machine's CPU time in the block that went to other
            processes and to the hypervisor; None if nothing tells. ``gpu_processes_of_others``: how many other
            processes had the card, before or after, whichever is more; None on a CPU, and if nothing tells.
            ``shared``: whether that was more than ``MAX_SHARE_OF_OTHERS`` or any process; False also if nothing tells.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.found = _found(None, None)

    def __enter__(self) -> Self:
        self._processes = processes_of_others(self._device)
        self._before = read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        share = share_of_others(self._before, read(), os.cpu_count() or 1)
        known = [count for count in (self._processes, processes_of_others(self._device)) if count is not None]
        self.found = _found(share, max(known, default=None))


def _found(share: float | None, processes: int | None) -> dict[str, Any]:
    return {
        "cpu_share_of_others": share,
        "gpu_processes_of_others": processes,
        "shared": (share or 0) > MAX_SHARE_OF_OTHERS or (processes or 0) > 0,
    }


def read() -> Reading | None:
    """The clocks now; None where they cannot be read."""
    try:
        times = psutil.cpu_times()._asdict()
        own = os.times()
    except (OSError, RuntimeError):
        return None
    # A guest's time is in its host's user time already.
    idle = ("idle", "iowait", "guest", "guest_nice")
    busy_s = sum(seconds for name, seconds in times.items() if name not in idle)
    return Reading(time.perf_counter(), busy_s, own.user + own.system + own.children_user + own.children_system)


def share_of_others(before: Reading | None, after: Reading | None, num_cpus: int) -> float | None:
    """The share of the machine's CPU time between two readings that this process did not spend.

    Args:
        before: the first.
        after: the second.
        num_cpus: logical CPUs of the machine, be they allowed to this process or not.
    """
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(others_s / ((after.at_s - before.at_s) * num_cpus), 0.0), 1.0)


def processes_of_others(device: torch.device) -> int | None:
    """How many other processes compute on a CUDA device; None on a CPU, and where NVIDIA's library does not tell."""
    if device.type != "cuda":
        return None
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        nvml, cards = nvml_cards()
        pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(cards[index])}
        # In a container the library may list processes by their numbers outside, which tell nothing of whose they are;
        # but who has memory on the card is among them.
        present = os.getpid() in pids or torch.cuda.memory_reserved(index) > 0
    except Exception:  # the library is missing, or its own errors, which have no common type without it
        return None
    if present and not pids:
        return None  # not even this process is shown: the container hides them all
    return len(pids) - present

"""A made-up host of eight GPUs: what torch and NVIDIA's library would say of it."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

UUIDS = [f"{index}{index}{index}{index}aaaa-0000-1111-2222-333333333333" for index in range(8)]


def hide(visible: str) -> list[str]:
    """UUIDs of the GPUs that CUDA shows to a process with this CUDA_VISIBLE_DEVICES."""
    return [
        UUIDS[int(name)] if name.isdecimal() else next(uuid for uuid in UUIDS if f"GPU-{uuid}".startswith(name))
        for name in visible.split(",")
    ]


def host(
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    pids: dict[int, list[int]] | None = None,
    reserved_bytes: int = 0,
    **functions: Any,
) -> None:
    """Makes this machine that host.

    Args:
        monkeypatch: undoes it.
        visible: CUDA_VISIBLE_DEVICES.
        pids: of the processes on each GPU, by the host's index.
        reserved_bytes: memory that this process has on its GPU.
        functions: of NVIDIA's library, in place of the ones here.
    """
    mine = hide(visible)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(mine))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=mine[index]))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved_bytes)

    def processes(index: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in (pids or {}).get(index, [])]

    library = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: UUIDS.index(uuid.removeprefix("GPU-")),
        "nvmlDeviceGetIndex": lambda index: index,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetClockInfo": lambda index, kind: 1000 + index + kind,
        "nvmlDeviceGetMaxClockInfo": lambda index, kind: 2000 + index + kind,
        "NVML_CLOCK_SM": 100,
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**library | functions))


def fail(*_: Any) -> Any:
    """A function of a library that does not work here."""
    raise RuntimeError("Driver/library version mismatch")


FORMS = ["1", f"GPU-{UUIDS[1]}", "GPU-1111aaaa"]
"""Of naming GPU 1 in CUDA_VISIBLE_DEVICES."""

OWN_PID = os.getpid()

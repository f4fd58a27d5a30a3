"""How much more memory a call needs at its peak than before it."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def peak_extra_bytes(call: Callable[[], Any], device: str = "cpu") -> int | None:
    """Runs a call and returns the bytes by which memory in use rose above what it was; None where nothing tells.

    On a CPU that is the resident memory of the process, all libraries included. It is exact to a few pages in a process
    that :func:`in_fresh_process` started, since there the allocator hands every large block back at once.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _RESET.write_text("5")  # sets the peak to what is in use now
    except OSError:
        return None
    before = _kibibytes("VmRSS")
    call()
    return (_kibibytes("VmHWM") - before) * 1024


def in_fresh_process(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Runs a function of a module in a process of its own, whose allocator keeps no large block for later.

    The process is forked from a server that has imported torch and done nothing else, since a new interpreter for each
    would take several seconds.
    """
    name = "MALLOC_MMAP_THRESHOLD_"
    before = os.environ.get(name)
    os.environ[name] = "65536"  # read as the server starts, with the first such process
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["suites.measuring.footprint"])
        with ProcessPoolExecutor(1, mp_context=context, initializer=_take_no_interrupts) as pool:
            return pool.submit(function, *args, **kwargs).result()
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _take_no_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; who waits for this process ends it


def _kibibytes(key: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))

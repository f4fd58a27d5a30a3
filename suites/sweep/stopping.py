"""Ending a run at once: no process is left, and what has a record keeps it."""

import os
import signal
import sys
from types import FrameType


class Stopped(KeyboardInterrupt):
    """The run was told to end.

    Attributes:
        signal: which signal told it so.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


def stop_at_once() -> None:
    """From now on SIGINT and SIGTERM kill all that this process has started, then raise :class:`Stopped` in it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    kill_children()
    raise Stopped(number)


def kill_children() -> None:
    """Kills all processes that this one has started, and theirs."""
    import psutil  # noqa: PLC0415 - --help does without

    for child in psutil.Process().children(recursive=True):
        try:
            # The one that counts shared resources ends by itself, and is missed loudly if it does not.
            if not any("resource_tracker" in word for word in child.cmdline()):
                child.kill()
        except psutil.NoSuchProcess:
            continue


def follow_parent() -> None:
    """To be called in a worker: it takes no interrupts of its own, and ends when its parent does, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - needed there alone

        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was gone already
            os.kill(os.getpid(), signal.SIGKILL)

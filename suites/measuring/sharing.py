"""How all that computes on one machine shares it: together while it trains, one at a time and alone while it measures.

Workers, commands and users meet at two files in the folder for temporary files, by ``flock``. Who computes is on the
``floor`` with others. Who measures takes the ``turn``, then waits for the whole floor; the others see between two
training steps that the turn is taken, leave the floor, and come back after it. The kernel lets go of a lock when its
process ends, however it does, so that a file that is left over means nothing.

What does not see the same folder (another ``TMPDIR``, a container) is not waited for, nor is the start of a command.
Windows has no ``flock``: nothing is locked there, and one command with ``--jobs 1`` has to be run at a time.
"""

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from threading import Timer
from typing import Self

if sys.platform == "win32":
    LOCK_SH = LOCK_EX = LOCK_NB = LOCK_UN = 0

    def flock(descriptor: int, operation: int) -> None:
        """Locks nothing."""
else:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock

PATIENCE_S = 30.0
"""Who has waited that long to measure says so."""


class Share:
    """One worker's share of the machine: a context in which it computes.

    It is for one thread, and its ``alone`` is not to be nested in itself.

    Args:
        report: told the share of the trial's training that is done, in [0, 1].
        folder: where the files are; the machine's folder for temporary files unless given.
    """

    def __init__(self, report: Callable[[float], None] = lambda share: None, folder: Path | None = None) -> None:
        self.report = report
        folder = folder or Path(gettempdir())
        self._turn = _Lock(folder / "budgetformer-bench.turn")
        self._floor = _Lock(folder / "budgetformer-bench.floor")
        self._computing = False

    def __enter__(self) -> Self:
        self._join()
        self._computing = True
        return self

    def __exit__(self, *_: object) -> None:
        self._computing = False
        self._floor.set(LOCK_UN)

    def step(self, done: int, total: int) -> None:
        """To be called between training steps: reports, and makes way for who wants to measure."""
        self.report(done / total)
        if self._computing and self._turn.is_taken():
            self._floor.set(LOCK_UN)
            self._join()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A time in which nobody else computes, be it inside ``with share`` or not."""
        awaited = self._turn
        timer = Timer(PATIENCE_S, lambda: _say_waiting(awaited))
        self._floor.set(LOCK_UN)  # or two who want to measure would wait for each other
        try:
            timer.start()
            with self._turn.held(LOCK_EX):
                awaited = self._floor
                try:
                    self._floor.set(LOCK_EX)
                    timer.cancel()
                    yield
                finally:
                    # At once, and nobody comes between: the whole floor is only for who has the turn.
                    self._floor.set(LOCK_SH if self._computing else LOCK_UN)
        finally:
            timer.cancel()

    def _join(self) -> None:
        with self._turn.held(LOCK_SH):  # after those who measure; and they wait for no longer than this takes
            self._floor.set(LOCK_SH)


class _Lock:
    """A file that processes of all users can lock; held by this object, not by its process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with suppress(FileExistsError):
            # It must be new: Linux may refuse to "create" another user's file that is there (fs.protected_regular).
            path.touch(exist_ok=False)
            path.chmod(0o666)  # whatever the umask
        self._descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._descriptor)

    def set(self, operation: int) -> None:
        flock(self._descriptor, operation)

    @contextmanager
    def held(self, operation: int) -> Iterator[None]:
        try:
            self.set(operation)
            yield
        finally:
            self.set(LOCK_UN)

    def is_taken(self) -> bool:
        """Whether somebody else has it for himself."""
        with suppress(BlockingIOError), self.held(LOCK_SH | LOCK_NB):
            return False
        return True


def _say_waiting(lock: _Lock) -> None:
    message = f"suites: waiting to measure alone; another run or trial has the machine (lock file {lock.path})"
    print(message, file=sys.stderr, flush=True)

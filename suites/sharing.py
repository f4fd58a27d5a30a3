"""How the workers of one machine share it: together while they train, one at a time and alone while they measure."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.context import BaseContext


class Solo:
    """The share of a worker that has the machine to itself.

    Args:
        report: told the share of the trial's training that is done, in [0, 1].
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report = report

    def step(self, done: int, total: int) -> None:
        """To be called between training steps."""
        self.report(done / total)

    def alone(self) -> AbstractContextManager[None]:
        """A time in which nobody else computes."""
        return nullcontext()


class Floor:
    """What workers share. It travels to them when they are started.

    Args:
        num_workers: workers, numbered from 0.
        context: of ``multiprocessing``.
    """

    def __init__(self, num_workers: int, context: BaseContext) -> None:
        self.progress = context.Array("d", num_workers)
        self.next_worker = context.Value("i", 0)
        self.turn = context.Lock()
        self.wanted = context.Event()
        self.busy = [context.Lock() for _ in range(num_workers)]


class Share(Solo):
    """The share of one of several workers.

    A worker holds its ``busy`` lock while it computes. Who measures takes the ``turn``, asks for quiet, and waits until
    it holds everybody's lock: the others let go of theirs between two training steps.

    Args:
        floor: what the workers share.
        worker: this one's number.
    """

    def __init__(self, floor: Floor, worker: int) -> None:
        super().__init__(lambda share: floor.progress.__setitem__(worker, share))
        self._floor = floor
        self._mine = floor.busy[worker]

    def __enter__(self) -> "Share":
        self._mine.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._mine.release()

    def step(self, done: int, total: int) -> None:
        super().step(done, total)
        if self._floor.wanted.is_set():
            self._mine.release()
            with self._floor.turn:
                pass
            self._mine.acquire()

    def alone(self) -> AbstractContextManager[None]:
        return self._alone()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._mine.release()
        try:
            with self._floor.turn:
                self._floor.wanted.set()
                for lock in self._floor.busy:
                    lock.acquire()
                try:
                    yield
                finally:
                    self._floor.wanted.clear()
                    for lock in self._floor.busy:
                        lock.release()
        finally:
            self._mine.acquire()

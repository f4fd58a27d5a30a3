"""Progress of a sweep on standard error: a live bar on a terminal, one line per trial elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """Shows how far a sweep is and how long it will take.

    Args:
        num_trials: trials to run.
    """

    def __init__(self, num_trials: int) -> None:
        self.num_trials = num_trials
        self.done = 0
        self.start = time.monotonic()
        terminal = sys.stderr.isatty()
        self.sweep = tqdm(total=num_trials, unit="trial", disable=not terminal, dynamic_ncols=True)
        self.steps = tqdm(unit="step", disable=not terminal, leave=False, dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.steps.close()
        self.sweep.close()

    def say(self, line: str) -> None:
        """Prints a line without tearing the bars."""
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()

    def begin(self, title: str) -> None:
        """A trial starts."""
        self.steps.reset()
        self.steps.set_description(title)

    def step(self, done: int, total: int) -> None:
        """The trial has done some of its training steps."""
        self.steps.total = total
        self.steps.update(done - self.steps.n)

    def end(self, title: str, outcome: str) -> None:
        """A trial is over."""
        self.done += 1
        self.sweep.update()
        left = (time.monotonic() - self.start) / self.done * (self.num_trials - self.done)
        self.say(f"[{self.done}/{self.num_trials}] {title}: {outcome} ({duration(left)} left)")


def duration(seconds: float) -> str:
    """A length of time for people: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

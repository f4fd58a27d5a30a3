"""Progress of a sweep on standard error: a live bar on a terminal, one line per trial elsewhere."""

import sys
import time
from collections.abc import Sequence
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
        # On a terminal the bar moves with every step; elsewhere it is off.
        form = "{percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left"
        disable = None if num_trials else True
        self.bar = tqdm(total=num_trials, disable=disable, bar_format=form, dynamic_ncols=True, leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.close()

    def show(self, shares: Sequence[float]) -> None:
        """Moves the bar: the trials that are over, and the shares of those that are running."""
        self.bar.update(self.done + sum(shares) - self.bar.n)

    def end(self, title: str, outcome: str) -> None:
        """A trial is over: prints a line."""
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.num_trials - self.done)
        line = f"[{self.done}/{self.num_trials}] {title}: {outcome} ({duration(left)} left)"
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """A length of time for people: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""Progress of a sweep on standard error: a live bar under a table that grows on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import NamedTuple, Self

from tqdm import tqdm


class Cell(NamedTuple):
    """A number of the table that grows: accuracies by method and task."""

    row: str
    column: str
    value: float


class Progress:
    """Shows how far a sweep is and how long it will take.

    Args:
        num_trials: trials to run.
    """

    def __init__(self, num_trials: int) -> None:
        self.num_trials = num_trials
        self.done = 0
        self.table: dict[str, dict[str, list[float]]] = {}
        self.height = 0
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

    def end(self, title: str, outcome: str, cell: Cell | None = None) -> None:
        """A trial is over: prints a line, and on a terminal the table of all that is known so far, in its place.

        Args:
            title: of the trial.
            outcome: in words.
            cell: where its number belongs in the table, if it has one.
        """
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.num_trials - self.done)
        line = f"[{self.done}/{self.num_trials}] {title}: {outcome} ({duration(left)} left)"
        if cell is not None:
            self.table.setdefault(cell.row, {}).setdefault(cell.column, []).append(cell.value)
        above = f"\x1b[{self.height}A\x1b[J" if self.height else ""  # up, and clear what is below
        table = grown(self.table) if sys.stderr.isatty() else []
        self.height = len(table)
        tqdm.write("\n".join([above + line, *table]), file=sys.stderr)
        sys.stderr.flush()


def grown(table: dict[str, dict[str, list[float]]]) -> list[str]:
    """The lines of a table of means with their numbers of seeds, one column per task; empty without rows."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    cells = [["", *columns]]
    for name, row in table.items():
        shown = [f"{100 * fmean(row[column]):.2f} ({len(row[column])})" if column in row else "" for column in columns]
        cells.append([name, *shown])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return ["", *lines, ""] if table else []


def duration(seconds: float) -> str:
    """A length of time for people: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

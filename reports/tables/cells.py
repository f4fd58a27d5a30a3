"""Tables as typed cells. How a cell looks is decided in ``reports.render``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class Text:
    """Words, as they are."""

    text: str


@dataclass(frozen=True)
class Number:
    """A mean over seeds.

    Attributes:
        mean: in the column's unit.
        spread: sample standard deviation over seeds; None for one seed.
        n: seeds with a value.
        digits: decimals to show.
        best: it is the best of its column, or looks equal to it.
        estimated: it does not come from a measurement alone.
        partial: finished seeds of the row lack it.
    """

    mean: float
    spread: float | None
    n: int
    digits: int
    best: bool = False
    estimated: bool = False
    partial: bool = False


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs of seeds; ``interval`` is None for one pair."""

    mean: float
    interval: tuple[float, float] | None
    n: int
    digits: int
    partial: bool = False


@dataclass(frozen=True)
class Missing:
    """There is no such number."""


@dataclass(frozen=True)
class Failed:
    """No seed came to an end."""


Cell = Text | Number | Difference | Missing | Failed


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        key: name in a CSV file; carries the unit.
        header: what a reader sees.
        panels: the parts of the table that show it; none for a CSV file's alone.
        kind: what its cells hold, where they hold something.
        decides: a panel with such columns shows the rows that have something in one of them, and no others.
    """

    key: str
    header: str
    panels: tuple[str, ...]
    kind: Literal["text", "number", "difference"] = "number"
    decides: bool = False


@dataclass(frozen=True)
class Table:
    """One setting: a task with its recipe, encoder and device.

    Attributes:
        title: the task, and what tells it from other settings of the same task.
        columns: all columns.
        rows: one per method, one cell per column.
        notes: what a reader must know, a sentence or two each.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]

    def cells(self, key: str) -> list[Cell]:
        """The cells of one column."""
        index = [column.key for column in self.columns].index(key)
        return [row[index] for row in self.rows]

    @property
    def panels(self) -> list[str]:
        """The names of its panels, in the order of the columns."""
        return list(dict.fromkeys(panel for column in self.columns for panel in column.panels))

    def panel(self, panel: str) -> "Table":
        """The table with the columns of one panel."""
        shown = [index for index, column in enumerate(self.columns) if panel in column.panels]
        deciding = [index for index in shown if self.columns[index].decides]
        wanted = [row for row in self.rows if not deciding or any(row[i] != Missing() for i in deciding)]
        rows = tuple(tuple(row[index] for index in shown) for row in wanted)
        return Table(self.title, tuple(self.columns[index] for index in shown), rows, self.notes)


Spec = Sequence[tuple[Column, Callable[[Row], Cell]]]
"""The columns of a table, each with what makes its cell of a row."""


def make_table(title: str, spec: Spec[Row], rows: Sequence[Row], notes: Sequence[str]) -> Table:
    """A table of some rows, a column at a time."""
    cells = tuple(tuple(cell(row) for _, cell in spec) for row in rows)
    return Table(title, tuple(column for column, _ in spec), cells, tuple(notes))

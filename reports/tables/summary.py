"""The measurements of the layer in a few lines: geometric means and worst cases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import TypeVar

from reports.measured import Measured, number, ratio_of, seconds_of, shape_of
from reports.tables.cells import Column, Spec, Table, Text, make_table
from reports.tables.of_encoders import Saving, savings
from reports.tables.of_memory import peak_ratio
from suites.records.record import Record

Item = TypeVar("Item")


@dataclass(frozen=True)
class Line:
    """One line: its values, the worst of them, and where that was.

    Attributes:
        what: in words.
        values: of all measurements that have one.
        worst: the worst of them.
        where: the measurement that gave it.
        is_ratio: whether a geometric mean says anything.
    """

    what: str
    values: list[float]
    worst: float
    where: str
    is_ratio: bool = True

    @property
    def mean(self) -> float | None:
        """The geometric mean; None of numbers that are no ratios, or not all above 0."""
        return geometric_mean(self.values) if self.is_ratio and min(self.values) > 0 else None


SPEC: Spec[Line] = (
    (Column("what", "what", ("all",), "text"), lambda line: Text(line.what)),
    (Column("geometric_mean", "geometric mean", ("all",)), lambda line: number(line.mean, 3)),
    (Column("worst", "worst", ("all",)), lambda line: number(line.worst, 3)),
    (Column("where", "where", ("all",), "text"), lambda line: Text(line.where)),
)


def summary_table(measured: Measured) -> Table:
    """The lines that have a value."""
    return make_table("Summary", SPEC, [line for line in _lines(measured) if line is not None], ())


def _lines(measured: Measured) -> list[Line | None]:
    grid = measured.of_kind("layer")
    batches = [record for record in grid if record.question["cell"]["shape"][0] >= 8]
    few = [record for record in batches if record.question["cell"]["s"] <= 0.5]
    dense = [record for record in grid if record.question["cell"]["s"] == 1]
    encoders = savings(measured.of_kind("encoder"))
    wide = [saving for saving in encoders if saving.record.question["width"] >= 256]
    narrow = [saving for saving in encoders if saving.record.question["width"] < 256]
    memory = measured.of_kind("peak")
    return [
        *(
            line
            for ours, theirs in (("auto", "bound"), ("auto", "plain bound"), ("plain", "plain bound"))
            for line in (
                _of_ratios(f"{ours} / {theirs}, all cells", grid, ours, theirs),
                _of_ratios(f"{ours} / {theirs}, B >= 8", batches, ours, theirs),
            )
        ),
        _of_ratios("auto / full, s = 1", dense, "auto", "full"),
        *(
            _line(f"auto / {full} minus k / H, B >= 8, s <= 0.5", few, _beyond(full), _where, is_ratio=False)
            for full in ("full", "plain full")
        ),
        _of_ratios("full / plain full, all cells", grid, "full", "plain full"),
        _of_ratios("noise: full again / full, most", grid, "full again", "full"),
        _of_ratios("noise: full again / full, least", grid, "full again", "full", min),
        _of_ratios("mixture of heads / plain full, B >= 8, s <= 0.5", few, "mixture of heads", "plain full"),
        _line("plain / the faster of gathered and masked", grid, _regret, _where),
        *(
            _line(
                f"encoders: saved / allowed{words}, {which}",
                rows,
                partial(Saving.saved_of_allowed, heads=heads),
                _where_saved,
                min,
            )
            for which, rows in (("D >= 256", wide), ("D < 256", narrow))
            for words, heads in (("", "given"), (" with choosing", "heads"))
        ),
        *(
            _line(
                f"memory: {ours} / {theirs}",
                memory,
                partial(peak_ratio, ours=ours, theirs=theirs),
                _where,
            )
            for ours, theirs in (("auto", "full"), ("auto", "plain full"), ("plain", "plain full"))
        ),
    ]


def _of_ratios(
    what: str, records: Sequence[Record], ours: str, theirs: str, worst: Callable[..., float] = max
) -> Line | None:
    return _line(what, records, lambda record: ratio_of(record, ours, theirs), _where, worst)


def _line(
    what: str,
    items: Sequence[Item],
    value: Callable[[Item], float | None],
    where: Callable[[Item], str],
    worst: Callable[..., float] = max,
    *,
    is_ratio: bool = True,
) -> Line | None:
    known = [(number, where(item)) for item in items if (number := value(item)) is not None]
    if not known:
        return None
    values = [number for number, _ in known]
    extreme = worst(values)
    return Line(what, values, extreme, known[values.index(extreme)][1], is_ratio)


def _beyond(full: str) -> Callable[[Record], float | None]:
    """How much more time than heads."""

    def beyond(record: Record) -> float | None:
        ratio = ratio_of(record, "auto", full)
        return None if ratio is None else ratio - float(record.timed.metrics["active_share"])

    return beyond


def _regret(record: Record) -> float | None:
    ran, *others = (seconds_of(record, name) for name in ("plain", "gathered", "masked"))
    known = [seconds for seconds in others if seconds]
    return ran / min(known) if ran and known else None


def _where(record: Record) -> str:
    cell = record.question["cell"]
    return f"{shape_of(record)}, s = {cell['s']}, {cell['kind']}"


def _where_saved(saving: Saving) -> str:
    question = saving.record.question
    return f"{question['task']['name']}, D = {question['width']}, s = {saving.s}"

from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from reports.figures import STYLES, accuracy_versus_cost, has_points, save, style_of
from reports.load import load
from reports.tables.cells import Number, Table
from reports.tables.main import main_tables
from suites.records.record import Record
from tests.reports.records import golden_records, record, stored


def tables(folder: Path, *records: Record) -> list[Table]:
    return main_tables(load(stored(folder, *records)))


def bars(table: Table) -> list[ErrorbarContainer]:
    (axes,) = accuracy_versus_cost([table]).axes
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    found = tables(tmp_path / "results", *golden_records())
    first, second = (save(accuracy_versus_cost(found), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["a.pdf", "a.png", "a.svg"]
    for ours, theirs in zip(first, second, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()
        assert len(ours.read_bytes()) > 5000


def test_points_and_bars_are_those_of_the_table(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, record(seed=0, accuracy=0.8), record(seed=1, accuracy=0.9))
    (accuracy,) = table.cells("accuracy_percent")
    (bar,) = bars(table)
    assert isinstance(accuracy, Number)
    assert accuracy.spread is not None
    data_line, _, (lines,) = bar.lines
    assert data_line is not None
    assert np.asarray(data_line.get_ydata()).tolist() == [accuracy.mean]
    ends = lines.get_segments()[0][:, 1]
    assert list(ends) == pytest.approx([accuracy.mean - accuracy.spread, accuracy.mean + accuracy.spread])


def test_one_seed_has_no_bar(tmp_path: Path) -> None:
    (bar,) = bars(tables(tmp_path, record())[0])
    assert not bar.has_yerr


def test_a_method_without_a_result_is_not_drawn(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, record(), record("random-k", error="boom"), record("other", macs_executed=None))
    assert len(bars(table)) == 1
    assert not has_points(tables(tmp_path / "failed", record(error="boom"))[0])


def test_names_that_look_like_mathematics_are_drawn_as_they_are(tmp_path: Path) -> None:
    found = tables(tmp_path / "results", record(r"a$\b$"), record("b_$^$", task=r"t$\x$"))
    assert save(accuracy_versus_cost(found), tmp_path / "a")


def test_a_method_looks_the_same_everywhere_and_unlike_others() -> None:
    assert style_of("budgetformer") == STYLES["budgetformer"]
    assert len(set(STYLES.values())) == len(STYLES)
    colour, marker = style_of("random-k(s=0.5)")
    assert colour == STYLES["random-k"][0]
    assert (colour, marker) not in STYLES.values()
    assert style_of("mine") == style_of("mine")
    assert style_of("mine") not in STYLES.values()

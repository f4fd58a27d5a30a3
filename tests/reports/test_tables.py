import csv
import io
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.load import load
from reports.render import escape_latex, latex, latex_document, markdown, to_csv
from reports.tables.cells import Column, Difference, Failed, Missing, Number, Table, Text
from reports.tables.main import main_tables
from suites.records.record import Record
from tests.reports.records import golden_records, record, stored

GOLDEN = Path(__file__).parent / "golden"


def tables(folder: Path, *records: Record, allow_mixed: bool = False) -> list[Table]:
    return main_tables(load(stored(folder, *records)), allow_mixed=allow_mixed)


def row(table: Table, method: str) -> dict[str, object]:
    index = table.cells("method").index(Text(method))
    return {column.key: cell for column, cell in zip(table.columns, table.rows[index], strict=True)}


@pytest.mark.parametrize(("name", "render"), [("tables.md", markdown), ("tables.tex", latex_document)])
def test_golden(name: str, render: object, tmp_path: Path) -> None:
    assert callable(render)
    assert render(tables(tmp_path, *golden_records())) == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_numbers_of_a_row(tmp_path: Path) -> None:
    (table,) = tables(
        tmp_path,
        *(record("full-mha", seed, accuracy=a, macs_executed=40e6) for seed, a in enumerate((0.90, 0.91, 0.92))),
        *(record("random-k", seed, accuracy=a) for seed, a in enumerate((0.88, 0.91, 0.89))),
    )
    cells = row(table, "random-k")
    accuracy, difference = cells["accuracy_percent"], cells["accuracy_difference_points"]
    assert isinstance(accuracy, Number)
    assert accuracy.mean == pytest.approx(89.33, abs=0.01)
    assert accuracy.spread == pytest.approx(1.5275, abs=1e-4)
    assert isinstance(difference, Difference)
    assert difference.mean == pytest.approx(-5 / 3)
    assert difference.interval == pytest.approx((-5.461, 2.128), abs=1e-3)
    flops, cut = cells["executed_mflops"], cells["flops_cut_percent"]
    assert isinstance(flops, Number)
    assert isinstance(cut, Number)
    assert [flops.mean, cut.mean] == pytest.approx([40.0, 50.0])
    assert flops.n == 3


def test_one_seed_prints_no_spread(tmp_path: Path) -> None:
    text = markdown(tables(tmp_path, record(), record("random-k", accuracy=0.8)))
    grid = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    assert "±" not in grid
    assert "[" not in grid
    assert "-10.00" in grid


def test_a_seed_that_failed_or_is_missing_shows(tmp_path: Path) -> None:
    (table,) = tables(
        tmp_path,
        *(record("full-mha", seed) for seed in (0, 1)),
        *(record("random-k", 0), record("random-k", 1, error="boom")),
        record("static-pruning", 1),
    )
    assert table.cells("seeds") == [Text("2"), Text("1 of 2"), Text("1 of 2")]
    assert "random-k seed 1 failed: boom." in table.notes


def test_a_method_that_always_failed_keeps_its_row(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, record(), record("random-k", error="boom"))
    cells = row(table, "random-k")
    assert cells["accuracy_percent"] == Failed()
    assert cells["seeds"] == Text("0 of 1")
    assert {cells[key] for key in ("accuracy_difference_points", "latency_b1_p50_ms", "execution")} == {Missing()}


def test_differences_pair_the_seeds_that_both_have(tmp_path: Path) -> None:
    (table,) = tables(
        tmp_path,
        *(record("full-mha", seed, accuracy=a) for seed, a in ((0, 0.9), (1, 0.5))),
        *(record("random-k", seed, accuracy=a) for seed, a in ((1, 0.6), (2, 0.9))),
    )
    difference = row(table, "random-k")["accuracy_difference_points"]
    assert isinstance(difference, Difference)
    assert difference.mean == pytest.approx(10.0)
    assert (difference.interval, difference.n, difference.partial) == (None, 1, True)
    assert "+10.00 (n = 1)" in markdown([table])


def test_without_full_attention_there_is_no_difference(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, record("random-k"))
    assert table.cells("accuracy_difference_points") == [Missing()]


def test_rows_stand_in_their_order(tmp_path: Path) -> None:
    names = ("zeta", "budgetformer", "alpha", "random-k(s=0.5)", "full-mha", "random-k", "no-attention")
    (table,) = tables(tmp_path, *(record(name) for name in names))
    shown = [cell.text for cell in table.cells("method") if isinstance(cell, Text)]
    assert shown == ["full-mha", "no-attention", "random-k", "random-k(s=0.5)", "budgetformer", "alpha", "zeta"]


def test_settings_of_one_task_are_tables_of_their_own(tmp_path: Path) -> None:
    found = tables(tmp_path, record(), record(lr=0.5), record(task="tweets"))
    assert [table.title for table in found] == ["topics (recipe.lr=0.001)", "topics (recipe.lr=0.5)", "tweets"]


@pytest.mark.parametrize("other", [record("random-k", machine="m2"), record("random-k", protocol="2")])
def test_machines_and_protocols_do_not_mix_unless_marked(other: Record, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"topics.*machine m1, protocol 1: full-mha seed 0; machine .* random-k seed 0"
    ):
        tables(tmp_path, record(), other)
    (table,) = main_tables(load(tmp_path), allow_mixed=True)
    assert table.notes[0].startswith("MIXED")
    assert {"machine", "protocol"} <= {column.key for column in table.panel("time").columns}
    assert not any(cell.best for cells in table.rows for cell in cells if isinstance(cell, Number))


def test_unknown_machines_are_different_machines(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="machine unknown"):
        tables(tmp_path, record(machine=None), record("random-k", machine=None))


def test_a_failed_trial_of_another_machine_mixes_nothing(tmp_path: Path) -> None:
    assert tables(tmp_path, record(), record("random-k", machine="m2", error="boom"))


def test_protocols_are_not_paired_with_each_other(tmp_path: Path) -> None:
    records = [record(), record(protocol="2", accuracy=0.5), record("random-k", protocol="2", accuracy=0.6)]
    (table,) = tables(tmp_path, *records, allow_mixed=True)
    difference = row(table, "random-k")["accuracy_difference_points"]
    assert isinstance(difference, Difference)
    assert difference.mean == pytest.approx(10.0)
    assert table.cells("method")[:2] == [Text("full-mha (protocol=1)"), Text("full-mha (protocol=2)")]


def test_an_estimate_is_marked(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, record(), record("random-k", source="measured"))
    assert [isinstance(cell, Number) and cell.estimated for cell in table.cells("train_co2_g")] == [True, False]
    assert "≈ 0.0200" in markdown([table])


def test_what_is_true_of_all_tables_is_said_once(tmp_path: Path) -> None:
    text = markdown(tables(tmp_path, record(), record(task="tweets")))
    assert text.count("1 MAC = 2 FLOPs") == 1


def test_nothing_is_called_a_speed_up(tmp_path: Path) -> None:
    text = markdown(tables(tmp_path, record(), record("random-k", execution="masked")))
    assert not re.search("speed-?up", text, re.IGNORECASE)
    assert "| masked" in text


def test_a_masked_run_is_never_the_fastest(tmp_path: Path) -> None:
    masked = record("budgetformer", execution="masked", latency_b32_ratio=0.1)
    (table,) = tables(tmp_path, record(latency_b32_ratio=1.0), record("random-k"), masked)
    flags = [isinstance(cell, Number) and cell.best for cell in table.cells("latency_b32_ratio")]
    assert flags == [False, True, False]


def test_csv_keeps_every_digit(tmp_path: Path) -> None:
    written = to_csv(tables(tmp_path, *golden_records()))
    rows = list(csv.DictReader(io.StringIO(written)))
    assert len(rows) == 7
    full = next(each for each in rows if each["method"] == "full-mha")
    assert float(full["accuracy_percent_std"]) == pytest.approx(math.sqrt(2))
    assert (full["accuracy_percent_n"], full["s_mean"], full["machine"]) == ("2", "", "m1")
    assert {len(each) for each in csv.reader(io.StringIO(written))} == {len(rows[0])}


def tokens(text: str) -> list[str]:
    """What LaTeX sees: control sequences apart from bare characters."""
    return re.findall(r"\\.|.", text, re.DOTALL)


def is_balanced(text: str) -> bool:
    depth = 0
    for token in tokens(text):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


@settings(deadline=None)
@given(st.text())
def test_escaped_text_has_no_bare_special(text: str) -> None:
    escaped = escape_latex(text)
    assert is_balanced(escaped)
    assert not {"&", "%", "#", "_", "~", "^"} & set(tokens(escaped))
    assert "\n" not in escaped


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=3))
def test_every_row_has_as_many_cells_whatever_the_methods_are_called(names: list[str]) -> None:
    columns = (Column("method", "a & b", ("quality", "time"), "text"), Column("x", "x, %", ("quality",)))
    rows = tuple((Text(name), Number(-1.0, 0.5, 2, 1, best=True)) for name in names)
    text = latex(Table("100%", columns, rows, ("a_b",)))
    grid = re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL)[0]
    lines = [line for line in grid.splitlines() if line != r"\midrule"]
    assert len(lines) == len(names) + 1
    assert {tokens(line).count("&") for line in lines} == {1}
    assert is_balanced(text)


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(tmp_path: Path) -> None:
    source = tmp_path / "tables.tex"
    source.write_text(latex_document(tables(tmp_path / "results", *golden_records())), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", source.name]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert source.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")

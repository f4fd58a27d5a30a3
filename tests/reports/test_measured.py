"""Tables of what was measured of the layer itself."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from reports.__main__ import main
from reports.measured import load_measured
from reports.render import latex_document, markdown, to_csv
from reports.tables.measured_tables import measured_tables
from suites.records.record import Learned, Record, Timed
from suites.records.store import Store

WHERE: dict[str, Any] = {
    "kernel": "c++ 12",
    "cpu_model": "a processor",
    "cores": 2,
    "threads": 2,
    "machine_id": "m1",
    "versions": {"torch": "2.13.0"},
    "code_fingerprint": "0123456789abcdef",
}
CALLS = ("auto", "full", "full again", "bound", "plain", "plain full", "plain bound", "gathered", "masked")


NOTHING = Learned()


def of(kind: str, timed: Timed, learned: Learned = NOTHING, where: dict[str, Any] = WHERE, **question: Any) -> Record:
    asked = {"protocol": "4", "kind": kind, "device": "cpu", **question}
    return Record(question=asked, status="done", timed=timed, learned=learned, circumstance=where)


def layer(s: float, batch: int = 64, where: dict[str, Any] = WHERE, **seconds: float) -> Record:
    cell = {"shape": [batch, 64, 256, 8], "s": s, "kind": "random"}
    samples = {name: [seconds.get(name.replace(" ", "_"), 1.0)] * 3 for name in CALLS}
    timed = Timed(metrics={"active_share": s}, timings=samples, measuring={"ran": "compiled"})
    return of("layer", timed, where=where, cell=cell, rounds=3, dtype="float32")


def encoder(width: int, **seconds: float) -> Record:
    calls = ("full", "full again", "no attention", "heads 0.25", "given 0.25")
    samples = {name: [seconds.get(name.partition(" ")[0], 1.0)] * 3 for name in calls}
    task = {"name": "bbc-topics"}
    return of("encoder", Timed(timings=samples), task=task, width=width, budgets=[0.25], shares=[0.25])


def all_kinds() -> list[Record]:
    cell = {"shape": [64, 64, 256, 8], "s": 0.5, "kind": "random"}
    calls = ["auto", "full", "plain", "plain full"]
    peaks = [12e6, 20e6, 18e6, 24e6]
    return [
        layer(0.25, auto=0.3, bound=0.25),
        layer(1.0),
        layer(0.5, batch=1, auto=0.9, bound=0.6),
        encoder(256, no=0.6, given=0.73, heads=0.76),
        encoder(128, no=0.8, given=1.1, heads=1.2),
        of(
            "peers",
            Timed(timings={"training: ours": [0.2] * 3, "training: BertModel": [0.25] * 3}),
            task={"name": "bbc-topics"},
            width=256,
        ),
        of("peak", Timed(metrics={"active_share": 0.5, "peak_bytes": peaks}), cell=cell, calls=calls),
        of("peak", Timed(metrics={"active_share": 0.25, "peak_bytes": None}), cell=cell | {"s": 0.25}, calls=calls),
        of(
            "outputs",
            Timed(metrics={"active_share": 0.5, "output_errors": [1e-6, 2e-6, 0.0]}, measuring={"ran": "gathered"}),
            cell=cell,
            dtype="float32",
            executions=["auto", "gathered", "masked"],
        ),
        of("gradients", Timed(metrics={"gradient_errors": [[1e-7, 3e-7]]}), gradients=["x", "out.bias"]),
        of(
            "training",
            Timed(timings={"step": [0.01, 0.02, 0.03]}),
            Learned(metrics={"accuracy": 0.75}, ran={"gathered": 2}, history=[{"loss": 1.5}, {"loss": 0.5}]),
            method="full-mha",
        ),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for record in all_kinds():
        Store(tmp_path).save(record)
    return tmp_path


def shown(folder: Path) -> str:
    found, failed = load_measured(folder)
    return markdown([table for each in found for table in measured_tables(each, failed)])


def rows_of(text: str, start: str) -> list[list[str]]:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith(f"| {start} |")]


def test_the_tables_hold_what_was_measured(folder: Path) -> None:
    text = shown(folder)
    quarter, whole = rows_of(text, "(64, 64, 256, 8) | float32 | 0.25") + rows_of(
        text, "(64, 64, 256, 8) | float32 | 1.0"
    )
    assert quarter[3:10] == ["random", "0.250", "compiled", "1000.0", "300.0", "0.30", "1.20"]
    assert whole[8] == "1.00"
    (wide,), (narrow,) = rows_of(text, "bbc-topics | 256 | 0.25"), rows_of(text, "bbc-topics | 128 | 0.25")
    assert wide[4:] == ["40.0", "0.730", "1.000", "27.0", "30.0", "0.90", "0.80"]
    assert narrow[4:] == ["20.0", "1.100", "1.000", "-10.0", "15.0", "-0.67", "-1.33"]
    assert rows_of(text, "bbc-topics | 256 | training")[0][3:] == ["200.0", "BertModel", "0.800"]
    known, unknown = rows_of(text, "(64, 64, 256, 8) | 0.5") + rows_of(text, "(64, 64, 256, 8) | 0.25")
    assert known[2:] == ["12.0", "20.0", "18.0", "24.0", "0.60", "0.50", "0.75"]
    assert set(unknown[2:]) == {"--"}
    assert rows_of(text, "(64, 64, 256, 8) | float32 | 0.5")[0][6:] == ["1.00", "2.00", "0.00"]
    assert rows_of(text, "full-mha")[0][1:] == ["1.5000", "0.5000", "75.00", "20.00", "gathered"]
    assert "- Largest error of a gradient: 3.0e-07." in text
    assert "a processor, 2 cores, 2 threads, device cpu, machine m1. torch 2.13.0. Kernel: c++ 12." in text


def test_the_summary_has_the_worst_and_where(folder: Path) -> None:
    text = shown(folder)
    assert rows_of(text, "auto / bound, all cells")[0][1:] == ["1.216", "1.500", "(1, 64, 256, 8), s = 0.5, random"]
    assert rows_of(text, "auto / bound, B >= 8")[0][1:] == ["1.095", "1.200", "(64, 64, 256, 8), s = 0.25, random"]
    assert rows_of(text, "auto / full minus k / H, B >= 8, s <= 0.5")[0][1:3] == ["--", "0.050"]
    assert rows_of(text, "encoders: saved / allowed, D >= 256")[0][1:3] == ["0.900", "0.900"]
    # What saved nothing has no geometric mean, and does not end the report.
    assert rows_of(text, "encoders: saved / allowed, D < 256")[0][1:3] == ["--", "-0.667"]


def test_an_encoder_without_attention_that_is_no_faster_leaves_nothing_to_save(tmp_path: Path) -> None:
    Store(tmp_path).save(encoder(256, no=1.05, given=0.9, heads=0.9))
    (row,) = rows_of(shown(tmp_path), "bbc-topics | 256 | 0.25")
    assert row[9:] == ["--", "--"]


@pytest.mark.parametrize(
    "other",
    [
        {"machine_id": "m2"},
        {"versions": {"torch": "2.14.0"}},
        {"kernel": "no C++ compiler"},
        {"threads": 1},
    ],
)
def test_what_was_measured_in_another_way_stands_apart(other: dict[str, Any], tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(layer(0.25))
    store.save(layer(0.5, where=WHERE | other))
    (first, second), _ = load_measured(tmp_path)
    assert [len(each.records) for each in (first, second)] == [1, 1]
    assert first.title != second.title
    text = shown(tmp_path)
    assert text.count("## One layer (") == 2
    assert text.count("## Summary (") == 2


def test_all_formats_have_all_tables(folder: Path) -> None:
    (measured,), failed = load_measured(folder)
    tables = measured_tables(measured, failed)
    titles = {table.title for table in tables}
    assert len(titles) == 7
    assert {row[0] for row in csv.reader(io.StringIO(to_csv(tables)))} == titles | {"table"}
    assert latex_document(tables).count(r"\begin{table}") == 7


def test_the_command_writes_tables_and_the_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["execution", str(folder)]) == 0
    assert "| auto / bound, all cells" in capsys.readouterr().out
    names = {path.name for path in (folder / "report").iterdir()}
    assert names == {f"execution.{kind}" for kind in ("md", "tex", "csv")} | {
        f"break_even.{kind}" for kind in ("pdf", "png", "svg")
    }


def test_a_folder_without_measurements_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["execution", str(tmp_path)]) == 2
    assert "make some: python -m suites execution" in capsys.readouterr().err


def test_what_failed_is_named_once_and_is_no_way_of_its_own(folder: Path) -> None:
    broken = Record(
        question={"kind": "layer", "device": "cpu"},
        status="failed",
        error="RuntimeError: no memory\nat all",
        circumstance=WHERE | {"threads": 1},
    )
    Store(folder).save(broken)
    text = shown(folder)
    assert text.count(f"- layer {broken.id} failed: RuntimeError: no memory at all.") == 1
    assert "## One layer (" not in text


def test_a_folder_of_failures_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path).save(Record(question={"kind": "layer", "device": "cpu"}, status="failed", error="RuntimeError: no"))
    assert main(["execution", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "1 failed, such as layer" in line
    assert "RuntimeError: no; make some: python -m suites execution" in line

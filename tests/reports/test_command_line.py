import subprocess
import sys
from pathlib import Path

import pytest

from reports.__main__ import main
from reports.write import write_all
from tests.reports.records import golden_records, record, stored

FILES = {
    *("tables.md", "tables.tex", "tables.csv"),
    *("accuracy_versus_cost.pdf", "accuracy_versus_cost.png", "accuracy_versus_cost.svg"),
}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_all_prints_the_tables_and_then_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, *golden_records())
    assert main(["all", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "report" / "tables.md").read_text(encoding="utf-8"))
    assert names(tmp_path / "report") == FILES
    assert printed.splitlines()[-1] == str(tmp_path / "report" / "accuracy_versus_cost.svg")


def test_tables_and_figures_alone(tmp_path: Path) -> None:
    stored(tmp_path, record())
    assert main(["tables", str(tmp_path), "--out", str(tmp_path / "a")]) == 0
    assert main(["figures", str(tmp_path), "--out", str(tmp_path / "b")]) == 0
    assert names(tmp_path / "a") | names(tmp_path / "b") == FILES
    assert not names(tmp_path / "a") & names(tmp_path / "b")


def test_bad_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, record())
    (tmp_path / "trials" / "bad.json").write_text("{")
    assert main(["tables", str(tmp_path)]) == 0
    assert "reports: passed over" in capsys.readouterr().err
    assert "Passed over bad.json: " in (tmp_path / "report" / "tables.md").read_text(encoding="utf-8")


def test_where_everything_failed_there_are_tables_and_no_figure(tmp_path: Path) -> None:
    stored(tmp_path, record(error="boom"))
    text, paths = write_all(tmp_path, tmp_path / "report")
    assert "failed: boom" in text
    assert len(paths) == 3
    assert main(["figures", str(tmp_path)]) == 1


def test_machines_mix_in_figures_and_in_tables_that_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, record(), record("random-k", machine="m2"))
    assert main(["tables", str(tmp_path)]) == 2
    assert "machine m2" in capsys.readouterr().err
    assert main(["tables", str(tmp_path), "--allow-mixed"]) == 0
    assert main(["figures", str(tmp_path)]) == 0


@pytest.mark.parametrize("command", ["tables", "figures", "all"])
def test_a_missing_folder_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 2
    assert not (tmp_path / "nowhere").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reports: error: no records in")


def test_an_output_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, record())
    (tmp_path / "taken").touch()
    assert main(["tables", str(tmp_path), "--out", str(tmp_path / "taken")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reports: error: ")


def test_a_reader_that_leaves_does_no_harm(tmp_path: Path) -> None:
    stored(tmp_path, record())
    command = [sys.executable, "-m", "reports", "tables", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_nothing_imports_torch_and_help_imports_almost_nothing() -> None:
    check = (
        "import sys, reports.__main__\n"
        "assert not {'pandas', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "import reports.load, reports.tables, reports.render, reports.figures, reports.write\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", check], check=False).returncode == 0

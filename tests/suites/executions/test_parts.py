"""The lists of what is measured of the layer, and the two commands that go through them."""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from suites.__main__ import main
from suites.definitions.sources import ROOT
from suites.executions import parts
from suites.executions.correctness import TOLERANCES, GradientErrors, OutputErrors
from suites.executions.layers import CUDA_SHAPES, Cell, LayerTimes, Shape, cells
from suites.executions.lookup_training import METHODS, LookupTraining
from suites.executions.measurement import Answer, Measurement, run_measurement
from suites.executions.parts import PARTS, execution_jobs, gpu_jobs, telling_first
from suites.measuring.sharing import Share
from suites.records.record import Timed, question_id
from suites.records.store import Store

CELL = Cell(Shape(4, 8, 16, 2), 0.5, "random")


@dataclass(frozen=True, kw_only=True)
class Fake(Measurement):
    kind: ClassVar[str] = "fake"

    number: int
    fails: bool = False

    @property
    def title(self) -> str:
        return f"fake {self.number}"

    def measure(self) -> Answer:
        if self.fails:
            raise RuntimeError("it does not work")
        return Answer(Timed(timings={"auto": [1.0, 2.0, 3.0], "full": [2.0, 4.0, 6.0]}, measuring={"dtype": "float32"}))


def test_a_measurement_becomes_a_record_that_says_how_it_was_made() -> None:
    record, arrays, weights = run_measurement(Fake(number=1, device="cpu"), {"machine_id": "m"}, Share())
    assert (record.kind, record.status, arrays, weights) == ("fake", "done", None, b"")
    assert record.timed.measuring.keys() >= {"threads", "dtype", "attention_backend", "deterministic", "shared"}
    assert record.circumstance["threads"] == record.timed.measuring["threads"]


def test_every_part_has_its_jobs_and_all_are_different_questions() -> None:
    jobs = execution_jobs(PARTS, device="cpu", rounds=9, quick=False)
    kinds = [job.kind for job in jobs]
    assert {kind: kinds.count(kind) for kind in kinds} == {"layer": 6 * 13, "encoder": 6, "peers": 3, "peak": 10}
    assert len({question_id(job.question()) for job in jobs}) == len(jobs)
    assert {job.kind for job in execution_jobs(["memory"], device="cpu", rounds=9, quick=True)} == {"peak"}


def test_a_device_is_checked_first_and_timed_last() -> None:
    jobs = gpu_jobs(device="cuda", quick=False)
    order = list(dict.fromkeys(type(job) for job in jobs))
    assert order == [GradientErrors, OutputErrors, LookupTraining, LayerTimes]
    assert len(jobs) == 1 + 2 * len(cells(CUDA_SHAPES)) + len(METHODS) + 2 * len(cells(CUDA_SHAPES))
    assert {job.dtype for job in jobs if isinstance(job, LayerTimes)} == set(TOLERANCES)


def test_the_most_telling_cells_come_first() -> None:
    ordered = telling_first(cells(CUDA_SHAPES))
    assert len(set(ordered)) == len(ordered) == len(cells(CUDA_SHAPES))
    assert {cell.s for cell in ordered[: len(CUDA_SHAPES) * 6]} == {0.25, 0.5}
    assert {cell.shape for cell in ordered[:12]} == {Shape(256, 128, 768, 12), Shape(64, 512, 768, 12)}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second's work for both commands."""
    jobs = [
        GradientErrors(device="cpu"),
        OutputErrors(cell=CELL, dtype="bfloat16", device="cpu"),
        LayerTimes(cell=CELL, rounds=2, device="cpu"),
    ]
    monkeypatch.setattr(parts, "gpu_jobs", lambda **_: jobs)
    monkeypatch.setattr(parts, "execution_jobs", lambda *_, **__: jobs)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("command", [["gpu", "--device", "cpu"], ["execution"]])
def test_a_command_stores_records_prints_tables_and_goes_on(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--results", str(tmp_path)]) == 0
    shown = capfd.readouterr()
    assert "[3/3] times of layer 4x8x16x2, s = 0.5, random, float32: auto / full " in shown.err
    assert "| (4, 8, 16, 2) | float32 |" in shown.out
    assert "Largest error of a gradient: " in shown.out
    assert (tmp_path / "report" / "break_even.png").stat().st_size > 10_000
    assert {record.kind for record in Store(tmp_path).load().records.values()} == {"gradients", "outputs", "layer"}
    assert main([*command, "--results", str(tmp_path)]) == 0
    assert "[1/" not in capfd.readouterr().err  # nothing is measured twice


def test_what_fails_is_named_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [Fake(number=1, fails=True, device="cpu"), LayerTimes(cell=CELL, rounds=2, device="cpu")]
    monkeypatch.setattr(parts, "gpu_jobs", lambda **_: jobs)
    assert main(["gpu", "--device", "cpu", "--results", str(tmp_path)]) == 1
    shown = capfd.readouterr()
    assert "failed: fake 1: RuntimeError: it does not work" in shown.err
    assert "failed: RuntimeError: it does not work." in shown.out
    statuses = {record.kind: record.status for record in Store(tmp_path).load().records.values()}
    assert statuses == {"fake": "failed", "layer": "done"}


@pytest.mark.usefixtures("few")
def test_time_that_ends_is_told_and_the_next_run_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ask = ["gpu", "--device", "cpu", "--results", str(tmp_path)]
    assert main([*ask, "--minutes", "1e-9"]) == 1
    assert "suites: 2 measurements are left; the same command goes on with them" in capfd.readouterr().err
    assert main(ask) == 0
    assert "[2/2] " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu", "--minutes", "0"], "argument --minutes: must be a number above 0, not '0'"),
        (["gpu", "--minutes", "x"], "argument --minutes: must be a number above 0, not 'x'"),
        (["gpu", "--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["gpu", "--fast"], "unrecognized arguments: --fast"),
        (["gpu", "--device", "cpu", "--results", "file"], "file"),
        (["gpu", "--device", "cpu", "--results", "/proc/self/out"], "No such file or directory: '/proc/self/out"),
        (["execution", "--rounds", "0"], "'0' is no number of rounds"),
        (["execution", "--part", "grids"], "invalid choice: 'grids'"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    try:
        code = main(arguments)
    except SystemExit as stop:  # argparse's own refusals
        code = int(stop.code or 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert line.startswith("suites: error: ")
    assert said in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


ALONE = """
import runpy
import sys

refused, sys.argv = set(sys.argv[1].split(",")), sys.argv[1:]


class Finder:
    finders = sys.meta_path[:]

    def find_spec(self, name, path=None, target=None):
        # None, as of what is not there: torch asks so for what it could use, and an error would end it.
        if name.partition(".")[0] in refused:
            return None
        return next((spec for finder in self.finders if (spec := finder.find_spec(name, path, target))), None)


sys.meta_path[:] = [Finder()]
"""


def others() -> set[str]:
    """The modules of all that is installed here, but for what the check needs, what that needs, and this project."""
    needed = {"budgetformer"}
    missing = ["torch", "numpy", "psutil", "tqdm"]
    while missing:
        name = re.sub(r"[-_.]+", "-", missing.pop()).lower()
        if name not in needed:
            needed.add(name)
            try:
                required = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:  # for another system
                continue
            missing += [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    of_module = importlib.metadata.packages_distributions().items()
    return {
        module for module, names in of_module if not needed & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    }


def alone(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    refused = others()
    assert {"datasets", "tokenizers", "fvcore", "codecarbon", "sklearn", "pytest"} <= refused
    assert not {"torch", "numpy", "sympy", "psutil", "tqdm"} & refused
    command: Sequence[str] = [sys.executable, "-W", "error", "-c", ALONE + code, ",".join(refused), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_check_of_a_device_needs_little() -> None:
    ended = alone("import suites.executions.parts, suites.sweep.engine")
    assert ended.returncode == 0, ended.stderr
    ended = alone("import suites.data.tokenizing")
    assert "No module named 'datasets'" in ended.stderr


@pytest.mark.integration
def test_all_of_the_check_runs_without_the_rest(tmp_path: Path) -> None:
    # The report is another process, with libraries of its own.
    run = "import suites.commands.executions as c; c.report = lambda *_: 0; "
    run += "runpy.run_module('suites', run_name='__main__')"
    ended = alone(run, "gpu", "--device", "cpu", "--quick", "--results", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    kinds = [record.kind for record in Store(tmp_path).load().records.values()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"gradients": 1, "outputs": 26, "training": 2, "layer": 26}

"""The CUDA check, on a CPU: the same code, but for the clock."""

import importlib.metadata
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baselines.full_mha import FullMHA
from budgetformer.adaptive import BudgetFormer
from budgetformer.execution import EXECUTIONS, masked
from suites.definitions.sources import ROOT
from suites.executions import cuda as gpu
from suites.executions import grid
from suites.executions.cuda import Extent, Job, by_events, lookup_task, main, telling_first, time_cell, train_one, until
from suites.executions.grid import CUDA_SHAPES, Bench, Cell, Shape, cells, prepare

SHAPE = Shape(4, 8, 16, 2)
CELLS = [Cell(SHAPE, 0.5, "random"), Cell(SHAPE, 1.0, "random")]
TRAINED = {
    "method": "some-method",
    "loss_before": 1.5,
    "loss_after": 0.5,
    "accuracy": 0.75,
    "seconds_per_step": 0.01,
    "ran": {"gathered": 2},
    "history": [],
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a second."""
    monkeypatch.setattr(gpu, "QUICK", Extent(CELLS, rounds=2, train_rows=120, epochs=1))
    monkeypatch.setattr(gpu, "lookup_task", lambda _: None)
    monkeypatch.setattr(gpu, "train_one", lambda *_: TRAINED)


def check(out: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    code = main(["--device", "cpu", "--quick", "--out", str(out), *more])
    return code, json.loads((out / "gpu.json").read_text()), (out / "gpu.md").read_text()


@pytest.mark.usefixtures("small")
def test_a_check_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report, text = check(tmp_path / "out")
    assert code == 0
    assert report["failed"] == report["tracebacks"] == []
    assert report["header"]["torch"] == torch.__version__
    assert report["header"]["gpu"] is None
    assert report["training"] == [TRAINED, TRAINED]
    assert [row["dtype"] for row in report["cells"]] == ["bfloat16", "float32"] * 2
    for row in report["cells"]:
        assert row["shape"] == SHAPE._asdict()
        assert row["errors"].keys() == {"auto", "gathered", "masked"}
        assert row["ran"] in EXECUTIONS
        assert all(len(times) == 2 for times in row["samples"].values())
        assert {"auto", "full", "gathered", "masked", "bound"} <= row["samples"].keys() == row["seconds"].keys()
        assert {"auto / full", "auto / bound", "gathered / masked"} <= row["ratios"].keys()
    exact = [row["errors"]["masked"] for row in report["cells"] if row["dtype"] == "float32"]
    assert exact == [0, 0]
    assert {"gathered x", "auto qkv.weight", "gathered out.bias"} <= report["gradients"].keys()
    shown = capsys.readouterr()
    assert shown.out == text + "\n"
    assert shown.err == ""
    assert "- Checked: 4 of 4 cells; timed: 4 of 4." in text
    assert "| some-method | 1.5000 | 0.5000 | 75.00 | 10.00 | gathered |" in text
    assert len(re.findall(r"^\| 4x8x16x2 \| (?:bfloat16|float32) \| ", text, re.MULTILINE)) == 4
    assert "--" not in text.replace("---", "").replace("capability --", "")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wrong", [1.0, math.nan])
def test_a_wrong_execution_is_named_with_its_cell(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any) -> Tensor:
        return masked(*arguments) + wrong

    monkeypatch.setitem(EXECUTIONS, "gathered", broken)
    code, report, text = check(tmp_path)
    assert code == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(report["failed"]) == 4 + 5  # cells, and gradients of the input and four parameters
    assert any(
        line.startswith("suites.executions.cuda: 4x8x16x2 float32 s=0.5 random: gathered is wrong") for line in said
    )
    assert any(line.startswith("suites.executions.cuda: gradients: gathered x is wrong") for line in said)
    assert text.count("**Failed: ") == 9
    assert "timed: 4 of 4." in text


@pytest.mark.usefixtures("small")
def test_what_cannot_run_is_named_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(job: Job, device: str, rounds: int) -> dict[str, Any]:
        if job.dtype == torch.float32:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return time_cell(job, device, rounds)

    monkeypatch.setattr(gpu, "time_cell", no_memory)
    code, report, text = check(tmp_path)
    assert code == 1
    last = "suites.executions.cuda: 4x8x16x2 float32 s=1.0 random: OutOfMemoryError: CUDA out of memory."
    assert capsys.readouterr().err.splitlines()[-1] == last
    assert len(report["failed"]) == len(report["tracebacks"]) == 2
    assert "Tried to allocate" in report["tracebacks"][0]
    assert "Checked: 4 of 4 cells; timed: 2 of 4." in text
    assert re.search(r"^\| 4x8x16x2 \| float32 \| 0.5 \|.* \| -- \| -- \|$", text, re.MULTILINE)


@pytest.mark.usefixtures("small")
def test_time_that_ends_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, text = check(tmp_path, "--minutes", "1e-9")
    assert code == 1
    assert (
        capsys.readouterr().err
        == "suites.executions.cuda: only 0 of 4 cells were checked; --minutes gives it more time\n"
    )
    assert "- Checked: 0 of 4 cells; timed: 0 of 4." in text


@pytest.mark.usefixtures("small")
def test_what_was_found_is_kept_when_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "time_cell", stop)
    code, report, text = check(tmp_path)
    assert code == 1
    assert report["failed"] == ["stopped before its end"]
    assert "- Checked: 4 of 4 cells; timed: 0 of 4." in text


def test_progress_tells_the_time_left_and_ends_with_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    work: list[tuple[Job, dict[str, Any]]] = [(Job(CELLS[0], torch.float32), {}) for _ in range(10)]
    done = 0
    for _ in until(118.0, "timing", work):
        done += 1
        now += 4.0
    assert done == 5  # the last one begins at 116 s
    assert capsys.readouterr().err == "timing: 2 of 10, 10 s left\ntiming: 4 of 10, 2 s left\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu", "--minutes", "0"], "argument --minutes: must be a number above 0, not '0'"),
        (["--device", "cpu", "--minutes", "x"], "argument --minutes: must be a number above 0, not 'x'"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--device", "cpu", "--out", "file"], "--out file: File exists"),
        (["--device", "cpu", "--out", "/proc/self/out"], "--out /proc/self/out: No such file or directory"),
        pytest.param(
            ["--device", "cuda"],
            f"--device cuda: torch {torch.__version__} cannot use it (",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
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
    assert line.startswith(f"suites.executions.cuda: error: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_most_telling_cells_come_first() -> None:
    jobs = telling_first(cells(CUDA_SHAPES))
    assert len(set(jobs)) == len(jobs) == 2 * len(cells(CUDA_SHAPES))
    assert {job.cell.s for job in jobs[: len(CUDA_SHAPES) * 12]} == {0.25, 0.5}
    assert {job.cell.shape for job in jobs[:24]} == {Shape(256, 128, 768, 12), Shape(64, 512, 768, 12)}
    assert [job.dtype for job in jobs[:2]] == [torch.bfloat16, torch.float32]


class Event:
    """A CUDA event on a device whose clock, in ms, is moved by the calls."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = math.nan
        self.over = False

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        self.over = True

    def elapsed_time(self, end: "Event") -> float:
        assert end.over
        return end.at - self.at


def work_of(ms: float) -> Callable[[], None]:
    def work() -> None:
        Event.now += ms

    return work


def test_events_time_the_rounds_without_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.Event", Event)
    first = iter([1000.0])  # the call that loads its kernels

    def slow_at_first() -> None:
        Event.now += next(first, 5.0)

    samples = by_events({"a": work_of(2.0), "b": slow_at_first}, device="cpu", rounds=3, warmup_s=0)
    assert samples == {"a": pytest.approx([0.002] * 3), "b": pytest.approx([0.005] * 3)}


def test_on_cuda_a_cell_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_cpu(cell: Cell, device: str, dtype: torch.dtype) -> Bench:
        assert device == "cuda"
        return prepare(cell, "cpu", dtype)

    waits: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.accelerator.synchronize", waits.append)
    monkeypatch.setattr(grid, "prepare", on_cpu)
    monkeypatch.setattr(grid, "gathered", lambda *_: work_of(3.0)())
    monkeypatch.setattr(grid, "masked", lambda layer, x_BTD, *_: work_of(4.0)() or x_BTD)
    monkeypatch.setattr(grid, "ratio", lambda *_: 0.75)  # the other calls take no time by this clock
    row = time_cell(Job(CELLS[0], torch.float32), "cuda", 2)
    assert row["samples"]["gathered"] == pytest.approx([0.003, 0.003])
    assert row["seconds"]["masked"] == pytest.approx(0.004)
    assert row["ratios"]["gathered / masked"] == pytest.approx(0.75)
    assert set(waits) == {torch.device("cuda")}


def test_lookup_is_encoded_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "NUM_EVALUATED", 120)
    data = lookup_task(240)
    assert (data.vocab_size, data.num_classes) == (2 + 12 + 12 * 4, 4)
    splits = (data.train, data.validation, data.test)
    assert [len(split) for split in splits] == [240, 120, 120]
    assert len(set(np.concatenate([split.ids for split in splits]))) == 480
    for split in splits:
        assert np.bincount(split.labels).tolist() == [len(split) / 4] * 4
        assert {tokens[0] for tokens in split.tokens} == {1}
        assert min(tokens[1:].min() for tokens in split.tokens) == 2
        assert split.difficulty is not None
        assert (split.lengths == 1 + 12 + split.difficulty).all()


@pytest.mark.parametrize("method", [FullMHA(), BudgetFormer()])
def test_training_is_real(method: FullMHA | BudgetFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "NUM_EVALUATED", 120)
    trained = train_one(method, lookup_task(120), "cpu", 4)
    assert trained["method"] == method.name
    assert trained["loss_after"] < trained["loss_before"] < 2
    assert len(trained["history"]) == 4
    assert 0 < trained["seconds_per_step"] < 10
    assert trained["ran"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_a_loss_that_does_not_fall_is_named(
    before: float, after: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "train_one", lambda *_: TRAINED | {"loss_before": before, "loss_after": after})
    code, report, _ = check(tmp_path)
    assert code == 1
    assert report["failed"] == [f"training {name}: the loss has not fallen" for name in ("full-mha", "budgetformer")]


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
    """The modules of all that is installed here, but for torch, numpy, what they need, and this project."""
    needed = {"budgetformer"}
    missing = ["torch", "numpy"]
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
    assert {"datasets", "tokenizers", "psutil", "tqdm", "pytest"} <= refused
    assert not {"torch", "numpy", "sympy"} & refused
    command: Sequence[str] = [sys.executable, "-W", "error", "-c", ALONE + code, ",".join(refused), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_it_needs_torch_and_numpy_alone() -> None:
    ended = alone("import suites.executions.cuda")
    assert ended.returncode == 0, ended.stderr
    ended = alone("import suites.data.tokenizing")
    assert "No module named 'datasets'" in ended.stderr


@pytest.mark.integration
def test_all_of_it_runs_with_torch_and_numpy_alone(tmp_path: Path) -> None:
    ended = alone(
        "runpy.run_module('suites.executions.cuda', run_name='__main__')",
        "--device",
        "cpu",
        "--quick",
        "--out",
        str(tmp_path),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (tmp_path / "gpu.md").read_text() + "\n"

"""The same search of a learning rate for every method."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from baselines.full_mha import FullMHA
from baselines.random_k import RandomK
from budgetformer.method import Method
from suites.__main__ import main
from suites.definitions.catalog import SUITES
from suites.definitions.suite import Suite
from suites.measuring.energy import WORLD
from suites.measuring.sharing import Share
from suites.records.record import question_id
from suites.records.store import Store
from suites.sweep import stages
from suites.sweep.planning import Options, make_plan
from suites.sweep.stages import data_of, run_trial
from suites.sweep.trial import Trial
from suites.sweep.tuning import TUNING_SEED, Choice, read_factors, search_points, tuning_trials
from tests.suites.sweep.test_engine import Broken, make_suite, measure_hardly_at_all

FACTORS = {"suite": "tiny", "factors": {"bbc-topics": {"full-mha": 2.0}}}


def tiny() -> Suite:
    return make_suite(FullMHA(), RandomK())


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tiny`` can be asked for by name; to train is quick and to measure too."""
    monkeypatch.setitem(SUITES, "tiny", tiny)
    measure_hardly_at_all(monkeypatch)


@pytest.mark.parametrize(
    ("num", "expected"),
    [(1, [1.0]), (2, [0.25, 1]), (4, [0.25, 0.5, 1, 2]), (3, [0.25, 1, 4]), (5, [0.25, 0.5, 1, 2, 4])],
)
def test_search_points_are_known(num: int, expected: list[float]) -> None:
    assert search_points(num) == expected


@pytest.mark.parametrize("num", range(2, 12))
def test_search_points_are_equally_spaced_in_their_logarithm(num: int) -> None:
    points = search_points(num)
    assert (len(points), points[0]) == (num, 0.25)
    assert [b / a for a, b in pairwise(points)] == pytest.approx([4 ** (1 / (num // 2))] * (num - 1))
    assert 1.0 in points
    assert (points[-1] == 4) is (num % 2 == 1)


@pytest.mark.parametrize(
    ("accuracies", "factor", "at_end"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.2], 2, False),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 4, True),
        ([0.5, 0.4, None, None, None], 0.25, True),
        ([0.5, 0.5, 0.4, 0.5, 0.5], 0.5, False),  # as near to 1 as 2 is, and slower
        ([0.5, 0.5, 0.5, 0.5, 0.5], 1, False),
        ([0.1, None, 0.3, 0.3, None], 1, False),
        ([None, None, None, None, None], 1, False),
    ],
)
def test_the_best_validation_accuracy_chooses(accuracies: list[float | None], factor: float, at_end: bool) -> None:
    choice = Choice("task", "method", dict(zip(search_points(5), accuracies, strict=True)))
    assert (choice.factor, choice.at_end) == (factor, at_end)
    assert choice.failed is (set(accuracies) == {None})


def test_one_point_is_at_no_end() -> None:
    assert not Choice("task", "method", {1.0: 0.5}).at_end


def test_every_method_is_trained_at_the_same_points_with_a_seed_of_no_suite() -> None:
    trials = tuning_trials(tiny(), Options(), [0.5, 1.0, 2.0])
    assert [(trial.method.name, trial.lr_scale) for trial in trials] == [
        (name, factor) for name in ("full-mha", "random-k") for factor in (0.5, 1.0, 2.0)
    ]
    assert {(trial.seed, trial.tuning) for trial in trials} == {(TUNING_SEED, True)}
    assert all(TUNING_SEED not in make().seeds for make in SUITES.values())


def test_a_factor_and_tuning_are_part_of_the_question_and_a_factor_of_the_label() -> None:
    (plain,) = make_plan(make_suite(RandomK(s=0.5)), Options())
    scaled, tuning = replace(plain, lr_scale=2.0), replace(plain, tuning=True)
    assert scaled.question()["method"]["lr_scale"] == 2
    assert scaled.question()["method"]["label"] == "random-k(s=0.5, lr x2)"
    assert scaled.title == "bbc-topics, random-k(s=0.5, lr x2), seed 0"
    assert tuning.question()["tuning"] is True
    assert len({question_id(trial.question()) for trial in (plain, scaled, tuning)}) == 3


def tuned(method: Method, factor: float = 1.0) -> Trial:
    (trial,) = tuning_trials(make_suite(method), Options(), [factor])
    return trial


def test_the_factor_is_on_the_recipes_peak_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def train(*_: object, recipe: Any, **__: object) -> list[dict[str, float]]:
        rates.append(recipe.lr)
        return [{"validation_accuracy": 0.5}]

    monkeypatch.setattr(stages, "train", train)
    for factor in (0.25, 1.0, 4.0):
        run_trial(tuned(FullMHA(), factor), {}, Share(), electricity=WORLD)
    assert rates == [2.5e-4, 1e-3, 4e-3]


def test_a_tuning_trial_does_not_look_at_the_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = replace(data_of(tuned(FullMHA())), test=None)  # type: ignore[arg-type]
    monkeypatch.setattr(stages, "data_of", lambda trial: blind)
    record, arrays, weights = run_trial(tuned(FullMHA()), {}, Share(), electricity=WORLD)
    assert record.metrics == {"validation_accuracy": record.learned.history[-1]["validation_accuracy"]}
    assert [entry["epoch"] for entry in record.learned.history] == [1, 2]
    assert (record.status, arrays, weights) == ("done", None, b"")


@pytest.mark.usefixtures("suite")
def test_tune_chooses_writes_and_goes_on_and_run_uses_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "tiny"
    ask = ["tune", "tiny", "--trials", "3", "--results", str(results), "--jobs", "1"]
    assert main(ask) == 0
    first = capfd.readouterr()
    records = Store(results / "tuning", create=False).load().records.values()
    assert len(records) == 6
    content = json.loads((results / "tuned.json").read_text())
    assert content.keys() == {"suite", "seed", "points", "factors", "accuracies"}
    assert (content["suite"], content["seed"], content["points"]) == ("tiny", TUNING_SEED, [0.25, 1, 4])
    assert content["factors"].keys() == {"bbc-topics"}
    for name, factor in content["factors"]["bbc-topics"].items():
        reached = {
            record.question["method"].get("lr_scale", 1.0): record.metrics["validation_accuracy"]
            for record in records
            if record.question["method"]["name"] == name
        }
        assert reached[factor] == max(reached.values())
        cells = " ".join(f"| {100 * reached[point]:.2f}" for point in (0.25, 1, 4))
        row = next(line for line in first.out.splitlines() if f"| {name} " in line)
        assert " ".join(row.split()) == f"| bbc-topics | {name} {cells} | x{factor:g} |"
    assert not (results / "trials").exists()
    assert "[1/6] bbc-topics, full-mha(lr x0.25), seed 1000003: validation accuracy 0." in first.err

    assert main(ask) == 0
    again = capfd.readouterr()
    assert again.out == first.out
    assert "0 trials run, 6 had a result already" in again.err

    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(FACTORS))
    use = ["run", "tiny", "--tuned", str(file), "--results", str(results), "--jobs", "1"]
    assert main(use) == 0
    shown = capfd.readouterr().err
    assert shown.count("has no factor") == 1
    assert f"suites: {file} has no factor for bbc-topics, random-k; kept at 1" in shown.splitlines()
    labels = {record.method: record.question["method"] for record in Store(results).load().records.values()}
    assert labels.keys() == {"full-mha(lr x2)", "random-k"}
    assert labels["full-mha(lr x2)"]["lr_scale"] == 2
    assert main([*use, "--rerun", "never"]) == 0
    assert "0 trials run, 2 had a result already" in capfd.readouterr().err


@pytest.mark.usefixtures("suite")
def test_a_method_that_fails_everywhere_keeps_its_rate_and_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUITES, "tiny", lambda: make_suite(Broken(), FullMHA()))
    assert main(["tune", "tiny", "--trials", "1", "--results", str(tmp_path), "--jobs", "1"]) == 1
    shown = capfd.readouterr()
    assert "suites: all points failed, the factor stays 1: bbc-topics, broken" in shown.err.splitlines()
    assert " ".join(shown.out.split()).count("| bbc-topics | broken | failed | x1 |") == 1
    assert read_factors(tmp_path / "tuned.json")[1] == {"bbc-topics": {"broken": 1.0, "full-mha": 1.0}}


@pytest.mark.usefixtures("suite")
def test_a_failed_point_is_not_chosen_and_an_end_of_the_range_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(_: object, method: Method, *__: object, recipe: Any, **___: object) -> list[dict[str, float]]:
        if method.name == "full-mha" and recipe.lr > 1e-3:
            raise FloatingPointError("too much")
        return [{"validation_accuracy": recipe.lr}]

    monkeypatch.setattr(stages, "train", train)
    assert main(["tune", "tiny", "--trials", "3", "--results", str(tmp_path), "--jobs", "1"]) == 0
    shown = capfd.readouterr()
    assert "failed: bbc-topics, full-mha(lr x4), seed 1000003: FloatingPointError: too much" in shown.err
    assert read_factors(tmp_path / "tuned.json") == ("tiny", {"bbc-topics": {"full-mha": 1.0, "random-k": 4.0}})
    (line,) = (line for line in shown.err.splitlines() if "end of the range" in line)
    assert line == "suites: best at an end of the range, which may be too small: bbc-topics, random-k (x4)"


@pytest.mark.usefixtures("suite")
def test_a_plan_shows_the_factors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuned.json"
    ask = ["plan", "tiny", "--results", str(tmp_path / "none"), "--tuned", str(file), "--seeds", "2"]
    file.write_text(json.dumps(FACTORS | {"suite": "other"}))
    assert main(ask) == 2
    assert "is of suite other; python -m suites tune tiny makes one" in capfd.readouterr().err
    file.write_text(json.dumps(FACTORS | {"factors": {"snli": {}}}))
    assert main(ask) == 0
    assert capfd.readouterr().err.splitlines() == [f"suites: {file} has no factor for bbc-topics; kept at 1"]
    file.write_text(json.dumps(FACTORS))
    assert main([*ask, "--method", "full-mha"]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[:-1] == [f"missing  bbc-topics, full-mha(lr x2), seed {seed}" for seed in (0, 1)]


def wrong(factor: object) -> str:
    return json.dumps({"suite": "tiny", "factors": {"bbc-topics": {"full-mha": factor}}})


@pytest.mark.parametrize(
    "content",
    ["", "tuned", "[]", "{}", '{"suite": "tiny", "factors": []}', '{"suite": "tiny", "factors": {"bbc-topics": 1}}']
    + [wrong(factor) for factor in ("2", 0, -1, True, None, float("nan"), float("inf"))],
)
@pytest.mark.usefixtures("suite")
def test_a_bad_file_of_factors_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(content)
    results = tmp_path / "results"
    assert main(["run", "tiny", "--results", str(results), "--tuned", str(file)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"suites: error: {file} was not written by python -m suites tune: ")
    assert not results.exists()


@pytest.mark.usefixtures("suite")
def test_a_missing_file_of_factors_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tiny", "--tuned", str(tmp_path / "none.json")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert str(tmp_path / "none.json") in line

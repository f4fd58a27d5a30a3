"""Whole trials on a small cut of real text."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from baselines.full_mha import FullMHA
from baselines.random_k import RandomK
from baselines.static_pruning import StaticPruning
from budgetformer.adaptive import BudgetFormer
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import ConstantGates, RandomHeads
from budgetformer.method import Method
from suites.definitions.catalog import CORE
from suites.definitions.recipe import Recipe
from suites.definitions.registry import METHODS
from suites.definitions.suite import Sizes, Suite, TaskUse
from suites.measuring.controls import CONTROLS
from suites.measuring.energy import WORLD
from suites.records import formulas
from suites.records.metrics import METRICS
from suites.records.record import Record
from suites.records.store import Store
from suites.sweep import engine
from suites.sweep.planning import Options, make_plan
from suites.sweep.stages import measure_again, run_trial
from suites.sweep.trial import Trial

TASK = TaskUse(
    name="bbc-topics",
    max_length=16,
    recipe=Recipe(epochs=2, batch_size=16),
    train_limit=60,
    test_limit=45,
    vocab_size=600,
)
SIZES = Sizes(width=32, num_heads=4)
ALL = tuple(method() for method in METHODS.values())


@dataclass(frozen=True, kw_only=True)
class Broken(Method):
    """Fails in the middle of training."""

    name: ClassVar[str] = "broken"

    def on_step(self, model: Encoder, progress: float, *_: object) -> None:
        if progress > 0.5:
            raise RuntimeError("out of order")


@dataclass(frozen=True, kw_only=True)
class Deadly(Method):
    """Takes its process with it, as the kernel does when memory is short."""

    name: ClassVar[str] = "deadly"

    def on_step(self, model: Encoder, progress: float, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Mixed(Method):
    """Constant heads in one layer, random ones per input in the other."""

    name: ClassVar[str] = "mixed"

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        constant = ConstantGates([1.0, 0.0, 1.0, 0.0])
        return nn.ModuleList([constant, RandomHeads(spec.num_heads, 0.25, generator)])


def make_suite(*methods: Method) -> Suite:
    return Suite(name="tiny", summary="", tasks=(TASK,), methods=methods, seeds=(0,), sizes=SIZES)


def plan(*methods: Method) -> list[Trial]:
    return make_plan(make_suite(*methods), Options())


def measure_hardly_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.measuring.consumption.WINDOW_S", 0.0)
    monkeypatch.setattr("suites.measuring.consumption.LEAST_PASSES", 2)
    monkeypatch.setattr("suites.measuring.consumption.NUM_LENGTHS", 1)
    monkeypatch.setattr("suites.sweep.engine.IDLE_S", 0.0)
    monkeypatch.setattr("suites.measuring.latency.DISTINCT_SINGLES", 1)
    monkeypatch.setattr("suites.measuring.latency.DISTINCT_BATCHES", 1)
    monkeypatch.setattr("suites.measuring.latency.B1_PASSES", (2, 2))
    monkeypatch.setattr("suites.measuring.latency.B32_PASSES", (2, 2))
    nothing = dict.fromkeys(("memory_inference_bytes", "memory_training_bytes"))
    monkeypatch.setattr("suites.sweep.stages.measure_footprint", lambda *_, **__: nothing)


def run(trials: Sequence[Trial], store: Store, **options: Any) -> engine.Outcome:
    return engine.run(trials, partial(run_trial, electricity=WORLD), store, **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """All methods, those of ``CORE`` with all that is measured."""
    store = Store(tmp_path_factory.mktemp("results"))
    outcome = run(plan(*CORE), store)
    assert (outcome.ran, outcome.reused, outcome.failed) == (5, 0, [])
    with pytest.MonkeyPatch.context() as monkeypatch:
        measure_hardly_at_all(monkeypatch)
        outcome = run(plan(*ALL), store)
    assert (outcome.ran, outcome.reused, outcome.failed) == (len(ALL) - 5, 5, [])
    return store


CONSTANT = (
    "layer-drop", "random-subset", "static-pruning", "l0-gates", "subset-pruning", "budgeted-gates",
)  # fmt: skip


@pytest.fixture(scope="module")
def records(store: Store) -> dict[str, Record]:
    return {record.method: record for record in store.load().records.values()}


def test_every_metric_is_there_for_every_method(records: dict[str, Record]) -> None:
    for record in records.values():
        assert record.metrics.keys() == METRICS.keys()
        for key, value in record.metrics.items():
            # There may be no known difficulty, no budget, no trace of a data-dependent route, no energy above that of
            # the idle machine, no gates that learn or choose by the input, no energy of a window that is too short, no
            # 99th percentile of so few batches.
            may_be_none: tuple[str, ...] = (
                "s_mean",
                "macs_traced",
                "paper",
                "accuracy_",
                "heads_executed_per_diff",
                "train_energy_above_idle",
                "inference_energy_above_idle",
                "latency_b32_p99",
            )
            if record.method not in {method.name for method in CORE}:
                may_be_none += ("train_energy", "train_co2", "inference_energy", "inference_co2", "memory_", "latency_")
            assert value is not None or key.startswith(may_be_none)


@pytest.mark.usefixtures("hasty")
def test_layers_of_two_kinds_run_each_in_its_way(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert run(plan(Mixed()), store).failed == []
    (record,) = store.load().records.values()
    assert record.learned.execution == "gathered+sliced"
    assert record.metrics["heads_executed_per_layer"] == [0.5, 0.25]
    assert record.metrics["accuracy_shuffled"] is not None


def test_a_choice_per_input_is_tried_without_it(records: dict[str, Record], store: Store) -> None:
    per_input = [name for name, record in records.items() if record.metrics["accuracy_shuffled"] is not None]
    assert {"random-k", "mixture-of-heads"} <= set(per_input) <= {
        "random-k", "mixture-of-heads", "budgetformer", "budgetformer-st",
    }  # fmt: skip
    for name, record in records.items():
        arrays = store.arrays(record)
        for control in CONTROLS:
            accuracy = record.metrics[f"accuracy_{control}"]
            if control != "mean_k":
                assert (accuracy is not None) is (name in per_input)
            if accuracy is not None:
                assert accuracy == (arrays[f"prediction_{control}"] == arrays["label"]).mean()
    assert records["random-k"].metrics["accuracy_mean_k"] is None  # its k is the same for every input


def test_what_is_trained_softly_is_tested_so_too(records: dict[str, Record]) -> None:
    learned = {name for name, record in records.items() if record.metrics["accuracy_as_trained"] is not None}
    assert learned == {
        "l0-gates", "subset-pruning", "budgeted-gates", "mixture-of-heads", "budgetformer", "budgetformer-st",
    }  # fmt: skip
    for name in ("mixture-of-heads", "budgetformer-st"):  # the same gates in both phases
        assert records[name].metrics["accuracy_as_trained"] == records[name].metrics["accuracy"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process."""
    measure_hardly_at_all(monkeypatch)


def compare(again: Store, store: Store, records: dict[str, Record]) -> None:
    for key, record in again.load().records.items():
        if record.status == "failed":
            continue
        first = records[record.method]
        assert key == first.id
        assert record.learned.history == first.learned.history
        assert record.learned.metrics == first.learned.metrics
        arrays, before = again.arrays(record), store.arrays(first)
        assert arrays.keys() == before.keys()
        assert all(np.array_equal(arrays[name], before[name]) for name in arrays)


@pytest.mark.usefixtures("hasty")
def test_the_same_trials_again_give_the_same_numbers(store: Store, records: dict[str, Record], tmp_path: Path) -> None:
    again = Store(tmp_path)
    outcome = run(plan(*ALL), again)
    assert (outcome.ran, outcome.failed) == (len(ALL), [])
    compare(again, store, records)


def test_two_workers_give_the_same_numbers_and_go_on_after_a_failure(
    store: Store, records: dict[str, Record], tmp_path: Path
) -> None:
    again = Store(tmp_path)
    outcome = run(plan(Broken(), BudgetFormer(), RandomK()), again, workers=2)
    assert outcome.ran == 3
    assert outcome.failed == ["bbc-topics, broken, seed 0: RuntimeError: out of order"]
    assert len(again.load().records) == 3
    compare(again, store, records)


def test_executions_are_what_each_method_allows(records: dict[str, Record]) -> None:
    assert {name: record.learned.execution for name, record in records.items()} == {
        "full-mha": "dense",
        "no-attention": "sliced",
        "random-k": "gathered",
        "mixture-of-heads": "gathered",
        "budgetformer": "gathered",
        "budgetformer-st": "gathered",
    } | dict.fromkeys(CONSTANT, "sliced")


def test_heads_and_parameters(records: dict[str, Record]) -> None:
    heads = {name: record.metrics["heads_executed"] for name, record in records.items()}
    assert heads["full-mha"] == 1
    assert heads["no-attention"] == 0
    told = ("random-k", "random-subset", "static-pruning", "subset-pruning", "budgeted-gates", "mixture-of-heads")
    assert {heads[name] for name in told} == {0.25}
    assert heads["layer-drop"] == 0.5
    s_mean = {name: record.metrics["s_mean"] for name, record in records.items()}
    assert s_mean["full-mha"] is s_mean["no-attention"] is None
    assert {s_mean[name] for name in (*told, "l0-gates")} == {0.25}
    full, pruned = records["full-mha"].metrics, records["static-pruning"].metrics
    # a head's Q, K and V with biases and its part of the output product, 3 of 4 heads in 2 layers
    per_head = 3 * 8 * (32 + 1) + 8 * 32
    assert full["num_parameters"] - pruned["num_parameters_inference"] == 2 * 3 * per_head


def test_what_ran_agrees_with_the_closed_forms(records: dict[str, Record]) -> None:
    full = records["full-mha"].metrics
    assert full["macs_executed"] == full["macs_full"]
    assert full["macs_traced"] == formulas.model_macs(
        16, width=32, ffn_width=128, heads=[4, 4], head_width=8, num_classes=5
    )
    for name in ("no-attention", "random-k", *CONSTANT):
        ours = records[name].metrics
        saved = full["macs_attention_block"] - ours["macs_attention_block"]
        assert ours["macs_executed"] == pytest.approx(full["macs_executed"] - saved, rel=1e-9)
    ours = records["budgetformer"].metrics
    controllers = 2 * (32 * 16 + 16 + 32 * 4)
    saved = full["macs_attention_block"] - ours["macs_attention_block"]
    assert ours["macs_executed"] == pytest.approx(full["macs_executed"] - saved + controllers, rel=1e-9)


def test_arrays_hold_every_test_input(store: Store, records: dict[str, Record]) -> None:
    for record in records.values():
        arrays = store.arrays(record)
        assert {len(array) for array in arrays.values()} == {45}
        assert float((arrays["prediction"] == arrays["label"]).mean()) == record.metrics["accuracy"]
        assert arrays["k"].mean() / 4 == pytest.approx(record.metrics["heads_executed"])
        active = np.unpackbits(arrays["active"], axis=2, bitorder="little", count=4)
        assert (active.sum(axis=2) == arrays["k"]).all()
        assert ("s" in arrays) is (record.metrics["s_mean"] is not None)


def test_energy_says_where_it_comes_from(records: dict[str, Record]) -> None:
    for record in records.values():
        for phase in ("train", "inference"):
            assert record.timed.energy[phase]["intensity_source"]
            assert record.timed.energy[phase]["components"]["cpu"]["source"] in ("measured", "estimated", "unavailable")
    for method in CORE:
        record = records[method.name]
        kwh, co2 = record.metrics["inference_energy_kwh"], record.metrics["inference_co2_g"]
        assert co2 == pytest.approx(kwh * record.timed.energy["inference"]["intensity_g_per_kwh"])


def test_a_second_run_runs_nothing(store: Store) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.trials.iterdir()}
    outcome = run(plan(*ALL), store)
    assert (outcome.ran, outcome.reused, outcome.stale) == (0, len(ALL), 0)
    assert {path: path.stat().st_mtime_ns for path in store.trials.iterdir()} == before


@pytest.mark.usefixtures("hasty")
def test_a_failure_is_a_record_and_the_sweep_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    outcome = run(plan(Broken(), FullMHA()), store)
    assert outcome.failed == ["bbc-topics, broken, seed 0: RuntimeError: out of order"]
    assert sorted(record.status for record in store.load().records.values()) == ["done", "failed"]
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("[1/2] bbc-topics, broken, seed 0: failed, RuntimeError: out of order")
    assert shown[1].startswith("[2/2] bbc-topics, full-mha, seed 0: accuracy 0.")
    assert run(plan(Broken(), FullMHA()), store).ran == 1
    assert run(plan(Broken(), FullMHA()), store, rerun="never").ran == 0


@pytest.mark.usefixtures("hasty")
def test_a_failure_never_takes_the_place_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    engine.run(plan(FullMHA()), partial(run_trial, electricity=WORLD, keep_weights=True), store)
    before = {path: path.read_bytes() for path in store.trials.iterdir()}
    assert len(before) == 3

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("suites.sweep.stages.train", broken)
    outcome = run(plan(FullMHA()), store, rerun="always")
    assert outcome.failed == ["bbc-topics, full-mha, seed 0: RuntimeError: no luck"]
    assert {path: path.read_bytes() for path in store.trials.iterdir()} == before


def test_what_cannot_be_prepared_leaves_everything_as_it_was(tmp_path: Path) -> None:
    def refuse(missing: Sequence[Trial]) -> None:
        raise ValueError(f"no texts for {len(missing)}")

    with pytest.raises(ValueError, match=r"^no texts for 1$"):
        run(plan(FullMHA()), Store(tmp_path / "results", create=False), prepare=refuse)
    assert not (tmp_path / "results").exists()


def test_the_code_of_a_record_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter(["at the start", "later"])
    monkeypatch.setattr("suites.sweep.engine.fingerprint", lambda modules: next(codes))
    monkeypatch.setattr("suites.sweep.engine.circumstance_of", lambda job, found: found | {"code_fingerprint": ""})
    store = Store(tmp_path)
    run(plan(Broken()), store)
    (record,) = store.load().records.values()
    assert record.circumstance["code_fingerprint"] == "at the start"


def test_a_worker_that_is_killed_ends_the_sweep_and_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(BrokenExecutor):
        run(plan(Broken(), Deadly()), store, workers=2)
    assert not store.load().bad


def test_other_source_code_or_another_kernel_makes_a_record_stale(
    records: dict[str, Record], store: Store, tmp_path: Path
) -> None:
    ours = Store(tmp_path)
    record = records["full-mha"]
    for changed in ({}, {"code_fingerprint": "other"}, {"kernel": "another compiler"}):
        ours.save(replace(record, circumstance=record.circumstance | changed))
        outcome = run(plan(FullMHA()), ours)
        assert (outcome.ran, outcome.stale) == (0, bool(changed))


def weights_of(model: Encoder) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.usefixtures("hasty")
def test_kept_weights_are_measured_again_without_a_step_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    trials = plan(StaticPruning(), RandomK(), BudgetFormer())
    kept = engine.run(trials, partial(run_trial, electricity=WORLD, keep_weights=True), store)
    assert (kept.ran, kept.failed) == (3, [])
    before = store.load().records
    arrays = {key: store.arrays(record) for key, record in before.items()}
    seen: list[list[torch.Tensor]] = []

    def note(model: Encoder, *_: object, **__: object) -> dict[str, None]:
        seen.append(weights_of(model))
        return dict.fromkeys(("memory_inference_bytes", "memory_training_bytes"))

    def train(*_: object, **__: object) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr("suites.sweep.stages.train", train)
    monkeypatch.setattr("suites.sweep.stages.measure_footprint", note)
    again = engine.run(trials, partial(measure_again, electricity=WORLD, store=store), store, rerun="always")
    assert (again.ran, again.failed) == (3, [])
    after = store.load().records
    assert after.keys() == before.keys()
    for key, record in after.items():
        assert record.learned == before[key].learned
        assert record.circumstance == before[key].circumstance
        assert record.timed.timings != before[key].timed.timings
        assert record.measured_in["start_time"] >= before[key].circumstance["start_time"]
        assert all(np.array_equal(array, arrays[key][name]) for name, array in store.arrays(record).items())
    # What was measured is what was trained: the same seed gives the same weights.
    monkeypatch.undo()
    measure_hardly_at_all(monkeypatch)
    monkeypatch.setattr("suites.sweep.stages.measure_footprint", note)
    run(trials, Store(tmp_path / "anew"))
    restored, trained = seen[:3], seen[3:]
    for ours, theirs in zip(restored, trained, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("hasty")
def test_a_measurement_that_fails_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    trials = plan(FullMHA())
    engine.run(trials, partial(run_trial, electricity=WORLD, keep_weights=True), store)
    before = store.load().records

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no clock")

    monkeypatch.setattr("suites.sweep.stages.measure_latency", broken)
    do = partial(measure_again, electricity=WORLD, store=store)
    outcome = engine.run(trials, do, store, rerun="always")
    assert outcome.failed == ["bbc-topics, full-mha, seed 0: RuntimeError: no clock"]
    assert store.load().records == before


@pytest.mark.usefixtures("hasty")
def test_masked_execution_saves_nothing(tmp_path: Path, records: dict[str, Record]) -> None:
    store = Store(tmp_path)
    suite = make_suite(StaticPruning())
    run(make_plan(suite, Options(execution="masked")), store)
    (masked,) = store.load().records.values()
    sliced = records["static-pruning"]
    assert masked.learned.execution == "masked"
    assert masked.metrics["accuracy"] == sliced.metrics["accuracy"]
    assert masked.metrics["macs_executed"] == records["full-mha"].metrics["macs_executed"]
    assert masked.metrics["heads_executed"] == 0.25


@pytest.mark.usefixtures("hasty")
def test_one_epoch_is_enough_to_prune(tmp_path: Path) -> None:
    store = Store(tmp_path)
    short = replace(make_suite(StaticPruning()), tasks=(replace(TASK, recipe=Recipe(epochs=1, batch_size=16)),))
    run(make_plan(short, Options()), store)
    (record,) = store.load().records.values()
    assert record.metrics["heads_executed"] == 0.25


@pytest.mark.usefixtures("hasty")
def test_deterministic_mode_is_off_again_when_timing_starts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(make_plan(make_suite(FullMHA()), Options(deterministic=True)), store)
    (record,) = store.load().records.values()
    assert record.status == "done"
    assert record.question["deterministic"] is True
    assert record.circumstance["deterministic"] is True
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_encoder_is_the_suites(records: dict[str, Record]) -> None:
    spec = EncoderSpec(vocab_size=600, num_classes=5, max_length=16, width=32, num_heads=4)
    num_layers, width = spec.num_layers, spec.width
    expected = (600 + 16) * width + num_layers * (2 * 2 * width + 4 * width * width + 4 * width)
    expected += num_layers * (2 * 4 * width * width + 5 * width) + 2 * width + 5 * width + 5
    assert records["full-mha"].metrics["num_parameters"] == expected

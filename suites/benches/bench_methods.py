"""pytest-benchmark benches: one inference batch and one training step of every method.

``python -m tox -e benchmark`` runs them; pytest-benchmark's own options (``--benchmark-json``, ``--benchmark-compare``)
work as ever. An inference bench runs the very call that ``suites/measuring/latency.py`` times. Models are not trained,
which does not change what they compute, but for the budgets that a network predicts.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from budgetformer.encoder import Encoder
from budgetformer.surgery import execution_of
from suites.data.batching import collate, training_order
from suites.data.encoded import EncodedTask
from suites.definitions.catalog import find_suite
from suites.definitions.registry import METHODS
from suites.measuring.circumstance import describe
from suites.measuring.latency import BATCH_SIZE, DISTINCT_BATCHES, inference_call, spread_batches
from suites.measuring.sharing import Share
from suites.measuring.timing import MIN_ROUNDS, synchronised
from suites.sweep.planning import Options, make_plan
from suites.sweep.stages import data_of, new_model
from suites.sweep.trial import Trial
from suites.training.loop import make_optimizer, training_step
from suites.training.seeding import Streams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARMUP_ROUNDS = 5
ALL = tuple(method() for method in METHODS.values())
TRIALS = make_plan(replace(find_suite("quick"), methods=ALL), Options(seeds=(0,), device=DEVICE))

pytestmark = pytest.mark.parametrize("trial", TRIALS, ids=[f"{t.task.name}-{t.method.name}" for t in TRIALS])


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing else of the suite computes on this machine meanwhile."""
    with Share().alone():
        yield


@lru_cache(maxsize=2)
def _environment(device: str) -> dict[str, object]:
    return describe(device)


def _prepare(trial: Trial) -> tuple[Encoder, EncodedTask]:
    """The model as it is late in training: pruned, with a low temperature."""
    torch.set_num_threads(trial.task.recipe.threads)
    data = data_of(trial)
    streams = Streams(trial.task.name, trial.seed)
    model = new_model(trial)
    rows = training_order(data.train, trial.task.recipe.batch_size, streams.generator("data"))[0]
    trial.method.on_step(model, 0.99, streams.generator("gate"), [collate(data.train, rows, DEVICE)])
    return model, data


def _describe(benchmark: BenchmarkFixture, trial: Trial, execution: str) -> None:
    benchmark.extra_info.update(
        method=trial.method.name, task=trial.task.name, execution=execution, hardware=_environment(DEVICE)
    )


def _time(benchmark: BenchmarkFixture, call: Callable[[], None]) -> None:
    timed: Any = benchmark.pedantic  # it has no types
    timed(synchronised(call, DEVICE), rounds=MIN_ROUNDS, warmup_rounds=WARMUP_ROUNDS)


def bench_inference(benchmark: BenchmarkFixture, trial: Trial) -> None:
    """One batch of 32 test inputs."""
    model, data = _prepare(trial)
    final = trial.method.for_inference(model)
    _describe(benchmark, trial, execution_of(final))
    call = inference_call(final, spread_batches(data.test, BATCH_SIZE, DISTINCT_BATCHES, DEVICE))
    _time(benchmark, call)


def bench_training_step(benchmark: BenchmarkFixture, trial: Trial) -> None:
    """One step on one training batch."""
    model, data = _prepare(trial)
    recipe = trial.task.recipe
    _describe(benchmark, trial, "masked")
    optimizer = make_optimizer(trial.method, model, recipe)
    rows = training_order(data.train, recipe.batch_size, Streams(trial.task.name, 0).generator("data"))[0]
    batch = collate(data.train, rows, DEVICE)
    model.train()

    def step() -> None:
        training_step(model, trial.method, optimizer, batch, progress=0.99, clip_norm=recipe.clip_norm)

    _time(benchmark, step)

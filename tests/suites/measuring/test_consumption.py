"""Training time and energy: multiplied out from a window, and right for texts of any lengths."""

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from baselines.full_mha import FullMHA
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.importance import LabelledBatch
from suites.data.batching import training_order
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring import consumption
from suites.measuring.consumption import LEAST_PASSES, NUM_LENGTHS, measure_training, num_training_tokens, rehearse
from suites.measuring.energy import WORLD
from suites.training.seeding import Streams

SPEC = EncoderSpec(vocab_size=9, num_classes=2, max_length=400, width=8, num_layers=1, num_heads=2)
RECIPE = Recipe(epochs=2, batch_size=4)
STREAMS = Streams("task", 0)
SECONDS_PER_TOKEN = 1e-3


def task(lengths: list[int]) -> EncodedTask:
    count = len(lengths)
    split = EncodedSplit(
        [np.ones(length, dtype=np.int64) for length in lengths], np.arange(count) % 2, np.arange(count)
    )
    return EncodedTask(split, split, split, vocab_size=9, num_classes=2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes as long as its tokens are many."""
    now = 0.0

    def step(model: Encoder, method: FullMHA, optimizer: Any, batch: LabelledBatch, **_: Any) -> None:
        nonlocal now
        now += SECONDS_PER_TOKEN * batch.tokens_BT.numel()

    monkeypatch.setattr(consumption, "training_step", step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)


def measure(data: EncodedTask) -> dict[str, float | None]:
    model = Encoder(SPEC, FullMHA().gates(SPEC, torch.Generator()))
    return measure_training(
        model, FullMHA(), data, recipe=RECIPE, streams=STREAMS, device="cpu", electricity=WORLD, idle_watts=None
    ).metrics


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "lengths",
    [
        [10] * 40,
        [1 + i % 7 for i in range(203)],
        [1] * 300 + [300] * 20,  # a few long ones have most of the tokens
        np.random.default_rng(0).lognormal(3, 1, 400).astype(int).clip(1, 400).tolist(),
    ],
    ids=["equal", "mixed", "few long ones", "skewed"],
)
def test_training_time_is_that_of_all_tokens_whatever_the_lengths(lengths: list[int]) -> None:
    data = task(lengths)
    generator = STREAMS.generator("data")
    orders = [training_order(data.train, RECIPE.batch_size, generator) for _ in range(RECIPE.epochs)]
    tokens = sum(len(rows) * data.train.lengths[rows].max() for order in orders for rows in order)
    assert num_training_tokens(data.train, RECIPE, STREAMS) == tokens
    metrics = measure(data)
    assert metrics["train_s"] == pytest.approx(SECONDS_PER_TOKEN * tokens, rel=1e-6)
    assert metrics["train_aa_ratio"] == pytest.approx(1)


@pytest.mark.usefixtures("clock")
def test_the_window_cycles_through_short_and_long_batches_after_a_pass_that_does_not_count() -> None:
    data = task([1] * 200 + [50] * 200 + [100] * 200)
    model = Encoder(SPEC, FullMHA().gates(SPEC, torch.Generator()))
    seen: list[int] = []
    step: Any = vars(consumption)["training_step"]

    def noting(model: Encoder, method: FullMHA, optimizer: Any, batch: LabelledBatch, **rest: Any) -> Any:
        seen.append(batch.tokens_BT.shape[1])
        return step(model, method, optimizer, batch, **rest)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(consumption, "training_step", noting)
        found = rehearse(model, FullMHA(), data, recipe=RECIPE, streams=STREAMS, device="cpu", meter=nullcontext())
    assert set(seen) == {1, 50, 100}
    assert len(seen) == NUM_LENGTHS * (1 + len(found.passes_s))
    assert len(found.passes_s) >= LEAST_PASSES
    assert len(found.passes_s) % 2 == 0
    assert found.num_tokens == len(found.passes_s) * RECIPE.batch_size * sum(seen[:NUM_LENGTHS])


def test_the_model_is_left_as_it_was() -> None:
    model = Encoder(SPEC, FullMHA().gates(SPEC, torch.Generator())).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = task([3, 5, 8, 2, 9, 4, 7, 6])
    rehearse(model, FullMHA(), data, recipe=RECIPE, streams=STREAMS, device="cpu", meter=nullcontext())
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

"""Energy of the two phases of a model's life, training and inference, in windows of real work; and training's time."""

import copy
import time
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from budgetformer.encoder import Encoder
from budgetformer.method import Method
from suites.data.batching import collate, training_order
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring.energy import JOULES_PER_KWH, Electricity, Energy, EnergyMeter
from suites.measuring.latency import BATCH_SIZE, DISTINCT_BATCHES, spread_batches
from suites.measuring.timing import synchronise
from suites.training.loop import make_optimizer, training_step
from suites.training.seeding import Streams

WINDOW_S = 1.2
"""Inference, and training steps, are repeated until their energy window is at least this long."""

NUM_LENGTHS = 3
"""Training batches that are repeated, from short to long."""

LEAST_PASSES = 4


class Consumption(NamedTuple):
    """What a phase takes: metrics of ``suites.records.metrics``, and where they come from."""

    metrics: dict[str, float | None]
    provenance: dict[str, Any]


def measure_training(
    model: Encoder,
    method: Method,
    data: EncodedTask,
    *,
    recipe: Recipe,
    streams: Streams,
    device: str,
    electricity: Electricity,
    idle_watts: float | None,
) -> Consumption:
    """Time and energy of all training steps, multiplied out from a window of some by the tokens that run.

    The window cycles through batches of all lengths, an even number of times, so that one half of its passes over the
    other tells how far equal work differs.

    Args:
        model: as it came from training; left untouched.
        method: whose hooks and losses a step has.
        data: the task.
        recipe: the one that the model was trained by.
        streams: for the order of the batches and the gates.
        device: where the model is.
        electricity: what emissions are computed with.
        idle_watts: the idle machine's power, if it is known.
    """
    meter = EnergyMeter(electricity, device=device)
    rehearsal = rehearse(model, method, data, recipe=recipe, streams=streams, device=device, meter=meter)
    factor = num_training_tokens(data.train, recipe, streams) / rehearsal.num_tokens
    metrics = {
        "train_s": meter.energy.seconds * factor,
        "train_aa_ratio": sum(rehearsal.passes_s[::2]) / sum(rehearsal.passes_s[1::2]),
        **_scaled("train", meter.energy, factor, idle_watts),
    }
    return Consumption(metrics, meter.energy.provenance | {"extrapolated_from_tokens": rehearsal.num_tokens})


def measure_inference(
    model: Encoder, test: EncodedSplit, *, device: str, electricity: Electricity, idle_watts: float | None
) -> Consumption:
    """Energy per 1,000 test inputs: batches of all lengths, over and over.

    Args:
        model: from ``Method.for_inference``.
        test: the inputs.
        device: where the model is.
        electricity: what emissions are computed with.
        idle_watts: the idle machine's power, if it is known.
    """
    batches = spread_batches(test, BATCH_SIZE, DISTINCT_BATCHES, device)
    num_inputs = 0
    with EnergyMeter(electricity, device=device) as meter, torch.inference_mode():
        start = time.perf_counter()
        while not num_inputs or time.perf_counter() - start < WINDOW_S:
            for tokens_BT, mask_BT in batches:
                model(tokens_BT, mask_BT)
                num_inputs += len(tokens_BT)
            synchronise(device)
    return Consumption(_scaled("inference", meter.energy, 1000 / num_inputs, idle_watts), meter.energy.provenance)


class Rehearsal(NamedTuple):
    """A stretch of training: the seconds of each pass over the same batches, and all tokens that ran, with padding."""

    passes_s: list[float]
    num_tokens: int


def rehearse(
    model: Encoder,
    method: Method,
    data: EncodedTask,
    *,
    recipe: Recipe,
    streams: Streams,
    device: str,
    meter: AbstractContextManager[object],
) -> Rehearsal:
    """Trains a copy of a trained model on, inside a meter, for ``WINDOW_S`` and ``LEAST_PASSES`` at least.

    The batches are of the first epoch, and cover its lengths evenly. A first pass over them is not metered.
    """
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(method, model, recipe)
    generator = streams.generator("gate")
    batches = [collate(data.train, rows, device) for rows in spread_order(data.train, recipe, streams)]

    def run() -> None:
        for batch in batches:
            method.on_step(model, 1.0, generator, [batch])
            training_step(model, method, optimizer, batch, progress=1.0, clip_norm=recipe.clip_norm)
        synchronise(device)

    run()
    ends: list[float] = []
    with meter:
        start = time.perf_counter()
        while len(ends) < LEAST_PASSES or len(ends) % 2 or ends[-1] - start < WINDOW_S:
            run()
            ends.append(time.perf_counter())
    passes_s = [end - begin for begin, end in pairwise([start, *ends])]
    return Rehearsal(passes_s, len(passes_s) * sum(batch.tokens_BT.numel() for batch in batches))


def spread_order(train: EncodedSplit, recipe: Recipe, streams: Streams) -> list[NDArray[np.int64]]:
    """Row numbers of ``NUM_LENGTHS`` batches of the first epoch: from each equal share, by length, the middle one."""
    order = training_order(train, recipe.batch_size, streams.generator("data"))
    by_length = sorted(order, key=lambda rows: (len(rows) * int(train.lengths[rows].max()), int(rows[0])))
    middles = (np.arange(NUM_LENGTHS) + 0.5) / NUM_LENGTHS * len(by_length)
    return [by_length[int(middle)] for middle in middles]


def num_training_tokens(train: EncodedSplit, recipe: Recipe, streams: Streams) -> int:
    """The tokens that a whole training runs, padding included."""
    generator = streams.generator("data")
    orders = [training_order(train, recipe.batch_size, generator) for _ in range(recipe.epochs)]
    return sum(len(rows) * int(train.lengths[rows].max()) for order in orders for rows in order)


def _scaled(phase: str, energy: Energy, factor: float, idle_watts: float | None) -> dict[str, float | None]:
    return {
        f"{phase}_energy_kwh": _times(energy.kwh, factor),
        f"{phase}_energy_above_idle_kwh": _times(_above_idle(energy, idle_watts), factor),
        f"{phase}_co2_g": _times(energy.co2_g, factor),
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _above_idle(energy: Energy, idle_watts: float | None) -> float | None:
    """What the work took beyond the idle machine, in kWh; None where that is unknown, or lost in the noise."""
    if energy.kwh is None or idle_watts is None:
        return None
    above = energy.kwh - idle_watts * energy.seconds / JOULES_PER_KWH
    return above if above > 0 else None

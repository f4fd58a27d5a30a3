"""Energy of the two phases of a model's life, training and inference, in windows of real work; and training's time."""

import copy
import time
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any, NamedTuple

import torch

from budgetformer.encoder import Encoder
from budgetformer.method import Method
from suites.data.batching import collate, training_order
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring.energy import JOULES_PER_KWH, Electricity, Energy, EnergyMeter
from suites.measuring.latency import BATCH_SIZE, DISTINCT_BATCHES, spread_batches
from suites.measuring.timing import synchronise
from suites.training.loop import make_optimizer, steps_per_epoch, training_step
from suites.training.seeding import Streams

WINDOW_S = 1.2
"""Inference, and training steps, are repeated until their energy window is at least this long."""


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
    """Time and energy of all training steps, multiplied out from a window of some.

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
    num_steps = rehearse(model, method, data, recipe=recipe, streams=streams, device=device, meter=meter)
    factor = recipe.epochs * steps_per_epoch(data.train, recipe) / num_steps
    metrics = {"train_s": meter.energy.seconds * factor, **_scaled("train", meter.energy, factor, idle_watts)}
    return Consumption(metrics, meter.energy.provenance | {"extrapolated_from_steps": num_steps})


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


def rehearse(
    model: Encoder,
    method: Method,
    data: EncodedTask,
    *,
    recipe: Recipe,
    streams: Streams,
    device: str,
    meter: AbstractContextManager[object],
) -> int:
    """Trains a copy of a trained model on for ``WINDOW_S`` at least, inside a meter.

    Returns:
        The number of steps.
    """
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(method, model, recipe)
    generator = streams.generator("gate")
    order = cycle(training_order(data.train, recipe.batch_size, streams.generator("data")))
    num_steps = 0
    with meter:
        start = time.perf_counter()
        while not num_steps or time.perf_counter() - start < WINDOW_S:
            batch = collate(data.train, next(order), device)
            method.on_step(model, 1.0, generator, [batch])
            training_step(model, method, optimizer, batch, progress=1.0, clip_norm=recipe.clip_norm)
            synchronise(device)
            num_steps += 1
    return num_steps


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

"""A stretch of real training steps, to be timed and metered."""

import copy
import time
from contextlib import AbstractContextManager
from itertools import cycle

from budgetformer.encoder import Encoder
from budgetformer.method import Method
from suites.data.batching import collate, training_order
from suites.data.encoded import EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring.timing import synchronise
from suites.training.loop import make_optimizer, training_step
from suites.training.seeding import Streams


def rehearse(
    model: Encoder,
    method: Method,
    data: EncodedTask,
    *,
    recipe: Recipe,
    streams: Streams,
    device: str = "cpu",
    meter: AbstractContextManager[object],
    seconds: float,
) -> int:
    """Trains a copy of a trained model on for at least some time: real steps, to be timed and metered.

    Args:
        model: as it came from ``train``; left untouched.
        method: as for ``train``.
        data: as for ``train``.
        recipe: as for ``train``.
        streams: as for ``train``.
        device: as for ``train``.
        meter: entered around the steps alone.
        seconds: how long to go on.

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
        while not num_steps or time.perf_counter() - start < seconds:
            batch = collate(data.train, next(order), device)
            method.on_step(model, 1.0, generator, [batch])
            training_step(model, method, optimizer, batch, progress=1.0, clip_norm=recipe.clip_norm)
            synchronise(device)
            num_steps += 1
    return num_steps

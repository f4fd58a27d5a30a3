"""Peak memory of a trial: of one inference batch, and of one training step."""

import pickle
from functools import partial

import torch

from budgetformer.encoder import Encoder
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method
from suites.data.batching import collate
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring.latency import BATCH_SIZE
from suites.measuring.memory import in_fresh_process, peak_extra_bytes
from suites.training.loop import make_optimizer, training_step


def measure_footprint(
    model: Encoder, final: Encoder, method: Method, data: EncodedTask, *, recipe: Recipe, device: str
) -> dict[str, int | None]:
    """Memory metrics, on the longest inputs: above the loaded model, and in training its optimiser.

    On a CPU it is measured in a fresh process, in which neither the imports nor what ran before count; on CUDA by the
    device's own counters. Each call runs once before it is measured, so that what stays does not count either.

    Args:
        model: the trained model; left untouched.
        final: the one that is run.
        method: whose losses a training step has.
        data: the task.
        recipe: for the batch size.
        device: where the models are.
    """
    inference = partial(_inference_bytes, final, _longest(data.test, BATCH_SIZE, device), device)
    training = partial(_training_bytes, model, method, _longest(data.train, recipe.batch_size, device), recipe, device)
    return {"memory_inference_bytes": _measure(inference, device), "memory_training_bytes": _measure(training, device)}


def _measure(measure: "partial[int | None]", device: str) -> int | None:
    # As bytes: tensors would travel in memory that both processes share, which is not loaded before it is touched. A
    # copy by the same way, since training changes the model.
    content = pickle.dumps(measure)
    return in_fresh_process(_unpickled, content) if device == "cpu" else _unpickled(content)


def _unpickled(content: bytes) -> int | None:
    measure: partial[int | None] = pickle.loads(content)
    return measure()


def _longest(split: EncodedSplit, batch_size: int, device: str) -> LabelledBatch:
    return collate(split, split.lengths.argsort(kind="stable")[-batch_size:], device)


def _inference_bytes(model: Encoder, batch: LabelledBatch, device: str) -> int | None:
    def call() -> None:
        with torch.inference_mode():
            model(batch.tokens_BT, batch.mask_BT)

    call()
    return peak_extra_bytes(call, device)


def _training_bytes(model: Encoder, method: Method, batch: LabelledBatch, recipe: Recipe, device: str) -> int | None:
    optimizer = make_optimizer(method, model.train(), recipe)

    def step() -> None:
        training_step(model, method, optimizer, batch, progress=1.0, clip_norm=recipe.clip_norm)
        optimizer.zero_grad()  # gradients are the step's own

    step()
    return peak_extra_bytes(step, device)

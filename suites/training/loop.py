"""The only training loop."""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from budgetformer.encoder import Encoder
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method, split_parameters
from suites.data.batching import batches, training_order
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.training.evaluate import evaluate
from suites.training.seeding import Streams

CALIBRATION_BATCHES = 16
"""Training batches that ``on_step`` may look at."""

OnStep = Callable[[int, int], None]


class TrainingDivergedError(RuntimeError):
    """A term of the loss is no longer a finite number."""


def train(
    model: Encoder,
    method: Method,
    data: EncodedTask,
    *,
    recipe: Recipe,
    streams: Streams,
    device: str = "cpu",
    on_step: OnStep,
) -> list[dict[str, float]]:
    """Trains a model in place.

    Args:
        model: from ``build_model``.
        method: whose hooks are called.
        data: the task; its test split is not looked at.
        recipe: the same for every method.
        streams: random numbers for batches, gates and dropout.
        device: where the model is.
        on_step: told (steps done, steps in all) after every step.

    Returns:
        One entry per epoch: ``epoch``, mean ``train_loss`` (all terms), each of the method's terms, and
        ``validation_accuracy`` of the model that would be run.

    Raises:
        TrainingDivergedError: if a term of the loss is not finite.
        NotFiniteError: if the loss of a validation input is not, as after a last step that broke the weights.
    """
    optimizer = make_optimizer(method, model, recipe)
    peak_rates = [group["lr"] for group in optimizer.param_groups]
    data_generator, gate_generator = streams.generator("data"), streams.generator("gate")
    num_steps = recipe.epochs * steps_per_epoch(data.train, recipe)
    history = []
    step = 0
    for epoch in range(recipe.epochs):
        order = training_order(data.train, recipe.batch_size, data_generator)
        model.train()
        sums: dict[str, float] = defaultdict(float)
        for batch in batches(data.train, order, device):
            progress = step / num_steps
            calibration = batches(data.train, order[:CALIBRATION_BATCHES], device)
            method.on_step(model, progress, gate_generator, calibration)
            streams.seed_dropout(step)
            for group, peak in zip(optimizer.param_groups, peak_rates, strict=True):
                group["lr"] = peak * recipe.lr_factor((step + 1) / (num_steps + 1))
            terms = training_step(model, method, optimizer, batch, progress=progress, clip_norm=recipe.clip_norm)
            for name, value in terms.items():
                sums[name] += _finite(name, float(value), step) * len(batch.labels_B)
            step += 1
            on_step(step, num_steps)
        if step == num_steps:
            method.on_step(model, 1.0, gate_generator, batches(data.train, order[:CALIBRATION_BATCHES], device))
        means = {name: total / len(data.train) for name, total in sums.items()}
        total = means.pop("total")
        validation = evaluate(method.for_inference(model, "auto"), data.validation, device)
        history.append(
            {"epoch": epoch + 1.0, "train_loss": total}
            | {f"{name}_loss": value for name, value in means.items()}
            | {"validation_accuracy": validation.accuracy}
        )
    return history


def _finite(name: str, value: float, step: int) -> float:
    if not math.isfinite(value):
        raise TrainingDivergedError(f"the {name} loss is {value} at step {step + 1}")
    return value


def training_step(
    model: Encoder,
    method: Method,
    optimizer: torch.optim.Optimizer,
    batch: LabelledBatch,
    *,
    progress: float,
    clip_norm: float,
) -> dict[str, Tensor]:
    """One update of the model.

    Returns:
        The terms of the loss before the update, without gradients: ``task``, the method's own, and their sum ``total``.
    """
    output = model(batch.tokens_BT, batch.mask_BT)
    terms = {"task": F.cross_entropy(output.logits_BC, batch.labels_B)}
    extra = method.extra_losses(model, output, progress)
    if clash := extra.keys() & {"task", "total"}:
        raise ValueError(f"{method.name} names a loss {clash.pop()!r}, which is the harness's own")
    terms |= extra
    loss = torch.stack(list(terms.values())).sum()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    # Apart, so that a method's own gradients never shrink those that all methods share.
    for parameters in split_parameters(model):
        torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimizer.step()
    return {name: value.detach() for name, value in terms.items()} | {"total": loss.detach()}


def steps_per_epoch(split: EncodedSplit, recipe: Recipe) -> int:
    """Batches that cover a split, the last one perhaps smaller."""
    return math.ceil(len(split) / recipe.batch_size)


def make_optimizer(method: Method, model: Encoder, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW over the method's parameter groups."""
    groups = _param_groups(method, model, recipe)
    return torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)


def _param_groups(method: Method, model: Encoder, recipe: Recipe) -> list[dict[str, object]]:
    """The method's groups, each split in two: weight decay is for matrices."""
    groups: list[dict[str, object]] = []
    for group in method.param_groups(model):
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        decay = group.get("weight_decay", recipe.weight_decay)
        lr = recipe.lr * group.get("lr_scale", 1.0)
        for dimensions, weight_decay in ((True, decay), (False, 0.0)):
            chosen = [parameter for parameter in parameters if (parameter.ndim > 1) is dimensions]
            if chosen:
                groups.append({"params": chosen, "lr": lr, "weight_decay": weight_decay})
    return groups

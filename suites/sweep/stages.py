"""What a trial does, in three stages: train, test, measure. The first two need no clock, the third no training.

Each stage takes a trial and gives a typed result, so that one of them can be done again by itself: a model whose
weights were kept is measured on another machine without a step of training.
"""

import copy
import io
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from baselines.full_mha import FullMHA
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.execution import count_executions
from budgetformer.gated_layer import Execution
from budgetformer.surgery import execution_of
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.data.manifest import check_manifest
from suites.data.tokenizing import encode_use
from suites.measuring.accounting import cost_metrics, paper_metrics
from suites.measuring.circumstance import deterministic_flags
from suites.measuring.company import Company
from suites.measuring.consumption import measure_inference, measure_training
from suites.measuring.controls import CONTROLS, control_gates
from suites.measuring.cost import ExecutedMacs
from suites.measuring.energy import Electricity
from suites.measuring.footprint import measure_footprint
from suites.measuring.latency import measure_latency, timing_conditions
from suites.measuring.sharing import Share
from suites.measuring.usage import by_difficulty, head_use, quality
from suites.records.record import Learned, Record, Timed
from suites.records.store import Arrays, Entry, Store
from suites.sweep.trial import Trial
from suites.training.evaluate import Evaluation, evaluate
from suites.training.loop import OnStep, train
from suites.training.model import build_model
from suites.training.seeding import Streams


class Trained(NamedTuple):
    """What the first stage gives: a model, and an entry per epoch."""

    model: Encoder
    history: list[dict[str, float]]


class Tested(NamedTuple):
    """What the second stage gives: the learned part of the record, and the arrays beside it."""

    learned: Learned
    arrays: Arrays


def run_trial(
    trial: Trial, circumstance: dict[str, Any], share: Share, *, electricity: Electricity, keep_weights: bool = False
) -> Entry:
    """All stages of a trial.

    Args:
        trial: what to run.
        circumstance: for the record; its ``idle_power`` is what energy above idle is counted from.
        share: of the machine: training may have company, measuring may not.
        electricity: what emissions are computed with.
        keep_weights: keep the trained weights, for :func:`measure_again`.

    Raises:
        Exception: whatever goes wrong; the engine makes a failed record of it.
    """
    circumstance = circumstance | _begin(trial)
    trained = train_stage(trial, share.step)
    if trial.tuning:
        learned = Learned(
            metrics={"validation_accuracy": trained.history[-1]["validation_accuracy"]}, history=trained.history
        )
        return Entry(_record(trial, circumstance, learned=learned))
    learned, arrays = test_stage(trial, trained)
    timed = measure_stage(trial, trained.model, share, electricity, _idle_watts(circumstance))
    weights = _to_bytes(trained.model) if keep_weights else b""
    return Entry(_record(trial, circumstance, learned=learned, timed=timed), arrays, weights)


def measure_again(
    trial: Trial, circumstance: dict[str, Any], share: Share, *, electricity: Electricity, store: Store
) -> Entry:
    """The third stage alone, with weights that were kept: a record whose learned part stays as it is.

    Args:
        trial: whose weights they are.
        circumstance: of the measurement.
        share: as for :func:`run_trial`.
        electricity: as for :func:`run_trial`.
        store: where the record and its weights are.
    """
    old = store.find(trial.id)
    if old is None:
        raise ValueError("the record is no longer there")
    circumstance = circumstance | _begin(trial)
    model = new_model(trial)
    model.load_state_dict(torch.load(io.BytesIO(store.weights(old)), map_location=trial.device, weights_only=True))
    timed = measure_stage(trial, model, share, electricity, _idle_watts(circumstance))
    return Entry(replace(old, timed=replace(timed, circumstance=circumstance)))


def train_stage(trial: Trial, on_step: OnStep) -> Trained:
    """Trains a model.

    Args:
        trial: what is trained, and how.
        on_step: told (steps done, steps in all) after every step.
    """
    model = new_model(trial)
    recipe = replace(trial.task.recipe, lr=trial.task.recipe.lr * trial.lr_scale)
    streams = _streams(trial)
    history = train(
        model, trial.method, data_of(trial), recipe=recipe, streams=streams, device=trial.device, on_step=on_step
    )
    return Trained(model, history)


def test_stage(trial: Trial, trained: Trained) -> Tested:
    """What the model that is run says of the test split, what that takes in products, and what its choice is worth."""
    model, history = trained
    test = data_of(trial).test
    final = trial.method.for_inference(model, trial.execution)
    with ExecutedMacs() as counter, count_executions() as ran:
        arrays = evaluate(final, test, trial.device).arrays
    # Masked: a layer whose heads were removed cannot be given others.
    masked = trial.method.for_inference(model, Execution.MASKED)
    controls = _controls(masked, test, arrays, _streams(trial), trial.device)
    metrics: dict[str, Any] = {
        **quality(arrays),
        "validation_accuracy": history[-1]["validation_accuracy"],
        **head_use(arrays),
        **by_difficulty(arrays),
        "accuracy_as_trained": _accuracy(_as_trained(model, test, trial.device)),
        **{f"accuracy_{name}": _accuracy(controls.get(name)) for name in CONTROLS},
        "num_parameters": _num_parameters(model),
        "num_parameters_inference": _num_parameters(final),
        **cost_metrics(final, arrays["gates"], counter, test, trial.device),
    }
    metrics |= paper_metrics(final, metrics["s_mean"], trial.task.max_length)
    learned = Learned(
        metrics=metrics,
        execution=_execution(final, ran),
        ran=dict(ran),
        training_execution=execution_of(model),
        history=history,
    )
    predictions = {f"prediction_{name}": each.arrays["prediction"] for name, each in controls.items()}
    return Tested(learned, _compressed({**arrays, **predictions}))


def measure_stage(
    trial: Trial, model: Encoder, share: Share, electricity: Electricity, idle_watts: float | None
) -> Timed:
    """Time, energy and memory of a trained model, alone on the machine.

    Args:
        trial: whose model it is.
        model: as it came from training; left untouched.
        share: of the machine.
        electricity: what emissions are computed with.
        idle_watts: the idle machine's power, if it is known.
    """
    torch.use_deterministic_algorithms(False)  # they would slow down what is timed
    data, recipe, device = data_of(trial), trial.task.recipe, trial.device
    final = trial.method.for_inference(model, trial.execution)
    # In the same execution: a kernel must not make a method look faster or slower than full attention.
    full = FullMHA().for_inference(build_model(_spec(trial), FullMHA(), _streams(trial), device), trial.execution)
    memory = measure_footprint(model, final, trial.method, data, recipe=recipe, device=device)
    with share.alone(), Company(device) as company:
        latency, samples = measure_latency(final, full, data.test, device)
        inference = measure_inference(final, data.test, device=device, electricity=electricity, idle_watts=idle_watts)
        training = measure_training(
            model,
            trial.method,
            data,
            recipe=recipe,
            streams=_streams(trial),
            device=device,
            electricity=electricity,
            idle_watts=idle_watts,
        )
    return Timed(
        metrics={**memory, **latency, **training.metrics, **inference.metrics},
        timings=samples,
        energy={"train": training.provenance, "inference": inference.provenance},
        measuring=timing_conditions(final) | company.found,
    )


def _begin(trial: Trial) -> dict[str, Any]:
    """Sets this process up for a trial, and says how."""
    torch.set_num_threads(trial.task.recipe.threads)
    torch.use_deterministic_algorithms(trial.deterministic)
    return {
        "threads": torch.get_num_threads(),
        "deterministic": trial.deterministic,
        "deterministic_flags": deterministic_flags(),
    }


def _record(trial: Trial, circumstance: dict[str, Any], **parts: Any) -> Record:
    return Record(question=trial.question(), status="done", circumstance=circumstance, **parts)


def _idle_watts(circumstance: Mapping[str, Any]) -> float | None:
    watts: float | None = circumstance.get("idle_power", {}).get("watts")
    return watts


def data_of(trial: Trial) -> EncodedTask:
    """The trial's task, encoded.

    Raises:
        ValueError: if the texts are not those that the trial was planned with.
    """
    check_manifest(trial.task)
    return encode_use(trial.task)


def _spec(trial: Trial) -> EncoderSpec:
    """The encoder's sizes: the suite's, and what the task and its recipe add."""
    data, recipe = data_of(trial), trial.task.recipe
    return EncoderSpec(
        vocab_size=data.vocab_size,
        num_classes=data.num_classes,
        max_length=trial.task.max_length,
        dropout=recipe.dropout,
        token_dropout=recipe.token_dropout,
        embedding_std=recipe.embedding_std,
        **asdict(trial.sizes),
    )


def _streams(trial: Trial) -> Streams:
    return Streams(trial.task.name, trial.seed)


def new_model(trial: Trial) -> Encoder:
    """The model before training."""
    return build_model(_spec(trial), trial.method, _streams(trial), trial.device)


def _to_bytes(model: Encoder) -> bytes:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def _compressed(arrays: Arrays) -> Arrays:
    """The arrays as they are stored: the heads of an input as bits, so that k per layer and every set can be read."""
    active_NLH = arrays["gates"] > 0
    stored = {name: array for name, array in arrays.items() if name not in ("gates", "relevance")}
    stored["k"] = active_NLH.sum(axis=2).astype(np.uint8)
    stored["active"] = np.packbits(active_NLH, axis=2, bitorder="little")
    return {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in stored.items()}


def _controls(
    model: Encoder, test: EncodedSplit, arrays: Arrays, streams: Streams, device: str
) -> dict[str, Evaluation]:
    """The model evaluated with each of the controls; none for a choice that is the same for every input."""
    rng = np.random.default_rng(streams.number("controls"))
    gates = control_gates(arrays["gates"], arrays.get("relevance"), rng)
    return {name: evaluate(model, test, device, gates_NLH=gates_NLH) for name, gates_NLH in gates.items()}


def _as_trained(model: Encoder, test: EncodedSplit, device: str) -> Evaluation | None:
    """The model evaluated with its gates in training mode, and the rest not; None if its gates learn nothing."""
    if not any(list(gate.parameters()) for gate in model.gates):
        return None
    model = copy.deepcopy(model).eval()
    for gate in model.gates:
        gate.train()
    return evaluate(model, test, device)


def _execution(model: Encoder, ran: Mapping[str, int]) -> str:
    """How the attention ran; with ``masked`` where the cost rule chose to compute all heads for some batches."""
    asked = execution_of(model)
    return f"{asked}+{Execution.MASKED}" if asked == Execution.GATHERED and Execution.MASKED in ran else asked


def _accuracy(evaluation: Evaluation | None) -> float | None:
    return None if evaluation is None else evaluation.accuracy


def _num_parameters(model: Encoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

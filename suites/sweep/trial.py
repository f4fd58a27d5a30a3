"""One trial from data to record: train, evaluate, count, time and meter."""

import copy
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baselines.full_mha import FullMHA
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.execution import count_executions
from budgetformer.surgery import execution_of
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.data.tokenizing import encode_task
from suites.measuring.accounting import cost_metrics, paper_metrics
from suites.measuring.circumstance import attention_backend, deterministic_flags
from suites.measuring.company import Company
from suites.measuring.controls import CONTROLS, control_gates
from suites.measuring.cost import ExecutedMacs
from suites.measuring.energy import JOULES_PER_KWH, Electricity, Energy, EnergyMeter
from suites.measuring.footprint import measure_footprint
from suites.measuring.latency import BATCH_SIZE, DISTINCT_BATCHES, measure_latency, spread_batches
from suites.measuring.rehearsal import rehearse
from suites.measuring.sharing import Share
from suites.measuring.timing import synchronise
from suites.measuring.usage import by_difficulty, head_use, quality
from suites.records.record import Record
from suites.sweep.planning import Trial
from suites.training.evaluate import Evaluation, evaluate
from suites.training.loop import steps_per_epoch, train
from suites.training.model import build_model
from suites.training.seeding import Streams

WINDOW_S = 1.2
"""Inference, and training steps, are repeated until their energy window is at least this long."""

Arrays = dict[str, NDArray[Any]]


def run_trial(
    trial: Trial, circumstance: dict[str, Any], electricity: Electricity, share: Share
) -> tuple[Record, Arrays]:
    """Runs a trial.

    Args:
        trial: what to run.
        circumstance: for the record; its ``idle_power`` is what energy above idle is counted from.
        electricity: what emissions are computed with.
        share: of the machine: training may have company, measuring may not.

    Returns:
        The record, and the per-example arrays that go beside it.

    Raises:
        Exception: whatever goes wrong; the engine makes a failed record of it.
    """
    torch.set_num_threads(trial.task.recipe.threads)
    torch.use_deterministic_algorithms(trial.deterministic)
    circumstance = circumstance | {
        "threads": torch.get_num_threads(),
        "deterministic": trial.deterministic,
        "deterministic_flags": deterministic_flags(),
    }
    streams = Streams(trial.task.name, trial.seed)
    data = load(trial)
    spec = encoder_spec(trial, data)
    model = build_model(spec, trial.method, streams, trial.device)
    recipe = replace(trial.task.recipe, lr=trial.task.recipe.lr * trial.lr_scale)
    history = train(model, trial.method, data, recipe=recipe, streams=streams, device=trial.device, on_step=share.step)
    if trial.tuning:
        chosen_by = {"validation_accuracy": history[-1]["validation_accuracy"]}
        record = Record(
            question=trial.question(), status="done", metrics=chosen_by, history=history, circumstance=circumstance
        )
        return record, {}
    final = trial.method.for_inference(model, trial.execution)
    with ExecutedMacs() as counter, count_executions() as ran:
        evaluation = evaluate(final, data.test, trial.device)
    arrays = evaluation.arrays
    # Masked: a layer whose heads were removed cannot be given others.
    masked = trial.method.for_inference(model, "masked")
    without_choice = _without_choice(masked, data.test, arrays, streams, trial.device)
    torch.use_deterministic_algorithms(False)  # they would slow down what is timed
    # In the same execution: a kernel must not make a method look faster or slower than full attention.
    full = FullMHA().for_inference(build_model(spec, FullMHA(), streams, trial.device), trial.execution)
    memory = measure_footprint(model, final, trial.method, data, recipe=recipe, device=trial.device)
    with share.alone(), Company(trial.device) as company:
        latency, samples = measure_latency(final, full, data.test, trial.device)
        per_thousand, inference = _inference_energy(final, data.test, electricity, trial.device)
        training = EnergyMeter(electricity, device=trial.device)
        num_steps = rehearse(
            model,
            trial.method,
            data,
            recipe=recipe,
            streams=streams,
            device=trial.device,
            meter=training,
            seconds=WINDOW_S,
        )
    idle_watts = circumstance.get("idle_power", {}).get("watts")
    all_steps = recipe.epochs * steps_per_epoch(data.train, recipe) / num_steps
    metrics: dict[str, Any] = {
        **quality(arrays),
        "validation_accuracy": history[-1]["validation_accuracy"],
        **head_use(arrays),
        **by_difficulty(arrays),
        "accuracy_as_trained": _accuracy(_as_trained(model, data.test, trial.device)),
        **{f"accuracy_{name}": _accuracy(without_choice.get(name)) for name in CONTROLS},
        "num_parameters": _num_parameters(model),
        "num_parameters_inference": _num_parameters(final),
        **cost_metrics(final, arrays["gates"], counter, data.test, trial.device),
        **memory,
        "train_s": training.energy.seconds * all_steps,
        **latency,
        "train_energy_kwh": _times(training.energy.kwh, all_steps),
        "train_energy_above_idle_kwh": _times(_above_idle(training.energy, idle_watts), all_steps),
        "train_co2_g": _times(training.energy.co2_g, all_steps),
        "inference_energy_kwh": _times(inference.energy.kwh, 1 / per_thousand),
        "inference_energy_above_idle_kwh": _times(_above_idle(inference.energy, idle_watts), 1 / per_thousand),
        "inference_co2_g": _times(inference.energy.co2_g, 1 / per_thousand),
    }
    metrics |= paper_metrics(final, metrics["s_mean"], trial.task.max_length)
    record = Record(
        question=trial.question(),
        status="done",
        metrics=metrics,
        execution=_execution(final, ran),
        ran=dict(ran),
        training_execution=execution_of(model),
        history=history,
        timings=samples,
        energy={
            "train": training.energy.provenance | {"extrapolated_from_steps": num_steps},
            "inference": inference.energy.provenance,
        },
        measuring=_measuring(final) | company.found,
        circumstance=circumstance,
    )
    predictions = {f"prediction_{name}": each.arrays["prediction"] for name, each in without_choice.items()}
    return record, _compressed(arrays | predictions)


def load(trial: Trial) -> EncodedTask:
    """The trial's task, encoded."""
    task = trial.task
    return encode_task(task.name, task.max_length, task.vocab_size, task.train_limit, task.test_limit)


def encoder_spec(trial: Trial, data: EncodedTask) -> EncoderSpec:
    """The encoder's sizes: the suite's, and what the task and its recipe add."""
    return EncoderSpec(
        vocab_size=data.vocab_size,
        num_classes=data.num_classes,
        max_length=trial.task.max_length,
        dropout=trial.task.recipe.dropout,
        token_dropout=trial.task.recipe.token_dropout,
        embedding_std=trial.task.recipe.embedding_std,
        **asdict(trial.sizes),
    )


def _compressed(arrays: Arrays) -> Arrays:
    """The arrays as they are stored: the heads of an input as bits, so that k per layer and every set can be read."""
    active_NLH = arrays["gates"] > 0
    stored = {name: array for name, array in arrays.items() if name not in ("gates", "relevance")}
    stored["k"] = active_NLH.sum(axis=2).astype(np.uint8)
    stored["active"] = np.packbits(active_NLH, axis=2, bitorder="little")
    return {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in stored.items()}


def _without_choice(
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
    return f"{asked}+masked" if asked == "gathered" and "masked" in ran else asked


def _accuracy(evaluation: Evaluation | None) -> float | None:
    return None if evaluation is None else evaluation.accuracy


def _num_parameters(model: Encoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _above_idle(energy: Energy, idle_watts: float | None) -> float | None:
    """What the work took beyond the idle machine, in kWh; None where that is unknown, or lost in the noise."""
    if energy.kwh is None or idle_watts is None:
        return None
    above = energy.kwh - idle_watts * energy.seconds / JOULES_PER_KWH
    return above if above > 0 else None


def _measuring(model: Encoder) -> dict[str, Any]:
    """How this process times a model: what must be equal for two times to be compared, beside the machine."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention_backend": attention_backend(),
        "batch_sizes": [1, BATCH_SIZE],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _inference_energy(
    model: Encoder, test: EncodedSplit, electricity: Electricity, device: str
) -> tuple[float, EnergyMeter]:
    """Thousands of inputs, and the energy of running them; batches of all lengths, over and over."""
    batches = spread_batches(test, BATCH_SIZE, DISTINCT_BATCHES, device)
    num_inputs = 0
    with EnergyMeter(electricity, device=device) as meter, torch.inference_mode():
        start = time.perf_counter()
        while not num_inputs or time.perf_counter() - start < WINDOW_S:
            for tokens_BT, mask_BT in batches:
                model(tokens_BT, mask_BT)
                num_inputs += len(tokens_BT)
            synchronise(device)
    return num_inputs / 1000, meter

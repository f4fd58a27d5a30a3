"""One trial from data to record: train, evaluate, count, time and meter."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baselines.full_mha import FullMHA
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.surgery import execution_of
from suites.batching import collate, evaluation_order, padded_lengths
from suites.cost import ExecutedMacs, traced_macs
from suites.energy import EnergyMeter
from suites.environment import describe
from suites.evaluate import BATCH_SIZE, Evaluation, evaluate
from suites.formulas import attention_block_macs, attention_core_macs, model_macs, paper_flops_cut
from suites.latency import measure_latency
from suites.model import build_model
from suites.plan import Trial
from suites.record import Record
from suites.seeding import Streams
from suites.tokenizing import EncodedSplit, EncodedTask, encode_task
from suites.train import OnStep, train
from suites.usage import head_use, quality

INFERENCE_WINDOW_S = 1.5
"""Inference is repeated until its energy window is at least this long."""

Arrays = dict[str, NDArray[Any]]


def run_trial(trial: Trial, start_time: str, on_step: OnStep) -> tuple[Record, Arrays]:
    """Runs a trial.

    Args:
        trial: what to run.
        start_time: for the record, ISO 8601.
        on_step: told (steps done, steps in all) during training.

    Returns:
        The record, and the per-example arrays that go beside it.

    Raises:
        Exception: whatever goes wrong; the engine makes a failed record of it.
    """
    torch.set_num_threads(trial.task.recipe.threads)
    torch.use_deterministic_algorithms(trial.deterministic)
    streams = Streams(trial.task.name, trial.seed)
    data = load(trial)
    spec = encoder_spec(trial, data)
    model = build_model(spec, trial.method, streams, trial.device)
    with EnergyMeter() as training:
        history = train(
            model,
            trial.method,
            data,
            recipe=trial.task.recipe,
            streams=streams,
            device=trial.device,
            on_step=on_step,
        )
    torch.use_deterministic_algorithms(False)  # they would slow down what is timed
    final = trial.method.for_inference(model, trial.execution)
    with ExecutedMacs() as counter:
        evaluation = evaluate(final, data.test, trial.device)
    full = FullMHA().for_inference(build_model(spec, FullMHA(), streams, trial.device))
    latency, samples = measure_latency(final, full, data.test, trial.device)
    num_passes, inference = _inference_energy(final, data.test, trial.device)
    per_thousand = num_passes * len(data.test) / 1000
    metrics: dict[str, Any] = {
        **quality(evaluation.arrays),
        "validation_accuracy": history[-1]["validation_accuracy"],
        **head_use(evaluation.arrays),
        "num_parameters": _num_parameters(model),
        "num_parameters_inference": _num_parameters(final),
        **_cost(final, evaluation, counter.macs, data.test, trial.device),
        "train_s": training.energy.seconds,
        **latency,
        "train_energy_kwh": training.energy.kwh,
        "train_co2_g": training.energy.co2_g,
        "inference_energy_kwh": _divide(inference.energy.kwh, per_thousand),
        "inference_co2_g": _divide(inference.energy.co2_g, per_thousand),
    }
    s_mean = metrics["s_mean"]
    metrics["paper_flops_cut"] = (
        None if s_mean is None else paper_flops_cut(trial.task.max_length, spec.width, spec.num_heads, s_mean)
    )
    record = Record(
        question=trial.question(),
        status="done",
        metrics=metrics,
        execution=execution_of(final),
        history=history,
        timings=samples,
        energy={"train": training.energy.provenance, "inference": inference.energy.provenance},
        circumstance=describe(trial.device) | {"start_time": start_time},
    )
    return record, _compressed(evaluation.arrays)


def load(trial: Trial) -> EncodedTask:
    """The trial's task, encoded."""
    task = trial.task
    return encode_task(task.name, task.max_length, task.vocab_size, task.train_limit, task.test_limit)


def encoder_spec(trial: Trial, data: EncodedTask) -> EncoderSpec:
    """The encoder's sizes: the suite's, and what the task adds."""
    return EncoderSpec(
        vocab_size=data.vocab_size,
        num_classes=data.num_classes,
        max_length=trial.task.max_length,
        **asdict(trial.sizes),
    )


def _compressed(arrays: Arrays) -> Arrays:
    """The arrays as they are stored: the heads of an input as bits, so that k per layer and every set can be read."""
    active_NLH = arrays["active"]
    stored = {name: array for name, array in arrays.items() if name != "active"}
    stored["k"] = active_NLH.sum(axis=2).astype(np.uint8)
    stored["active"] = np.packbits(active_NLH, axis=2, bitorder="little")
    return {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in stored.items()}


def _num_parameters(model: Encoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _divide(total: float | None, by: float) -> float | None:
    return None if total is None else total / by


def _cost(model: Encoder, evaluation: Evaluation, executed: int, test: EncodedSplit, device: str) -> dict[str, Any]:
    spec = model.spec
    head_width = spec.width // spec.num_heads
    k_NL = evaluation.arrays["active"].sum(axis=2)
    padded_N = padded_lengths(test, evaluation_order(test, BATCH_SIZE))
    full = [
        model_macs(
            int(tokens),
            width=spec.width,
            ffn_width=spec.ffn_size,
            heads=[spec.num_heads] * spec.num_layers,
            head_width=head_width,
            num_classes=spec.num_classes,
        )
        for tokens in padded_N
    ]
    # Both forms are linear in k, so the layers of an input can be added up first.
    pairs = [(int(tokens), int(k)) for tokens, k in zip(padded_N, k_NL.sum(axis=1), strict=True)]
    core = [attention_core_macs(tokens, k, head_width) for tokens, k in pairs]
    block = [attention_block_macs(tokens, spec.width, k, head_width) for tokens, k in pairs]
    longest = collate(test, np.array([test.lengths.argmax()]), device)
    gathered = "gathered" in execution_of(model)
    return {
        "macs_executed": executed / len(test),
        "macs_full": sum(full) / len(test),
        "macs_attention_core": sum(core) / len(test),
        "macs_attention_block": sum(block) / len(test),
        "macs_traced": None if gathered else traced_macs(model, longest.tokens_BT, longest.mask_BT),
        "padding_share": float(1 - test.lengths.sum() / padded_N.sum()),
    }


def _inference_energy(model: Encoder, test: EncodedSplit, device: str) -> tuple[int, EnergyMeter]:
    num_passes = 0
    with EnergyMeter() as meter:
        start = time.perf_counter()
        while time.perf_counter() - start < INFERENCE_WINDOW_S:
            evaluate(model, test, device)
            num_passes += 1
    return num_passes, meter

"""Latency of a model on real test inputs, and its ratio to full attention."""

from collections.abc import Callable, Iterable
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from budgetformer.encoder import Encoder
from budgetformer.surgery import execution_of
from suites.batching import collate, evaluation_order
from suites.encoded import EncodedSplit
from suites.timing import interleave, percentile, ratio, time_calls

BATCH_SIZE = 32
B1_ROUNDS = 60
B32_ROUNDS = 30
DISTINCT_BATCHES = 6


def inference_call(model: nn.Module, batches: Iterable[tuple[torch.Tensor, ...]]) -> Callable[[], None]:
    """A call that runs the model on the next of some batches (tokens, mask, ...) each time, over and over."""
    turns = cycle(batches)

    def call() -> None:
        batch = next(turns)
        with torch.inference_mode():
            model(*batch)

    return call


def spread_batches(
    split: EncodedSplit, batch_size: int, count: int, device: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of similar length that cover the lengths of a split evenly: the same ones every time."""
    order = evaluation_order(split, batch_size)
    whole = [rows for rows in order if len(rows) == batch_size] or order
    chosen: list[NDArray[np.int64]] = [whole[i] for i in np.linspace(0, len(whole) - 1, count).astype(int)]
    collated = [collate(split, rows, device) for rows in chosen]
    return [(batch.tokens_BT, batch.mask_BT) for batch in collated]


def measure_latency(
    model: Encoder, full: Encoder, test: EncodedSplit, device: str
) -> tuple[dict[str, float | None], dict[str, list[float]]]:
    """Times a model alone, and in turns with full attention.

    Args:
        model: from ``Method.for_inference``.
        full: full attention of the same sizes.
        test: the inputs.
        device: where the models are.

    Returns:
        The latency metrics of ``suites.record``, and the raw samples in seconds by name.
    """
    singles = spread_batches(test, 1, B1_ROUNDS, device)
    single_call = inference_call(model, singles)
    _warm_up(single_call, len(singles))
    b1 = time_calls(single_call, device=device, rounds=B1_ROUNDS, warmup_s=0)
    batches = spread_batches(test, BATCH_SIZE, DISTINCT_BATCHES, device)
    # Each call walks over the batches by itself; both are warmed up by as many calls, so a round is one batch for both.
    calls = {"method": inference_call(model, batches), "full": inference_call(full, batches)}
    for call in calls.values():
        _warm_up(call, len(batches))
    b32 = interleave(calls, device=device, rounds=B32_ROUNDS, warmup_s=0)
    to_full = ratio(b32["method"], b32["full"])
    metrics = {
        "latency_b1_p50_s": percentile(b1, 50),
        "latency_b1_p95_s": percentile(b1, 95),
        "latency_b32_p50_s": percentile(b32["method"], 50),
        "latency_b32_p95_s": percentile(b32["method"], 95),
        "latency_b32_ratio": to_full,
        "latency_b32_aa_ratio": to_full if execution_of(model) == "dense" else None,
    }
    return metrics, {"latency_b1_s": b1} | {f"latency_b32_{name}_s": samples for name, samples in b32.items()}


def _warm_up(call: Callable[[], None], num_batches: int) -> None:
    """Runs every batch once: a length that is new to the machine costs more."""
    for _ in range(num_batches):
        call()

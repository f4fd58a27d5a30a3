"""Latency of a model on real test inputs, and its ratio to full attention."""

import copy
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from budgetformer.encoder import Encoder
from suites.data.batching import collate, evaluation_order
from suites.data.encoded import EncodedSplit
from suites.measuring.circumstance import attention_backend
from suites.measuring.timing import Ratio, compare, interleave, percentiles

BATCH_SIZE = 32
DISTINCT_SINGLES = 67
DISTINCT_BATCHES = 5
B1_PASSES = 1, 3
B32_PASSES = 3, 10
"""At least and at most, over the inputs: 67 to 201 rounds of single ones, 15 to 50 of batches."""

PRECISION = 0.01
"""Passes over batches end when half the 95 % interval of the ratio to full attention is this share of it."""

LIMIT_S = 8.0
"""No further pass is begun after that. A 99th percentile needs all passes over single inputs."""

WARMUP_S = 1.0


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
    """Times a model in turns with full attention and a second copy of that, on single inputs and on batches of 32.

    The two copies tell what difference is none (A/A).

    Args:
        model: from ``Method.for_inference``.
        full: full attention of the same sizes.
        test: the inputs.
        device: where the models are.

    Returns:
        The latency metrics of ``suites.records.metrics``, and the raw samples in seconds by name.
    """
    models = {"method": model, "full": full, "full_again": copy.deepcopy(full)}
    singles = spread_batches(test, 1, DISTINCT_SINGLES, device)
    b1 = _in_turns(models, singles, device, B1_PASSES)
    batches = spread_batches(test, BATCH_SIZE, DISTINCT_BATCHES, device)
    b32 = _in_turns(models, batches, device, B32_PASSES, _is_precise)
    batch_size = len(batches[0][0])  # a test set may have fewer than 32
    metrics: dict[str, float | None] = {"throughput_b32_per_s": batch_size / statistics.fmean(b32["method"])}
    timings: dict[str, list[float]] = {}
    for name, samples in (("b1", b1), ("b32", b32)):
        timings |= {f"latency_{name}_{who}_s": seconds for who, seconds in samples.items()}
        metrics |= {f"latency_{name}_p{q}_s": value for q, value in percentiles(samples["method"]).items()}
        metrics |= _flat(f"latency_{name}_ratio", compare(samples["method"], samples["full"]))
        metrics |= _flat(f"latency_{name}_aa_ratio", compare(samples["full_again"], samples["full"]))
    return metrics, timings


def timing_conditions(model: nn.Module) -> dict[str, Any]:
    """How this process times a model: what must be equal for two times to be compared, beside the machine."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention_backend": attention_backend(),
        "batch_sizes": [1, BATCH_SIZE],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _in_turns(
    models: Mapping[str, Encoder],
    batches: Sequence[tuple[torch.Tensor, ...]],
    device: str,
    passes: tuple[int, int],
    enough: Callable[[dict[str, list[float]]], bool] = lambda samples: False,
) -> dict[str, list[float]]:
    # Each call walks over the batches by itself, all in step: a round is one batch for all models.
    least, most = passes
    return interleave(
        {name: inference_call(model, batches) for name, model in models.items()},
        device=device,
        rounds=least * len(batches),
        most_rounds=most * len(batches),
        enough=enough,
        limit_s=LIMIT_S,
        period=len(batches),  # a length that is new to the machine costs more
        warmup_s=WARMUP_S,
    )


def _is_precise(samples: dict[str, list[float]]) -> bool:
    return compare(samples["method"], samples["full"]).half_width <= PRECISION


def _flat(key: str, ratio: Ratio) -> dict[str, float | None]:
    low, high = ratio.interval or (None, None)
    return {key: ratio.value, f"{key}_low": low, f"{key}_high": high}

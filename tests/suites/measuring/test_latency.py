from typing import ClassVar

import numpy as np
import pytest
import torch

from suites.data.encoded import EncodedSplit
from suites.measuring import latency
from suites.measuring.latency import measure_latency, spread_batches
from suites.measuring.timing import MIN_P99_SAMPLES, MIN_ROUNDS, compare

LOG: list[tuple[int, int]] = []
"""Who was given which length; one for all doubles, as full attention is copied."""


class Recorder:
    """A model double that notes the lengths that it is given."""

    layers: ClassVar[list[object]] = []

    def __call__(self, tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        LOG.append((id(self), tokens_BT.shape[1]))


def make_split() -> EncodedSplit:
    tokens = [np.ones(length, dtype=np.int64) for length in range(1, 401)]
    return EncodedSplit(tokens, np.zeros(400, dtype=np.int64), np.arange(400))


def test_batches_cover_all_lengths() -> None:
    lengths = [tokens_BT.shape[1] for tokens_BT, _ in spread_batches(make_split(), 1, 5, "cpu")]
    assert lengths == [1, 100, 200, 300, 400]


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, float | None], dict[str, list[float]]]:
    LOG.clear()
    return measure_latency(Recorder(), Recorder(), make_split(), "cpu")  # type: ignore[arg-type]


Measured = tuple[dict[str, float | None], dict[str, list[float]]]


def test_each_round_times_the_same_batch_for_all_and_every_batch_is_warmed_up(measured: Measured) -> None:
    _, samples = measured
    num_timed = 3 * len(samples["latency_b32_method_s"])
    rounds, warm = LOG[-num_timed:], LOG[:-num_timed]
    for start in range(0, len(rounds), 3):
        turn = rounds[start : start + 3]
        assert len({who for who, _ in turn}) == 3
        assert len({length for _, length in turn}) == 1
    batches = {
        tokens_BT.shape[1]
        for tokens_BT, _ in spread_batches(make_split(), latency.BATCH_SIZE, latency.DISTINCT_BATCHES, "cpu")
    }
    for who in {who for who, _ in rounds}:
        assert batches <= {length for one, length in warm if one == who}


def test_full_attention_is_timed_against_itself_in_the_same_rounds(measured: Measured) -> None:
    metrics, samples = measured
    for name in ("b1", "b32"):
        ours, theirs = samples[f"latency_{name}_full_again_s"], samples[f"latency_{name}_full_s"]
        again = compare(ours, theirs)
        assert metrics[f"latency_{name}_aa_ratio"] == again.value
        assert (metrics[f"latency_{name}_aa_ratio_low"], metrics[f"latency_{name}_aa_ratio_high"]) == again.interval


def test_there_are_enough_rounds_and_all_are_kept(measured: Measured) -> None:
    metrics, samples = measured
    assert len(samples["latency_b1_method_s"]) >= MIN_P99_SAMPLES
    assert metrics["latency_b1_p99_s"] is not None
    assert MIN_ROUNDS <= len(samples["latency_b32_method_s"]) < MIN_P99_SAMPLES
    assert metrics["latency_b32_p99_s"] is None
    mean = sum(samples["latency_b32_method_s"]) / len(samples["latency_b32_method_s"])
    assert metrics["throughput_b32_per_s"] == pytest.approx(32 / mean)

from typing import ClassVar

import numpy as np
import torch

from suites import latency
from suites.encoded import EncodedSplit
from suites.latency import measure_latency, spread_batches


class Recorder:
    """A model double that notes the lengths that it is given."""

    layers: ClassVar[list[object]] = []

    def __init__(self, log: list[tuple[int, int]]) -> None:
        self.log = log

    def __call__(self, tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        self.log.append((id(self), tokens_BT.shape[1]))


def make_split() -> EncodedSplit:
    tokens = [np.ones(length, dtype=np.int64) for length in range(1, 401)]
    return EncodedSplit(tokens, np.zeros(400, dtype=np.int64), np.arange(400))


def test_batches_cover_all_lengths() -> None:
    lengths = [tokens_BT.shape[1] for tokens_BT, _ in spread_batches(make_split(), 1, 5, "cpu")]
    assert lengths == [1, 100, 200, 300, 400]


def test_each_round_times_the_same_batch_for_all_and_every_batch_is_warmed_up() -> None:
    log: list[tuple[int, int]] = []
    split = make_split()
    model, full = Recorder(log), Recorder(log)
    _, samples = measure_latency(model, full, split, "cpu")  # type: ignore[arg-type]
    rounds = log[-2 * latency.B32_ROUNDS :]
    for start in range(0, len(rounds), 2):
        turn = rounds[start : start + 2]
        assert len({who for who, _ in turn}) == 2
        assert len({length for _, length in turn}) == 1
    warm = log[: -2 * latency.B32_ROUNDS]
    batches = {
        tokens_BT.shape[1]
        for tokens_BT, _ in spread_batches(split, latency.BATCH_SIZE, latency.DISTINCT_BATCHES, "cpu")
    }
    for who in {who for who, _ in rounds}:
        assert batches <= {length for one, length in warm if one == who}
    assert len(samples["latency_b1_s"]) == latency.B1_ROUNDS
    assert samples["latency_b32_full_s"]

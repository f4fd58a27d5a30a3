"""Batches of similar length, so that little is spent on padding."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgetformer.importance import LabelledBatch
from suites.data.encoded import EncodedSplit

POOL_BATCHES = 50
"""Training batches are sorted by length within random pools of this many batches."""


def training_order(split: EncodedSplit, batch_size: int, generator: torch.Generator) -> list[NDArray[np.int64]]:
    """Row numbers of one epoch's batches, in random order; a function of the generator and the lengths alone."""
    lengths = torch.from_numpy(split.lengths)
    shuffled = torch.randperm(len(split), generator=generator)
    batches: list[Tensor] = []
    for pool in torch.split(shuffled, POOL_BATCHES * batch_size):
        batches += torch.split(pool[lengths[pool].argsort(stable=True)], batch_size)
    return [batches[i].numpy() for i in torch.randperm(len(batches), generator=generator).tolist()]


def evaluation_order(split: EncodedSplit, batch_size: int) -> list[NDArray[np.int64]]:
    """Row numbers of batches over the whole split, shortest inputs first."""
    order = split.lengths.argsort(kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def padded_lengths(split: EncodedSplit, order: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The tokens that run for each input, padding included, ``(N,)``."""
    padded_N = np.empty(len(split), dtype=np.int64)
    for rows in order:
        padded_N[rows] = split.lengths[rows].max()
    return padded_N


def collate(split: EncodedSplit, rows: NDArray[np.int64], device: str = "cpu") -> LabelledBatch:
    """Pads some rows to the longest of them."""
    length = max(len(split.tokens[row]) for row in rows)
    tokens_BT = np.zeros((len(rows), length), dtype=np.int64)
    mask_BT = np.zeros((len(rows), length), dtype=bool)
    for i, row in enumerate(rows):
        tokens_BT[i, : len(split.tokens[row])] = split.tokens[row]
        mask_BT[i, : len(split.tokens[row])] = True
    tensors = (torch.from_numpy(array) for array in (tokens_BT, mask_BT, split.labels[rows]))
    return LabelledBatch(*(tensor.to(device) for tensor in tensors))


def batches(split: EncodedSplit, order: Iterable[NDArray[np.int64]], device: str = "cpu") -> Iterator[LabelledBatch]:
    """The batches of an order, one at a time."""
    return (collate(split, rows, device) for rows in order)

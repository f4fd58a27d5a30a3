"""Tasks as token ids: what models are trained and evaluated on. Needs numpy alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EncodedSplit:
    """Token ids of one split.

    Attributes:
        tokens: one array of ids per input, [CLS] first, so that none is empty.
        labels: classes, ``(N,)``.
        ids: row of each input in the task's distinct texts, ``(N,)``.
        difficulty: of each input, ``(N,)``, where the task knows it.
    """

    tokens: list[NDArray[np.int64]]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]
    difficulty: NDArray[np.int64] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(tokens) for tokens in self.tokens], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class EncodedTask:
    """A task as the models see it.

    Attributes:
        train, validation, test: its splits.
        vocab_size: number of token ids.
        num_classes: number of classes.
    """

    train: EncodedSplit
    validation: EncodedSplit
    test: EncodedSplit
    vocab_size: int
    num_classes: int

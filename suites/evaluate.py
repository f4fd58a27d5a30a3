"""Evaluation: predictions and head use of every input."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from budgetformer.encoder import Encoder
from suites.batching import batches, evaluation_order
from suites.tokenizing import EncodedSplit

EVALUATION_BATCH_SIZE = 64


@dataclass(frozen=True)
class Evaluation:
    """What a model said of every input, in the split's order.

    Attributes:
        arrays: ``id``, ``label``, ``prediction``, ``length`` (N,) integers; ``loss`` (N,) nats; ``active`` (N, L, H)
            booleans, the heads that were active; ``s`` (N, L), the fraction asked for, if the method has one.
    """

    arrays: dict[str, NDArray[Any]]

    @property
    def accuracy(self) -> float:
        return float((self.arrays["prediction"] == self.arrays["label"]).mean())


def evaluate(
    model: Encoder, split: EncodedSplit, device: str = "cpu", batch_size: int = EVALUATION_BATCH_SIZE
) -> Evaluation:
    """Runs a model over a split.

    Args:
        model: from ``Method.for_inference``.
        split: the inputs.
        device: where the model is.
        batch_size: inputs per batch; batches hold inputs of similar length.
    """
    order = evaluation_order(split, batch_size)
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    with torch.inference_mode():
        for batch in batches(split, order, device):
            output = model(batch.tokens_BT, batch.mask_BT)
            columns["prediction"].append(output.logits_BC.argmax(dim=1).cpu().numpy())
            columns["loss"].append(F.cross_entropy(output.logits_BC, batch.labels_B, reduction="none").cpu().numpy())
            columns["active"].append((output.gates_BLH > 0).cpu().numpy())
            if output.s_BL is not None:
                columns["s"].append(output.s_BL.cpu().numpy())
    inverse = np.argsort(np.concatenate(order))
    arrays = {name: np.concatenate(parts)[inverse] for name, parts in columns.items()}
    return Evaluation({"id": split.ids, "label": split.labels, "length": split.lengths} | arrays)

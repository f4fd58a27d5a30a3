"""Evaluation: predictions and head use of every input."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from budgetformer.encoder import Encoder
from budgetformer.gates import check_gates
from suites.data.batching import batches, evaluation_order
from suites.data.encoded import EncodedSplit

EVALUATION_BATCH_SIZE = 64


@dataclass(frozen=True)
class Evaluation:
    """What a model said of every input, in the split's order.

    Attributes:
        arrays: ``id``, ``label``, ``prediction``, ``length`` (N,) integers; ``loss`` (N,) nats; ``gates`` (N, L, H),
            the weight of each head; ``s`` (N, L), the fraction asked for, and ``relevance`` (N, L, H), if the method
            has them; ``difficulty`` (N,), if the task knows it.
    """

    arrays: dict[str, NDArray[Any]]

    @property
    def accuracy(self) -> float:
        return float((self.arrays["prediction"] == self.arrays["label"]).mean())


class NotFiniteError(RuntimeError):
    """The loss of an input is no finite number: its prediction means nothing."""


def evaluate(
    model: Encoder,
    split: EncodedSplit,
    device: str = "cpu",
    *,
    gates_NLH: NDArray[np.float32] | None = None,
) -> Evaluation:
    """Runs a model over a split.

    Args:
        model: from ``Method.for_inference``.
        split: the inputs.
        device: where the model is.
        gates_NLH: gates to use in place of those that the model would choose, in the split's order.

    Raises:
        ValueError: if a gate is negative or not finite.
        NotFiniteError: if the loss of an input is not.
    """
    order = evaluation_order(split, EVALUATION_BATCH_SIZE)
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    with torch.inference_mode():
        for rows, batch in zip(order, batches(split, order, device), strict=True):
            given = None if gates_NLH is None else torch.from_numpy(gates_NLH[rows]).to(device)
            output = model(batch.tokens_BT, batch.mask_BT, given)
            check_gates(output.gates_BLH)
            columns["prediction"].append(output.logits_BC.argmax(dim=1).cpu().numpy())
            columns["loss"].append(F.cross_entropy(output.logits_BC, batch.labels_B, reduction="none").cpu().numpy())
            columns["gates"].append(output.gates_BLH.cpu().numpy())
            for name, values in (("s", output.s_BL), ("relevance", output.relevance_BLH)):
                if values is not None:
                    columns[name].append(values.cpu().numpy())
    inverse = np.argsort(np.concatenate(order))
    arrays = {name: np.concatenate(parts)[inverse] for name, parts in columns.items()}
    if not np.isfinite(arrays["loss"]).all():
        first = int(np.isfinite(arrays["loss"]).argmin())
        raise NotFiniteError(f"the loss of input {split.ids[first]} is {arrays['loss'][first]}")
    arrays |= {"id": split.ids, "label": split.labels, "length": split.lengths}
    return Evaluation(arrays if split.difficulty is None else arrays | {"difficulty": split.difficulty})

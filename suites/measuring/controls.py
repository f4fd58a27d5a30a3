"""Is a choice of heads per input worth anything? The same trained model, with the choice taken away.

A method that chooses for each input must beat each of these, or a constant choice would have done.

Shapes: N inputs, L layers, H heads.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Gates = NDArray[np.float32]
CONTROLS = ("shuffled", "modal_set", "random_heads", "mean_k")


def control_gates(gates_NLH: Gates, relevance_NLH: Gates | None, rng: np.random.Generator) -> dict[str, Gates]:
    """Gates to evaluate a model with in place of those that it chose; none if it chose the same for every input.

    Args:
        gates_NLH: what it chose.
        relevance_NLH: its distributions over heads, if it has any.
        rng: for what is random.

    Returns:
        By name: ``shuffled``, the gates of another input; ``modal_set``, in each layer the most frequent set of heads
        for all, with the mean gates of the inputs that chose it; ``random_heads``, each input's own gates on heads
        drawn at random; ``mean_k``, each input's best heads, but the same number for all: the layer's mean (left out
        where all have the same number).
    """
    if len(gates_NLH) < 2 or (gates_NLH == gates_NLH[0]).all():
        return {}
    per_layer = range(gates_NLH.shape[1])
    relevance = gates_NLH if relevance_NLH is None else relevance_NLH
    controls = {
        "shuffled": gates_NLH[_derangement(len(gates_NLH), rng)],
        "modal_set": np.stack([_modal_set(gates_NLH[:, layer]) for layer in per_layer], axis=1),
        "random_heads": rng.permuted(gates_NLH, axis=2),
    }
    k_NL = (gates_NLH > 0).sum(axis=2)
    if (k_NL != k_NL[0]).any():
        means = [_mean_k(gates_NLH[:, layer], relevance[:, layer]) for layer in per_layer]
        controls["mean_k"] = np.stack(means, axis=1)
    return controls


def _derangement(size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """For each of some inputs another one, every one once."""
    order = rng.permutation(size)
    other = np.empty(size, dtype=np.int64)
    other[order] = np.roll(order, 1)
    return other


def _modal_set(gates_NH: Gates) -> Gates:
    _, index_N, counts = np.unique(gates_NH > 0, axis=0, return_inverse=True, return_counts=True)
    chose_it_N = index_N.ravel() == counts.argmax()
    mean_H: Any = gates_NH[chose_it_N].mean(axis=0)
    return np.broadcast_to(mean_H, gates_NH.shape).astype(np.float32)


def _mean_k(gates_NH: Gates, relevance_NH: Gates) -> Gates:
    active_NH = gates_NH > 0
    k = round(float(active_NH.sum(axis=1).mean()))
    # The active ones first, then by relevance; a head that comes in has the layer's mean weight.
    order_NH = np.lexsort((-relevance_NH, ~active_NH), axis=1)
    kept_NH = np.zeros_like(active_NH)
    np.put_along_axis(kept_NH, order_NH[:, :k], True, axis=1)
    weight = gates_NH[active_NH].mean() if active_NH.any() else 1.0
    return np.where(kept_NH, np.where(active_NH, gates_NH, weight), 0).astype(np.float32)

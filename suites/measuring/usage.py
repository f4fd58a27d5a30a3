"""From per-input arrays to the numbers of a record: sums over inputs, divided once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def quality(arrays: Arrays) -> dict[str, float]:
    """Accuracy, mean loss and the rate of the most frequent class."""
    return {
        "accuracy": float((arrays["prediction"] == arrays["label"]).mean()),
        "test_loss": float(arrays["loss"].mean(dtype=np.float64)),
        "majority_rate": float(np.bincount(arrays["label"]).max() / len(arrays["label"])),
    }


def head_use(arrays: Arrays) -> dict[str, Any]:
    """Requested and executed fractions of heads, in all and by layer, head and class; None where none was requested."""
    active_NLH = arrays["gates"] > 0
    k_NL = active_NLH.sum(axis=2)
    num_heads = active_NLH.shape[2]
    s_NL = arrays.get("s")
    of_class = [k_NL[arrays["label"] == label] for label in range(arrays["label"].max() + 1)]
    return {
        "s_mean": None if s_NL is None else float(s_NL.mean(dtype=np.float64)),
        "s_mean_per_layer": None if s_NL is None else s_NL.mean(axis=0, dtype=np.float64).tolist(),
        "heads_executed": float(k_NL.mean() / num_heads),
        "heads_executed_per_layer": (k_NL.mean(axis=0) / num_heads).tolist(),
        "heads_executed_per_class": [(k_ML.mean(axis=0) / num_heads).tolist() for k_ML in of_class],
        "use_per_head": active_NLH.mean(axis=0).tolist(),
        "no_head_share": float((k_NL == 0).mean()),
        "one_head_share": float((k_NL == 1).mean()),
    }


def by_difficulty(arrays: Arrays) -> dict[str, Any]:
    """Accuracy and heads of the inputs of each difficulty, the easiest first; None where it is not known."""
    if "difficulty" not in arrays:
        return dict.fromkeys(("accuracy_per_difficulty", "heads_executed_per_difficulty"))
    right_N = arrays["prediction"] == arrays["label"]
    used_N = (arrays["gates"] > 0).mean(axis=(1, 2))
    groups = [arrays["difficulty"] == level for level in np.unique(arrays["difficulty"])]
    return {
        "accuracy_per_difficulty": [float(right_N[group].mean()) for group in groups],
        "heads_executed_per_difficulty": [float(used_N[group].mean()) for group in groups],
    }

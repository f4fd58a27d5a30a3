"""Values that move over training, as functions of progress in [0, 1]."""

import math
from typing import Literal

Shape = Literal["constant", "linear", "exponential", "cosine"]
SHAPES: tuple[Shape, ...] = ("constant", "linear", "exponential", "cosine")


def interpolate(start: float, end: float, progress: float, shape: Shape = "linear") -> float:
    """Moves from ``start`` to ``end``.

    Args:
        start: the value at progress 0.
        end: the value at progress 1.
        progress: the share of training that is done; clamped to [0, 1].
        shape: ``constant`` stays at ``start``; ``exponential`` moves by equal factors (both ends must be positive).

    Raises:
        ValueError: for an unknown shape, or an exponential with an end that is not positive.
    """
    t = min(max(progress, 0.0), 1.0)
    if shape == "constant":
        return start
    if shape == "linear":
        return start + (end - start) * t
    if shape == "cosine":
        return end + (start - end) * (1 + math.cos(math.pi * t)) / 2
    if shape == "exponential":
        if start <= 0 or end <= 0:
            raise ValueError(f"an exponential schedule needs positive ends, not {start} and {end}")
        return start * math.exp(math.log(end / start) * t)
    raise ValueError(f"unknown schedule {shape!r}; one of {', '.join(SHAPES)}")

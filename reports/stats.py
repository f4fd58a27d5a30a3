"""Statistics over seeds: plain functions on arrays. Nothing here plots or formats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from suites.records.metrics import Direction

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Values of one quantity over seeds.

    Attributes:
        mean: their mean.
        std: sample standard deviation (ddof = 1); None for one value, which has no spread.
        n: how many values.
    """

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """Differences of pairs.

    Attributes:
        mean: their mean.
        interval: the t interval of the mean; None for one pair.
        n: how many pairs.
    """

    mean: float
    interval: tuple[float, float] | None
    n: int


def summarise(values: Values) -> Summary:
    """Mean and spread.

    Raises:
        ValueError: if there are no values.
    """
    if not len(values):
        raise ValueError("no values to summarise")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), std, len(values))


def paired_difference(values: Values, reference: Values, level: float = 0.95) -> PairedDifference:
    """The mean of values minus reference, pair by pair, with its t interval.

    Args:
        values: one number per pair.
        reference: the number that it is compared with, at the same place.
        level: coverage of the interval, in (0, 1).

    Raises:
        ValueError: if there are no pairs, or the arrays are not of one length.
    """
    if len(values) != len(reference):
        raise ValueError(f"{len(values)} values cannot be paired with {len(reference)}")
    difference = summarise(values - reference)
    if difference.std is None:
        return PairedDifference(difference.mean, None, difference.n)
    t = float(stats.t.ppf((1 + level) / 2, difference.n - 1))
    half = t * difference.std / math.sqrt(difference.n)
    return PairedDifference(difference.mean, (difference.mean - half, difference.mean + half), difference.n)


def paired_ratio(samples: Sequence[float], reference: Sequence[float]) -> float:
    """The median over pairs of one number over the other.

    Raises:
        ValueError: if there are no pairs, or the sequences are not of one length.
    """
    if not samples or len(samples) != len(reference):
        raise ValueError(f"{len(samples)} samples cannot be paired with {len(reference)}")
    return float(np.median(np.asarray(samples) / np.asarray(reference)))


def best(values: Sequence[float | None], direction: Direction, digits: int) -> list[bool]:
    """Which values are the best ones, as far as the shown digits tell.

    Args:
        values: one number per competitor; None takes no part.
        direction: which way is better; with ``none`` nobody is best.
        digits: decimals that are shown. Values that look equal are equal.

    Returns:
        One flag per value; all False where everyone is equal, for then nobody stands out.
    """
    shown = [None if value is None else round(value, digits) for value in values]
    known = {value for value in shown if value is not None}
    if direction == "none" or len(known) < 2:
        return [False] * len(shown)
    winner = max(known) if direction == "higher" else min(known)
    return [value == winner for value in shown]

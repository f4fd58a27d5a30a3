"""The one timer. Every latency of the bench comes from here.

A call is over when the device has finished its work, not when Python returns: the device is synchronised before the
clock starts and before it stops. Samples are seconds of wall time, and every one of them is kept.

Under pytest-benchmark: ``benchmark.pedantic(synchronised(call, device), rounds=30, warmup_rounds=5)``.
"""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

Result = TypeVar("Result")
Call = Callable[[], Any]
Synchronise = Callable[[str], None]
Clock = Callable[[Call, str], float]
"""Takes a call and a device, and gives seconds."""

MIN_ROUNDS = 30
"""Fewer samples say little of a tail, or of the spread of a median."""

MIN_P99_SAMPLES = 200
"""The 99th percentile of fewer is little else than their largest two."""

_WINDOW = 5
_STABLE = 0.05


def synchronise(device: str) -> None:
    """Waits until the device has finished all work given to it; a CPU has finished when Python returns."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def synchronised(
    call: Callable[[], Result], device: str, synchronise: Synchronise = synchronise
) -> Callable[[], Result]:
    """The same call, ending when the device has finished. For clocks that know nothing of devices."""

    def finished() -> Result:
        result = call()
        synchronise(device)
        return result

    return finished


def wall(call: Call, device: str, synchronise: Synchronise = synchronise) -> float:
    """Seconds of one call by the wall clock: from an idle device until it has finished, as its caller sees it."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def events(call: Call, device: str) -> float:
    """Seconds of one call by CUDA events: what launching takes is in it where the device waits for that.

    It begins on an idle device and ends with the last kernel: what telling Python of the end takes is not in it.
    """
    synchronise(device)
    event: Any = torch.cuda.Event  # torch leaves it untyped
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    seconds: float = start.elapsed_time(end) / 1000
    return seconds


def interleave(
    calls: Mapping[str, Call],
    *,
    device: str,
    rounds: int = MIN_ROUNDS,
    most_rounds: int | None = None,
    enough: Callable[[dict[str, list[float]]], bool] = lambda samples: False,
    limit_s: float = math.inf,
    period: int = 1,
    warmup_s: float = 1.0,
    clock: Clock = wall,
) -> dict[str, list[float]]:
    """Times calls in turns, so that a machine that gets slower or faster does so for all of them.

    Each call is first repeated until its time is stable. Then each round runs every call once. Of two rounds the first
    has a random order (the same orders every time) and the second that order reversed: a call that always followed the
    same other would find the caches as that one left them. The garbage collector is off meanwhile. An error in a call
    ends it all: there are no samples of fewer rounds.

    Args:
        calls: what to time, by name.
        device: where the calls run, as torch names it.
        rounds: samples per call, at least.
        most_rounds: and at most; ``rounds`` where None.
        enough: told the samples after each further period: whether they are precise enough to end.
        limit_s: no further period is begun after that many seconds of rounds.
        period: after how many times a call does the same again, if it walks over several inputs. It is warmed up by
            whole periods, so that the calls stay in step. Where it is odd, each input meets both orders of a pair.
        warmup_s: the longest warm-up of one call, in seconds; one period always takes place.
        clock: times one call.

    Returns:
        Seconds per call by name, in the order of the rounds: the i-th samples of all names belong together.

    Raises:
        ValueError: if there are no calls, or not at least one round.
    """
    if not calls:
        raise ValueError("nothing to time")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    order = list(calls)
    shuffle = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with _no_garbage_collection():
        for call in calls.values():
            _warm_up(call, device, period, warmup_s, clock)
        start = time.perf_counter()
        for turn in range(most_rounds or rounds):
            if turn >= rounds and turn % period == 0 and (time.perf_counter() - start > limit_s or enough(samples)):
                break
            if turn % 2:
                order.reverse()
            else:
                shuffle.shuffle(order)
            for name in order:
                samples[name].append(clock(calls[name], device))
    return samples


@dataclass(frozen=True)
class Ratio:
    """How much longer than the reference something took.

    Attributes:
        value: the median over rounds of the ratio within the round.
        interval: of that median, 95 %; None for fewer than six rounds.
    """

    value: float
    interval: tuple[float, float] | None

    @property
    def half_width(self) -> float:
        """Half the interval's width over the value; infinite without an interval."""
        return math.inf if self.interval is None else (self.interval[1] - self.interval[0]) / 2 / self.value


def ratio(samples: Sequence[float], reference: Sequence[float]) -> float:
    """The value of :func:`compare` alone."""
    return compare(samples, reference).value


def compare(samples: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Compares two calls that were timed in turns.

    Raises:
        ValueError: if the samples are not of the same rounds, or there are none.
    """
    if not samples or len(samples) != len(reference):
        raise ValueError(f"need as many samples as reference samples, not {len(samples)} and {len(reference)}")
    ratios = [ours / theirs for ours, theirs in zip(samples, reference, strict=True)]
    return Ratio(statistics.median(ratios), median_interval(ratios))


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median, whatever the distribution; None for fewer than six samples.

    Its ends are order statistics: that of n independent samples at most j lie below the median has the probability of
    at most j heads in n tosses (Conover, Practical Nonparametric Statistics, 1999, section 3.2).
    """
    num, below, cut = len(samples), 1.0, -1  # below: tosses with at most cut + 1 heads, of 2^num
    while below <= 0.025 * 2.0**num:
        cut += 1
        below += math.comb(num, cut + 1)
    ordered = sorted(samples)
    return None if cut < 0 else (ordered[cut], ordered[num - 1 - cut])


def percentile(samples: Sequence[float], q: float) -> float:
    """The q-th percentile, q in [0, 100], linear between samples.

    Raises:
        ValueError: if there are no samples, or q is outside its range.
    """
    if not samples:
        raise ValueError("no samples")
    return float(np.percentile(samples, q))


def percentiles(samples: Sequence[float]) -> dict[int, float | None]:
    """The 50th, 95th and 99th percentile; no 99th of fewer than ``MIN_P99_SAMPLES``.

    Raises:
        ValueError: if there are no samples.
    """
    enough = {50: 1, 95: 1, 99: MIN_P99_SAMPLES}
    return {q: percentile(samples, q) if len(samples) >= least else None for q, least in enough.items()}


def _warm_up(call: Call, device: str, period: int, warmup_s: float, clock: Clock) -> None:
    window = period * math.ceil(_WINDOW / period)
    deadline = time.perf_counter() + warmup_s
    samples = [clock(call, device) for _ in range(period)]
    while time.perf_counter() < deadline and not _is_stable(samples, window):
        samples += [clock(call, device) for _ in range(period)]


def _is_stable(samples: Sequence[float], window: int) -> bool:
    """Whether the medians of the last two windows of samples agree."""
    if len(samples) < 2 * window:
        return False
    before, now = statistics.median(samples[-2 * window : -window]), statistics.median(samples[-window:])
    return abs(now - before) <= _STABLE * before


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""The one timer. Every latency of the bench comes from here.

A call is over when the device has finished its work, not when Python returns: the device is synchronised before the
clock starts and before it stops. Samples are seconds of wall time, and every one of them is kept.

Under pytest-benchmark: ``benchmark.pedantic(synchronised(call, device), rounds=30, warmup_rounds=5)``.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

Result = TypeVar("Result")
Call = Callable[[], Any]
Synchronise = Callable[[str], None]

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


def time_calls(
    call: Call, *, device: str, rounds: int = 30, warmup_s: float = 1.0, synchronise: Synchronise = synchronise
) -> list[float]:
    """Times one call; see :func:`interleave`.

    Returns:
        Seconds per call, one number per round.

    Raises:
        ValueError: if there is not at least one round.
    """
    samples = interleave({"": call}, device=device, rounds=rounds, warmup_s=warmup_s, synchronise=synchronise)
    return samples[""]


def interleave(
    calls: Mapping[str, Call],
    *,
    device: str,
    rounds: int = 30,
    warmup_s: float = 1.0,
    synchronise: Synchronise = synchronise,
) -> dict[str, list[float]]:
    """Times calls in turns, so that a machine that gets slower or faster does so for all of them.

    Each call is first repeated until its time is stable. Then each round runs every call once, in a random order (the
    same orders every time): a call that always followed the same other would find the caches as that one left them. The
    garbage collector is off meanwhile. An error in a call ends it all: there are no samples of fewer rounds.

    Args:
        calls: what to time, by name.
        device: where the calls run, as torch names it.
        rounds: samples per call.
        warmup_s: the longest warm-up of one call, in seconds; one run always takes place.
        synchronise: waits for the device.

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
            _warm_up(call, device, warmup_s, synchronise)
        for _ in range(rounds):
            shuffle.shuffle(order)
            for name in order:
                samples[name].append(_seconds(calls[name], device, synchronise))
    return samples


def ratio(samples: Sequence[float], reference: Sequence[float]) -> float:
    """How much longer than the reference: the median over rounds of the ratio within the round.

    Raises:
        ValueError: if the samples are not of the same rounds, or there are none.
    """
    if not samples or len(samples) != len(reference):
        raise ValueError(f"need as many samples as reference samples, not {len(samples)} and {len(reference)}")
    return statistics.median(ours / theirs for ours, theirs in zip(samples, reference, strict=True))


def percentile(samples: Sequence[float], q: float) -> float:
    """The q-th percentile, q in [0, 100], linear between samples.

    Raises:
        ValueError: if there are no samples, or q is outside its range.
    """
    if not samples:
        raise ValueError("no samples")
    return float(np.percentile(samples, q))


def _seconds(call: Call, device: str, synchronise: Synchronise) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def _warm_up(call: Call, device: str, warmup_s: float, synchronise: Synchronise) -> None:
    deadline = time.perf_counter() + warmup_s
    samples = [_seconds(call, device, synchronise)]
    while time.perf_counter() < deadline and not _is_stable(samples):
        samples.append(_seconds(call, device, synchronise))


def _is_stable(samples: Sequence[float]) -> bool:
    """Whether the medians of the last two windows of samples agree."""
    if len(samples) < 2 * _WINDOW:
        return False
    before, now = statistics.median(samples[-2 * _WINDOW : -_WINDOW]), statistics.median(samples[-_WINDOW:])
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

import gc
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from suites.measuring.timing import events, interleave, percentile, ratio, synchronise, synchronised, wall


def time_calls(call: Callable[[], object], **how: Any) -> list[float]:
    return interleave({"": call}, **how)[""]


class Backend:
    """A device on which a call returns at once and its work ends 20 ms later."""

    def __init__(self) -> None:
        self.done_at = 0.0
        self.num_synchronised = 0

    def call(self) -> str:
        self.done_at = time.perf_counter() + 0.02
        return "result"

    def synchronise(self, device: str) -> None:
        self.num_synchronised += 1
        while time.perf_counter() < self.done_at:
            time.sleep(0.001)


def test_work_that_ends_after_the_call_is_timed() -> None:
    backend = Backend()
    samples = time_calls(
        backend.call, device="fake", rounds=3, warmup_s=0, clock=partial(wall, synchronise=backend.synchronise)
    )
    assert len(samples) == 3
    assert min(samples) >= 0.02
    assert backend.num_synchronised >= 3 + 1


def test_work_pending_from_before_is_not_timed() -> None:
    order: list[str] = []
    time_calls(
        lambda: order.append("call"), device="d", rounds=1, warmup_s=0, clock=partial(wall, synchronise=order.append)
    )
    assert order == ["d", "call", "d"] * 2  # a warm-up and a round


def test_a_synchronised_call_ends_with_the_work() -> None:
    backend = Backend()
    start = time.perf_counter()
    assert synchronised(backend.call, "fake", backend.synchronise)() == "result"
    assert time.perf_counter() - start >= 0.02


def test_a_cpu_needs_no_synchronising(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    monkeypatch.setattr("torch.accelerator.synchronize", waits.append)
    synchronise("cpu")
    assert waits == []


class Event:
    """A CUDA event on a device whose clock, in ms, is moved by the calls."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = math.nan
        self.over = False

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        self.over = True

    def elapsed_time(self, end: "Event") -> float:
        assert end.over
        return end.at - self.at


def work_of(ms: float) -> Callable[[], None]:
    def work() -> None:
        Event.now += ms

    return work


def test_events_time_the_device_from_idle_to_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.accelerator.synchronize", waits.append)
    calls = {"a": work_of(2.0), "b": work_of(5.0)}
    samples = interleave(calls, device="cuda", rounds=3, warmup_s=0, clock=events)
    assert samples == {"a": pytest.approx([0.002] * 3), "b": pytest.approx([0.005] * 3)}
    assert len(waits) == 2 * (1 + 3)  # before each call, the warm-up's too


def test_every_round_runs_every_call_and_every_call_follows_every_other() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    samples = interleave(calls, device="cpu", rounds=300, warmup_s=0)
    rounds = ["".join(order[start : start + 3]) for start in range(3, len(order), 3)]
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(values) for name, values in samples.items()} == {"a": 300, "b": 300, "c": 300}
    for first, second in permutations("abc", 2):
        assert 60 < sum(first + second in turn for turn in rounds) < 140


def test_warming_up_ends_when_times_are_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each call takes as long as the clock is told: slow at first, then steady.
    durations = iter([5.0, 4.0, 3.0, 2.0, 1.5] + [1.0] * 100)
    now = 0.0

    def call() -> None:
        nonlocal now
        now += next(durations)
        order.append(now)

    order: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    samples = time_calls(call, device="cpu", rounds=2, warmup_s=1000)
    assert samples == [1.0, 1.0]
    assert len(order) == 13 + 2  # ten calls compare 3.0 with 1.0; after three more both medians are 1.0


def test_warming_up_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    step = 1.0
    num_calls = 0

    def never_stable() -> None:
        nonlocal now, step, num_calls
        now += step
        step *= 2
        num_calls += 1

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    time_calls(never_stable, device="cpu", rounds=1, warmup_s=1000)
    assert num_calls == 10 + 1


def test_garbage_is_not_collected_meanwhile_and_the_switch_is_put_back() -> None:
    states = []
    time_calls(lambda: states.append(gc.isenabled()), device="cpu", rounds=2, warmup_s=0)
    assert not any(states)
    assert gc.isenabled()


def test_an_error_gives_no_samples_and_puts_the_switch_back() -> None:
    remaining = iter([None] * 3)
    with pytest.raises(StopIteration):
        time_calls(lambda: next(remaining), device="cpu", rounds=5, warmup_s=0)
    assert gc.isenabled()


def test_a_switch_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        time_calls(lambda: None, device="cpu", rounds=1, warmup_s=0)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_ratio_pairs_the_rounds() -> None:
    # The machine is ten times slower in the second round; medians of each alone would give 2/3 or worse.
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert ratio([1.0, 3.0], [1.0, 3.0]) == 1.0


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_a_ratio_of_other_rounds_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="as many samples"):
        ratio(ours, theirs)


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)
    with pytest.raises(ValueError, match="range"):
        percentile([1.0], 101)


def test_no_rounds_and_no_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        time_calls(lambda: None, device="cpu", rounds=0)
    with pytest.raises(ValueError, match="nothing"):
        interleave({}, device="cpu")

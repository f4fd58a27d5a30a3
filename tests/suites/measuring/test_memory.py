from functools import partial

import pytest
import torch

from suites.measuring.memory import in_fresh_process, peak_extra_bytes

MIB = 2**20


def allocate(mebibytes: int) -> int:
    """Needs that many at once, and half of it before and after."""
    half = torch.ones(mebibytes * MIB // 8)
    del half
    whole = torch.ones(mebibytes * MIB // 4)
    return int(whole[0]) + int(torch.ones(mebibytes * MIB // 16)[0])


def measure(mebibytes: int) -> int | None:
    allocate(1)
    return peak_extra_bytes(partial(allocate, mebibytes))


def test_the_peak_is_what_was_needed_at_once() -> None:
    assert in_fresh_process(measure, 64) == pytest.approx(1.25 * 64 * MIB, rel=0.02)

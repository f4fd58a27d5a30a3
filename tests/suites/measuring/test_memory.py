from functools import partial

import pytest
import torch

from suites.executions.encoders import measure_memory
from suites.executions.grid import Cell, Shape
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


@pytest.mark.integration
def test_a_layer_that_skips_heads_needs_no_more_than_one_that_does_not() -> None:
    row = in_fresh_process(measure_memory, Cell(Shape(32, 128, 128, 8), 0.5, "random"), "cpu")
    assert row["ratios"]["auto / full"] <= 1.02  # pages, and the gates
    assert row["ratios"]["plain / plain full"] <= 1.0
    batch_bytes = 32 * 128 * 128 * 4
    # Q, K, V, the heads' outputs and the result.
    assert row["bytes"]["plain full"] == pytest.approx(5 * batch_bytes, rel=0.1)

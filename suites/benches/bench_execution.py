"""pytest-benchmark benches of one layer: skipping heads against computing them, with and without the kernel.

``python -m suites execution`` interleaves the same calls and tells ratios; these are for pytest-benchmark's own tools
(``--benchmark-json``, ``--benchmark-compare``).
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from suites.executions.layers import SHAPES, Cell, calls, prepare
from suites.measuring.sharing import Share
from suites.measuring.timing import synchronised

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CELLS = [Cell(shape, s, "random") for shape in SHAPES for s in (0.25, 0.5)]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing else of the suite computes on this machine meanwhile."""
    with Share().alone():
        yield


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{'x'.join(map(str, cell.shape))}-{cell.s}")
@pytest.mark.parametrize("name", ["auto", "full", "plain", "plain full", "MultiheadAttention"])
def bench_layer(benchmark: BenchmarkFixture, cell: Cell, name: str) -> None:
    """One call of the layer on one batch."""
    bench = prepare(cell, DEVICE)
    benchmark.group = f"{tuple(cell.shape)}, s = {cell.s}"
    benchmark.extra_info.update(share=bench.share)
    timed: Any = benchmark.pedantic  # it has no types
    timed(synchronised(calls(cell, bench)[name], DEVICE), rounds=5, warmup_rounds=2)

import pytest

from suites.executions.layers import Cell, Shape
from suites.executions.peaks import LayerPeaks


@pytest.mark.integration
def test_a_layer_that_skips_heads_needs_no_more_than_one_that_does_not() -> None:
    job = LayerPeaks(cell=Cell(Shape(32, 128, 128, 8), 0.5, "random"), device="cpu")
    timed, _ = job.measure()
    peaks = dict(zip(job.question()["calls"], timed.metrics["peak_bytes"], strict=True))
    assert peaks["auto"] / peaks["full"] <= 1.02  # pages, and the gates
    assert peaks["plain"] / peaks["plain full"] <= 1.0
    batch_bytes = 32 * 128 * 128 * 4
    # Q, K, V, the heads' outputs and the result.
    assert peaks["plain full"] == pytest.approx(5 * batch_bytes, rel=0.1)

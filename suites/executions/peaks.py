"""How much memory each execution of a layer needs at its peak."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from budgetformer.execution import masked, plain
from suites.executions.layers import Cell, prepare
from suites.executions.measurement import Answer, Measurement
from suites.measuring.memory import in_fresh_process, peak_extra_bytes
from suites.measuring.timing import Call
from suites.records.record import Timed


@dataclass(frozen=True, kw_only=True)
class LayerPeaks(Measurement):
    """Peak memory beside the input and the layer: by the kernel where there is one, and in PyTorch's operators alone.

    Attributes:
        cell: the point of the grid.
        calls: what is run, in the order of the metric.
    """

    kind: ClassVar[str] = "peak"
    elsewhere: ClassVar[bool] = True

    cell: Cell
    calls: tuple[str, ...] = ("auto", "full", "plain", "plain full")

    @property
    def title(self) -> str:
        return f"memory of {self.cell.title}"

    def measure(self) -> Answer:
        peaks, share = in_fresh_process(_peaks, self)
        known = [peak for peak in peaks if peak is not None]
        return Answer(Timed(metrics={"active_share": share, "peak_bytes": known if len(known) == len(peaks) else None}))


def _peaks(job: LayerPeaks) -> tuple[list[int | None], float]:
    bench = prepare(job.cell, job.device)
    layer, x_BTD, gates_BH, *_ = bench
    made: dict[str, Call] = {
        "auto": partial(layer, x_BTD, gates_BH),
        "full": partial(layer, x_BTD),
        "plain": partial(plain, layer, x_BTD, gates_BH, None),
        "plain full": partial(masked, layer, x_BTD, None, None),
    }
    peaks = []
    with torch.inference_mode():
        for name in job.calls:
            made[name]()  # what is made once and kept is no peak
            peaks.append(peak_extra_bytes(made[name], job.device))
    return peaks, bench.share

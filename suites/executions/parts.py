"""What is measured of the layer: the lists of ``python -m suites execution`` and of ``python -m suites gpu``.

What reads texts is imported when it is wanted, so that the second needs torch, numpy, psutil and tqdm alone.
"""

import math
from collections.abc import Collection
from itertools import product

from suites.definitions.catalog import find_suite
from suites.definitions.uses import LOOKUP
from suites.executions.correctness import TOLERANCES, GradientErrors, OutputErrors
from suites.executions.layers import CUDA_SHAPES, KINDS, SHAPES, Cell, LayerTimes, Shape, cells
from suites.executions.lookup_training import METHODS, LookupTraining
from suites.executions.measurement import Measurement
from suites.executions.peaks import LayerPeaks

PARTS = ("grid", "encoders", "peers", "memory")
NUM_LAYERS = 4
NUM_HEADS = {128: 8, 256: 8, 768: 12}
"""By width of the whole encoders."""
BUDGETS = (0.25, 0.5)
"""Those of most interest."""


def execution_jobs(parts: Collection[str], *, device: str, rounds: int, quick: bool) -> list[Measurement]:
    """What skipping heads saves: one layer over a grid, whole encoders, peers, and memory.

    Args:
        parts: of ``PARTS``.
        device: where.
        rounds: samples of each call.
        quick: a corner of each part alone.
    """
    shapes = SHAPES[:2] if quick else SHAPES
    kinds = KINDS[:1] if quick else KINDS
    jobs: list[Measurement] = []
    if "grid" in parts:
        jobs += [LayerTimes(cell=cell, device=device, rounds=rounds) for cell in cells(shapes, kinds)]
    if {"encoders", "peers"} & set(parts):
        jobs += _of_encoders(parts, device=device, rounds=rounds, quick=quick)
    if "memory" in parts:
        batches = [shape for shape in shapes if shape.batch > 1]
        jobs += [LayerPeaks(cell=Cell(shape, s, "random"), device=device) for shape, s in product(batches, BUDGETS)]
    return jobs


def _of_encoders(parts: Collection[str], *, device: str, rounds: int, quick: bool) -> list[Measurement]:
    from suites.executions.encoders import EncoderTimes  # noqa: PLC0415 - see the top
    from suites.executions.peers import PeerTimes  # noqa: PLC0415

    bbc, tweets = sorted(find_suite("quick").tasks, key=lambda task: task.name)
    middling = list(NUM_HEADS)[1]
    wanted = {
        EncoderTimes: [(tweets, middling)] if quick else [*product((tweets, bbc), NUM_HEADS)],
        PeerTimes: [(tweets, middling)] if quick else [(tweets, 256), (bbc, 256), (tweets, 768)],
    }
    return [
        kind(task=task, width=width, num_heads=NUM_HEADS[width], num_layers=NUM_LAYERS, rounds=rounds, device=device)
        for (kind, where), part in zip(wanted.items(), ("encoders", "peers"), strict=True)
        if part in parts
        for task, width in where
    ]


def gpu_jobs(*, device: str, quick: bool) -> list[Measurement]:
    """Are the executions right on a device, does a model train there, and what do they save?

    The grid is checked first and timed last, in the order in which cells are worth having: so that its timing takes
    what the rest has left of the time.
    """
    grid = telling_first(cells([Shape(8, 32, 64, 4)]) if quick else cells(CUDA_SHAPES))
    rows, epochs, rounds = (240, 4, 3) if quick else (14_400, LOOKUP.recipe.epochs, 15)
    cells_and_types = list(product(grid, TOLERANCES))
    return [
        GradientErrors(device=device),
        *(OutputErrors(cell=cell, dtype=dtype, device=device) for cell, dtype in cells_and_types),
        *(LookupTraining(method=name, train_rows=rows, epochs=epochs, device=device) for name in METHODS),
        *(LayerTimes(cell=cell, dtype=dtype, rounds=rounds, device=device) for cell, dtype in cells_and_types),
    ]


def telling_first(chosen: Collection[Cell]) -> list[Cell]:
    """The cells in the order in which they are worth having: budgets of interest, then large shapes."""
    return sorted(chosen, key=lambda cell: (cell.s not in BUDGETS, -math.prod(cell.shape[:3])))

"""One layer over a grid: shapes, shares of active heads, and kinds of head sets, in every execution.

Shapes: B batch, T tokens, D width, H heads.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from baselines.mixture_of_heads import MixtureOfHeads
from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import EncoderSpec
from budgetformer.execution import count_executions, gathered, masked, plain
from budgetformer.selection import top_k_mask
from suites.executions.measurement import Answer, Measurement
from suites.measuring.timing import Call, events, interleave, wall
from suites.records.record import Timed

Kind = Literal["random", "nested", "skewed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


class Shape(NamedTuple):
    """Sizes of a batch and a layer."""

    batch: int
    tokens: int
    width: int
    num_heads: int


SHAPES = (
    Shape(64, 64, 256, 8),
    Shape(64, 128, 256, 8),
    Shape(32, 128, 768, 12),
    Shape(64, 256, 256, 16),
    Shape(8, 128, 768, 12),
    Shape(1, 128, 768, 12),
)
CUDA_SHAPES = (*SHAPES, Shape(256, 128, 768, 12), Shape(64, 512, 768, 12))


@dataclass(frozen=True)
class Cell:
    """One point of the grid.

    Attributes:
        shape: of the batch and the layer.
        s: expected share of active heads, in [0, 1].
        kind: how the inputs' head sets are drawn (:func:`head_sets`).
    """

    shape: Shape
    s: float
    kind: Kind

    @property
    def title(self) -> str:
        return f"layer {'x'.join(map(str, self.shape))}, s = {self.s}, {self.kind}"


def cells(shapes: Sequence[Shape] = SHAPES, kinds: Sequence[Kind] = KINDS) -> list[Cell]:
    """The grid; where all heads are active there is one kind of set."""
    return [Cell(shape, s, kind) for shape in shapes for s in SHARES for kind in kinds if s < 1 or kind == kinds[0]]


def head_sets(cell: Cell, generator: torch.Generator) -> Tensor:
    """Each input's heads, ``(B, H)``, True where active. The number of heads of an input is binomial (H, s).

    ``random``: every set of a size is as likely. ``nested``: the set of a smaller size is part of that of a larger one,
    the same for all inputs, as in a model that has learned one order of heads. ``skewed``: heads are drawn without
    replacement, the i-th most popular one with weight 1/i.
    """
    batch, _, _, num_heads = cell.shape
    k_B = (torch.rand(batch, num_heads, generator=generator) < cell.s).sum(dim=1)
    popularity_H = torch.arange(1, num_heads + 1)[torch.randperm(num_heads, generator=generator)].float().reciprocal()
    gumbel_BH = -torch.log(-torch.log(torch.rand(batch, num_heads, generator=generator)))
    scores_BH = {
        "random": gumbel_BH,
        "nested": popularity_H.expand(batch, -1),
        "skewed": popularity_H.log() + gumbel_BH,
    }[cell.kind]
    return top_k_mask(scores_BH, k_B)


class Bench(NamedTuple):
    """A cell made ready to run.

    Attributes:
        layer: all heads.
        x_BTD: the input.
        gates_BH: the gates; inactive heads at 0.
        share: mean k / H of the batch.
        pruned: layers that physically have the whole numbers of heads around the mean k, with the weight of each; the
            weights add up to 1.
    """

    layer: HeadGatedAttention
    x_BTD: Tensor
    gates_BH: Tensor
    share: float
    pruned: list[tuple[HeadGatedAttention, float]]


def prepare(cell: Cell, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Bench:
    """Makes the layer, the input and the head sets of a cell: the same ones every time."""
    batch, tokens, width, num_heads = cell.shape
    generator = torch.Generator().manual_seed(0)
    layer = HeadGatedAttention(width, num_heads).eval().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(width))
    layer.to(device, dtype)
    active_BH = head_sets(cell, generator)
    weights_BH = 0.5 + torch.rand(batch, num_heads, generator=generator)
    mean_k = active_BH.sum().item() / batch
    low = math.floor(mean_k)
    pruned = []
    for k, weight in ((low, 1 - mean_k + low), (low + 1, mean_k - low)):
        if weight > 0:
            smaller = copy.deepcopy(layer)
            smaller.keep(range(k))
            pruned.append((smaller, weight))
    return Bench(
        layer,
        torch.randn(batch, tokens, width, generator=generator).to(device, dtype),
        (active_BH * weights_BH).to(device, dtype),
        mean_k / num_heads,
        pruned,
    )


def mixture_forward(cell: Cell, bench: Bench) -> Call:
    """A masked mixture of heads, routed per input: a router, then all heads, then their weights."""
    spec = EncoderSpec(
        vocab_size=1, num_classes=1, max_length=1, num_layers=1, width=cell.shape.width, num_heads=cell.shape.num_heads
    )
    (gate,) = MixtureOfHeads(s=cell.s).gates(spec, torch.Generator().manual_seed(0))
    gate.to(bench.x_BTD.device, bench.x_BTD.dtype).eval()
    mask_BT = torch.ones(bench.x_BTD.shape[:2], dtype=torch.bool, device=bench.x_BTD.device)
    key_B = torch.zeros(len(bench.x_BTD), dtype=torch.long, device=bench.x_BTD.device)
    return lambda: masked(bench.layer, bench.x_BTD, gate(bench.x_BTD, mask_BT, key_B).gates_BH, None)


def multihead_attention(bench: Bench) -> Call:
    """``torch.nn.MultiheadAttention`` of the same sizes, without attention weights in its output."""
    layer, x_BTD = bench.layer, bench.x_BTD
    theirs = torch.nn.MultiheadAttention(layer.out.out_features, layer.num_heads, batch_first=True)
    theirs.to(x_BTD.device, x_BTD.dtype).eval().requires_grad_(False)
    return lambda: theirs(x_BTD, x_BTD, x_BTD, need_weights=False)


PRUNED, PLAIN_PRUNED = "pruned", "plain pruned"


def calls(cell: Cell, bench: Bench) -> dict[str, Call]:
    """What is timed in a cell, by name.

    ``auto`` is the execution in question, ``full`` full attention by the same means, ``full again`` the same once more
    (what they differ by is noise), and ``pruned K`` a layer that has K heads, by the same means. ``plain``, ``plain
    full`` and ``plain pruned K`` are the three without the kernel, in PyTorch's operators alone; ``plain`` is one of
    ``gathered`` and ``masked``, by the cost rule. ``mixture of heads`` and ``MultiheadAttention`` are peers.

    Args:
        cell: the point of the grid.
        bench: the same, prepared.
    """
    layer, x_BTD, gates_BH, _, pruned = bench
    made: dict[str, Call] = {
        "auto": lambda: layer(x_BTD, gates_BH),
        "full": lambda: layer(x_BTD),
        "full again": lambda: layer(x_BTD),
        "plain full": lambda: masked(layer, x_BTD, None, None),
        "plain": lambda: plain(layer, x_BTD, gates_BH, None),
        "gathered": lambda: gathered(layer, x_BTD, gates_BH, None),
        "masked": lambda: masked(layer, x_BTD, gates_BH, None),
        "mixture of heads": mixture_forward(cell, bench),
        "MultiheadAttention": multihead_attention(bench),
    }
    for index, (smaller, _weight) in enumerate(pruned):
        made[f"{PRUNED} {index}"] = _with(smaller, x_BTD)
        made[f"{PLAIN_PRUNED} {index}"] = _with(smaller, x_BTD, masked)
    return {name: torch.inference_mode()(call) for name, call in made.items()}


def _with(layer: HeadGatedAttention, x_BTD: Tensor, execution: Callable[..., Tensor] | None = None) -> Call:
    if execution is None or not layer.heads:
        return lambda: layer(x_BTD)
    return lambda: execution(layer, x_BTD, None, None)


@dataclass(frozen=True, kw_only=True)
class LayerTimes(Measurement):
    """Times of the executions of one layer, against full attention, a pruned layer and peers (:func:`calls`).

    ``bound`` and ``plain bound`` are the times of the pruned layers, weighted.

    Attributes:
        cell: the point of the grid.
        rounds: samples of each call.
        dtype: of the layer and its input.
    """

    kind: ClassVar[str] = "layer"

    cell: Cell
    rounds: int
    dtype: str = "float32"

    @property
    def title(self) -> str:
        return f"times of {self.cell.title}, {self.dtype}"

    def measure(self) -> Answer:
        bench = prepare(self.cell, self.device, getattr(torch, self.dtype))
        clock = events if torch.device(self.device).type == "cuda" else wall
        samples = interleave(calls(self.cell, bench), device=self.device, rounds=self.rounds, warmup_s=0.1, clock=clock)
        for bound, name in (("bound", PRUNED), ("plain bound", PLAIN_PRUNED)):
            parts = [[weight * t for t in samples[f"{name} {i}"]] for i, (_, weight) in enumerate(bench.pruned)]
            samples[bound] = [sum(times) for times in zip(*parts, strict=True)]
        with torch.inference_mode(), count_executions() as ran:
            bench.layer(bench.x_BTD, bench.gates_BH)
        conditions = {"dtype": self.dtype, "clock": clock.__name__, "ran": "+".join(ran)}
        return Answer(Timed(metrics={"active_share": bench.share}, timings=samples, measuring=conditions))

"""Whole attention layers dropped: LayerDrop (Fan, Grave and Joulin 2020), for attention alone, as a coarse control."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from budgetformer.checks import check_interval
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import SharedGates
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method
from budgetformer.selection import whole_heads


class LayerGates(SharedGates):
    """All heads of a layer, or none.

    Args:
        num_heads: H.
        kept: whether the layer's attention is there at inference.
        s: the fraction of heads asked for.
    """

    dropped: Tensor

    def __init__(self, num_heads: int, kept: bool, s: float) -> None:
        super().__init__(s)
        self.num_heads = num_heads
        self.kept = kept
        self.register_buffer("dropped", torch.zeros(()))

    def in_training(self) -> Tensor:
        return (1 - self.dropped).expand(self.num_heads)

    def settled(self) -> Tensor:
        return self.dropped.new_full((self.num_heads,), float(self.kept))


@dataclass(frozen=True, kw_only=True)
class LayerDrop(Method):
    """Each attention layer is dropped at random in training, and evenly spaced ones are kept at inference.

    The feed-forward blocks stay; the original drops them too.

    Attributes:
        s: the fraction of attention layers that is kept, in [0, 1]; to the nearest whole number, but at least one layer
            unless s is 0. With few layers, what runs (``heads_executed``) is far from s.
        drop: the probability with which a step drops a layer, in [0, 1]; None is 1 - s, and dropped layers are then as
            frequent in training as at inference.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "layer-drop"
    place: ClassVar[int] = 20

    s: float = 0.5
    drop: float | None = None

    def __post_init__(self) -> None:
        check_interval(self, "[0, 1]", "s")
        check_interval(self, "[0, 1]", "drop", optional=True)

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        num_kept = max(whole_heads(self.s, spec.num_layers), int(self.s > 0))
        kept = {i * spec.num_layers // num_kept for i in range(num_kept)}
        return nn.ModuleList(LayerGates(spec.num_heads, layer in kept, self.s) for layer in range(spec.num_layers))

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        drop = 1 - self.s if self.drop is None else self.drop
        for gate in model.gates:
            cast("LayerGates", gate).dropped.copy_(torch.rand((), generator=generator) < drop)

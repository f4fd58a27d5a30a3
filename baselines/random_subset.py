"""k random heads, the same for every input: the control for every constant choice of heads."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from budgetformer.checks import check_interval
from budgetformer.encoder import EncoderSpec
from budgetformer.gates import ConstantGates
from budgetformer.method import Method
from budgetformer.selection import top_k_mask, whole_heads


@dataclass(frozen=True, kw_only=True)
class RandomSubset(Method):
    """k heads of each layer, drawn once per seed before training and kept for good.

    Attributes:
        s: the fraction of heads, in [0, 1]; k is s * H, rounded to the nearest whole number.

    Raises:
        ValueError: if s is outside [0, 1].
    """

    name: ClassVar[str] = "random-subset"
    place: ClassVar[int] = 40

    s: float = 0.25

    def __post_init__(self) -> None:
        check_interval(self, "[0, 1]", "s")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        order_LH = torch.rand(spec.num_layers, spec.num_heads, generator=generator)
        kept_LH = top_k_mask(order_LH, whole_heads(self.s, spec.num_heads))
        return nn.ModuleList(ConstantGates(kept_H, self.s) for kept_H in kept_LH)

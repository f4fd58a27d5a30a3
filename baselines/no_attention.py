"""A control without attention: what the rest of the model can do alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from budgetformer.encoder import EncoderSpec
from budgetformer.gates import ConstantGates
from budgetformer.method import Method


@dataclass(frozen=True, kw_only=True)
class NoAttention(Method):
    """No head at all: a layer's attention is its output bias."""

    name: ClassVar[str] = "no-attention"
    place: ClassVar[int] = 10

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        return nn.ModuleList(ConstantGates([0.0] * spec.num_heads) for _ in range(spec.num_layers))

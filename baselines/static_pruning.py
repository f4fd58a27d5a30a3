"""Static head pruning by gradient importance (Michel, Levy and Neubig 2019), with recovery training."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn

from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import ConstantGates
from budgetformer.importance import LabelledBatch, gradient_importance
from budgetformer.method import Method
from budgetformer.selection import top_k_mask, whole_heads


@dataclass(frozen=True, kw_only=True)
class StaticPruning(Method):
    """Trains in full, keeps the k most important heads of each layer, and trains on with those.

    Importance is ``E_x |dL / dgate|`` on training batches; the heads that go are physically removed for inference.

    Attributes:
        s: the fraction of heads kept, in [0, 1]; k is s * H, rounded to the nearest whole number.
        prune_at: the share of training after which heads are removed, in [0, 1); the rest is recovery.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "static-pruning"

    s: float = 0.25
    prune_at: float = 0.5

    def __post_init__(self) -> None:
        whole_heads(self.s, 1)
        if not 0 <= self.prune_at < 1:
            raise ValueError(f"prune_at must be in [0, 1), not {self.prune_at}")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        return nn.ModuleList(ConstantGates([1.0] * spec.num_heads, self.s) for _ in range(spec.num_layers))

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        if progress < self.prune_at:
            return
        k = whole_heads(self.s, model.spec.num_heads)
        gates = [cast("ConstantGates", gate) for gate in model.gates]
        if all(int(gate.gates_H.count_nonzero()) == k for gate in gates):
            return
        importance_LH = gradient_importance(model, calibration)
        for gate, kept_H in zip(gates, top_k_mask(importance_LH, k), strict=True):
            gate.gates_H.copy_(kept_H)

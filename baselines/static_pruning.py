"""Static head pruning by importance, in steps, with recovery training (Michel, Levy and Neubig 2019).

Shapes: L layers, H heads.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from budgetformer.checks import check_choice, check_interval, check_whole
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import ConstantGates
from budgetformer.importance import LabelledBatch, gradient_importance, magnitude_importance
from budgetformer.method import Method
from budgetformer.schedules import interpolate
from budgetformer.selection import top_k_mask, whole_heads

Score = Literal["gradient", "magnitude", "random"]
Scope = Literal["layer", "global"]


@dataclass(frozen=True, kw_only=True)
class StaticPruning(Method):
    """Trains in full, removes the least important heads in a few steps, and trains on with those that are left.

    Importance is ``I_h = E_x |dL / dgate_h|`` on training batches (Michel et al., eq. 2), the size of a head's weights,
    or random. It is scored anew before each step. The heads that go are physically removed for inference.

    Attributes:
        s: the fraction of heads kept, in [0, 1]; s * H per layer, or s * L * H over all, to the nearest whole number.
        score: ``gradient``, ``magnitude`` (L2 norm of a head's weights) or ``random``.
        scope: rank the heads of each ``layer``, or of all layers at once (``global``), where the scores of a layer are
            divided by their L2 norm, as Michel et al. do.
        min_heads: the least number of heads that a layer keeps.
        prune_at, prune_until: shares of training at the first and the last pruning step, in [0, 1); after the last one
            comes recovery.
        prune_steps: number of pruning steps, with equal numbers of heads.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "static-pruning"
    place: ClassVar[int] = 50

    s: float = 0.25
    score: Score = "gradient"
    scope: Scope = "layer"
    min_heads: int = 0
    prune_at: float = 0.5
    prune_until: float = 0.7
    prune_steps: int = 3

    def __post_init__(self) -> None:
        check_choice(self, "score", Score)
        check_choice(self, "scope", Scope)
        check_interval(self, "[0, 1]", "s")
        check_whole(self, 0, "min_heads")
        check_interval(self, "[0, 1)", "prune_at", "prune_until")
        check_whole(self, 1, "prune_steps")
        if self.prune_until < self.prune_at:
            raise ValueError(f"prune_until {self.prune_until} is before prune_at {self.prune_at}")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        if self.min_heads > spec.num_heads:
            raise ValueError(f"min_heads {self.min_heads} is more than the {spec.num_heads} heads of the encoder")
        return nn.ModuleList(ConstantGates([1.0] * spec.num_heads, self.s) for _ in range(spec.num_layers))

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        gates = [cast("ConstantGates", gate) for gate in model.gates]
        num_layers, num_heads = len(gates), model.spec.num_heads
        layers_together = 1 if self.scope == "layer" else num_layers
        k = max(self._num_left(layers_together * num_heads, progress), layers_together * self.min_heads)
        alive_LH = torch.stack([gate.gates_H for gate in gates]) > 0
        if (alive_LH.view(-1, layers_together * num_heads).count_nonzero(dim=1) <= k).all():
            return
        scores_LH = self._scores(model, generator, calibration).to(alive_LH.device).where(alive_LH, 0.0)
        if self.scope == "global":
            scores_LH = scores_LH / scores_LH.norm(dim=1, keepdim=True).clamp(min=torch.finfo(scores_LH.dtype).tiny)
        scores_LH = scores_LH.where(alive_LH, -math.inf)
        scores_LH = scores_LH.where(~top_k_mask(scores_LH, self.min_heads), math.inf)
        kept_LH = top_k_mask(scores_LH.view(-1, layers_together * num_heads), k).view(num_layers, num_heads)
        for gate, kept_H in zip(gates, kept_LH, strict=True):
            gate.gates_H.copy_(kept_H)

    def _num_left(self, total: int, progress: float) -> int:
        """How many of some heads are left at some progress."""
        steps = range(self.prune_steps)
        times = [interpolate(self.prune_at, self.prune_until, i / max(1, self.prune_steps - 1)) for i in steps]
        share_done = sum(progress >= time for time in times) / self.prune_steps
        return total - round((total - whole_heads(self.s, total)) * share_done)

    def _scores(self, model: Encoder, generator: torch.Generator, calibration: Iterable[LabelledBatch]) -> Tensor:
        """Importance of every head, ``(L, H)``."""
        if self.score == "gradient":
            return gradient_importance(model, calibration)
        if self.score == "magnitude":
            return magnitude_importance(model)
        return torch.rand(model.spec.num_layers, model.spec.num_heads, dtype=torch.float64, generator=generator)

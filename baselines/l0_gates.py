"""Heads that learn to switch themselves off: hard-concrete gates (Louizos et al. 2018; Voita et al. 2019).

Shapes: L layers, H heads.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from budgetformer.checks import check_interval
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.gates import SharedGates
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method, gates_apart
from budgetformer.schedules import interpolate

TEMPERATURE = 0.33
"""beta, as in the code of Voita et al."""

LOW, HIGH = -0.1, 1.1
"""gamma and zeta of Louizos et al.: the interval that the gate is stretched to."""


class HardConcreteGates(SharedGates):
    """One hard-concrete gate per head (Louizos et al. 2018, eqs. 10 and 11).

    In training ``gate = clamp(sigmoid((logit(u) + log_alpha) / beta) * (high - low) + low, 0, 1)`` with u uniform and
    new at each step; at inference ``clamp(sigmoid(log_alpha) * (high - low) + low, 0, 1)``, which is exactly 0 or 1 for
    a log_alpha that is far enough from 0.

    Args:
        num_heads: H.
        start_log_alpha: log_alpha before training.
        s: the fraction of heads that is aimed at.
    """

    noise_H: Tensor

    def __init__(self, num_heads: int, start_log_alpha: float, s: float) -> None:
        super().__init__(s)
        self.log_alpha_H = nn.Parameter(torch.full((num_heads,), start_log_alpha))
        self.register_buffer("noise_H", torch.full((num_heads,), 0.5))

    def in_training(self) -> Tensor:
        return self._stretched((torch.logit(self.noise_H) + self.log_alpha_H) / TEMPERATURE)

    def settled(self) -> Tensor:
        return self._stretched(self.log_alpha_H)

    def open_probability(self) -> Tensor:
        """``P(gate > 0) = sigmoid(log_alpha - beta log(-low / high))``, ``(H,)`` (Louizos et al. 2018, eq. 12)."""
        return torch.sigmoid(self.log_alpha_H - TEMPERATURE * math.log(-LOW / HIGH))

    def _stretched(self, logits_H: Tensor) -> Tensor:
        return (torch.sigmoid(logits_H) * (HIGH - LOW) + LOW).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class L0Gates(Method):
    """Learned gates on heads with a penalty on how many are open.

    ``L = L_task + penalty * (E[open] - s(t) L H)^2``, where ``E[open] = sum_lh P(gate_lh > 0)`` and s(t) falls linearly
    from 1 to s over ``cooldown`` of the training. Louizos et al. and Voita et al. weigh the expected number of open
    gates itself; aiming it at a count is what lets methods be compared at the same number of heads. The aim can be
    missed: ``heads_executed`` is what ran, s_mean what was asked for.

    Attributes:
        s: the fraction of heads that is aimed at, in [0, 1].
        penalty: weight of the squared distance, in heads, from the aim; >= 0, and 0 leaves all heads on.
        cooldown: the share of training over which the aim falls from all heads to s, in (0, 1].
        start_log_alpha: log_alpha before training; 2 opens a gate with probability 0.94.
        lr_scale: factor on the learning rate of the gates, > 0: they have few steps to go far.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "l0-gates"
    place: ClassVar[int] = 60

    s: float = 0.25
    penalty: float = 0.05
    cooldown: float = 0.5
    start_log_alpha: float = 2.0
    lr_scale: float = 30.0

    def __post_init__(self) -> None:
        check_interval(self, "[0, 1]", "s")
        check_interval(self, "[0, inf)", "penalty")
        check_interval(self, "(0, 1]", "cooldown")
        check_interval(self, "(-inf, inf)", "start_log_alpha")
        check_interval(self, "(0, inf)", "lr_scale")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        return nn.ModuleList(
            HardConcreteGates(spec.num_heads, self.start_log_alpha, self.s) for _ in range(spec.num_layers)
        )

    def param_groups(self, model: Encoder) -> list[dict[str, Any]]:
        return gates_apart(model, self.lr_scale)

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        for gate in model.gates:
            noise_H = cast("HardConcreteGates", gate).noise_H
            drawn_H = torch.rand(noise_H.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
            noise_H.copy_(drawn_H if progress < 1 else torch.full_like(drawn_H, 0.5))  # trained: the median gate

    def extra_losses(self, model: Encoder, output: EncoderOutput, progress: float) -> dict[str, Tensor]:
        open_LH = torch.stack([cast("HardConcreteGates", gate).open_probability() for gate in model.gates])
        aim = interpolate(1.0, self.s, progress / self.cooldown) * open_LH.numel()
        return {"l0": self.penalty * (open_LH.sum() - aim) ** 2}

"""Differentiable subset pruning (Li, Cotterell and Sachan 2021): exactly k heads, learned with the weights.

Shapes: L layers, H heads, N the heads that are ranked together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from budgetformer.checks import check_choice, check_interval
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import SharedGates
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method, gates_apart
from budgetformer.schedules import interpolate
from budgetformer.selection import top_k_mask, whole_heads

Scope = Literal["global", "layer"]


def soft_top_k(scores_N: Tensor, k: int, tau: float | Tensor) -> Tensor:
    """Relaxed k-hot vector, ``(N,)`` with sum k: k softmaxes, each of what the ones before it left.

    ``p_1 = softmax(r / tau)``, ``r <- r + log(1 - p_i)``, ``p_(i+1) = softmax(r / tau)``, summed (Xie and Ermon 2019,
    as used by Li et al.). At a low temperature it is 1 at the k highest scores and 0 elsewhere.

    Args:
        scores_N: the scores, Gumbel noise included.
        k: how many, in [0, N].
        tau: temperature, > 0.
    """
    total_N = torch.zeros_like(scores_N)
    smallest = torch.finfo(scores_N.dtype).tiny
    for _ in range(k):
        chosen_N = torch.softmax(scores_N / tau, dim=0)
        scores_N = scores_N + torch.log((1 - chosen_N).clamp(min=smallest))
        total_N = total_N + chosen_N
    return total_N


class HeadScores(nn.Module):
    """The importance of heads that are ranked together, and the gates made of it.

    Args:
        shape: (layers, heads).
        k: how many are kept.
    """

    tau: Tensor
    noise_LH: Tensor

    def __init__(self, shape: tuple[int, int], k: int) -> None:
        super().__init__()
        self.k = k
        self.importance_LH = nn.Parameter(torch.zeros(shape))
        self.register_buffer("tau", torch.ones(()))
        self.register_buffer("noise_LH", torch.zeros(shape))

    def soft(self) -> Tensor:
        """Gates in training, ``(L, H)``, with sum k."""
        noisy_LH = (self.importance_LH + self.noise_LH).double()  # the temperature falls far
        soft_LH = soft_top_k(noisy_LH.flatten(), self.k, self.tau.double()).view_as(noisy_LH).float()
        # All heads are all heads, with no rounding.
        return soft_LH if self.k < soft_LH.numel() else 1 + (soft_LH - soft_LH.detach())

    def hard(self) -> Tensor:
        """Gates at inference: 1 at the k most important heads, ``(L, H)``."""
        return top_k_mask(self.importance_LH.detach().view(1, -1), self.k).view_as(self.importance_LH).float()


class SubsetGates(SharedGates):
    """The gates of one layer.

    Args:
        scores: of all heads that compete, perhaps those of other layers too.
        layer: which row of the scores is this layer's.
        s: the fraction of heads asked for.
    """

    def __init__(self, scores: HeadScores, layer: int, s: float) -> None:
        super().__init__(s)
        self.scores = scores
        self.layer = layer

    def in_training(self) -> Tensor:
        return self.scores.soft()[self.layer]

    def settled(self) -> Tensor:
        return self.scores.hard()[self.layer]


@dataclass(frozen=True, kw_only=True)
class SubsetPruning(Method):
    """A learned constant set of exactly k heads, by a Gumbel top-k that hardens as the temperature falls.

    Attributes:
        s: the fraction of heads, in [0, 1]; k is s * L * H (``global``) or s * H (``layer``), to the nearest number.
        scope: heads of all layers compete (``global``, as in the paper), or those of each ``layer``.
        tau_start, tau_end: temperature at the start and after ``cooldown``, > 0; falls exponentially. A soft gate is
            about k / N at a high temperature.
        noise_end: scale of the Gumbel noise after ``cooldown``, to which it falls linearly from 1, >= 0. Without noise
            the rest of the training is that of the set that will be kept; the authors keep the noise, and drive the
            importances far apart.
        cooldown: the share of training over which temperature and noise fall, in (0, 1]; then gates are all but hard.
        lr_scale: factor on the learning rate of the importances, > 0; Li et al. train them at 0.2 to 0.5.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "subset-pruning"
    place: ClassVar[int] = 70

    s: float = 0.25
    scope: Scope = "global"
    tau_start: float = 10.0
    tau_end: float = 1e-3
    noise_end: float = 0.0
    cooldown: float = 0.6
    lr_scale: float = 30.0

    def __post_init__(self) -> None:
        check_choice(self, "scope", Scope)
        check_interval(self, "[0, 1]", "s")
        check_interval(self, "(0, inf)", "tau_start", "tau_end", "lr_scale")
        check_interval(self, "[0, inf)", "noise_end")
        check_interval(self, "(0, 1]", "cooldown")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        if self.scope == "global":
            total = whole_heads(self.s, spec.num_layers * spec.num_heads)
            scores = HeadScores((spec.num_layers, spec.num_heads), total)
            return nn.ModuleList(SubsetGates(scores, layer, self.s) for layer in range(spec.num_layers))
        k = whole_heads(self.s, spec.num_heads)
        return nn.ModuleList(SubsetGates(HeadScores((1, spec.num_heads), k), 0, self.s) for _ in range(spec.num_layers))

    def param_groups(self, model: Encoder) -> list[dict[str, Any]]:
        return gates_apart(model, self.lr_scale)

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        tau = interpolate(self.tau_start, self.tau_end, progress / self.cooldown, "exponential")
        noise = interpolate(1.0, self.noise_end, progress / self.cooldown)
        for scores in dict.fromkeys(cast("SubsetGates", gate).scores for gate in model.gates):
            scores.tau.fill_(tau)
            uniform = torch.rand(scores.importance_LH.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
            scores.noise_LH.copy_(-noise * torch.log(-torch.log(uniform)))

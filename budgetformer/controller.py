"""BudgetFormer's gate: a budget network says how many heads, a relevance network says which.

Shapes: B batch, T tokens, D width, H heads.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from budgetformer.encoder import mean_over_tokens
from budgetformer.gates import Gates
from budgetformer.selection import (
    Rounding,
    head_counts,
    new_salt,
    random_gumbel,
    random_normal,
    random_uniform,
    top_k_mask,
)

GateFormula = Literal["s*p", "s*H*p", "min(1,s*H*p)", "straight-through"]
Reweighting = Literal["weighted", "renormalised", "unit"]
NoiseLaw = Literal["gaussian", "gumbel", "none"]
Summary = Literal["mean", "max", "first"]


def max_over_tokens(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Largest value of each feature over the real tokens, ``(B, D)``; 0 for an input of padding alone."""
    largest_BD = x_BTD.masked_fill(~mask_BT[:, :, None], float("-inf")).amax(dim=1)
    return largest_BD.masked_fill(~mask_BT.any(dim=1, keepdim=True), 0.0)


def first_token(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The first token, ``(B, D)``; 0 for an input of padding alone."""
    return x_BTD[:, 0] * mask_BT[:, :1]


SUMMARIES: dict[Summary, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_over_tokens,
    "max": max_over_tokens,
    "first": first_token,
}
"""What the networks see of an input, ``(x_BTD, mask_BT) -> (B, D)``: of its real tokens, never of padding."""


class BudgetNetwork(nn.Module):
    """f_theta: two-layer feed-forward network and a sigmoid, ``(B, D) -> s (B,)`` in (0, 1).

    Args:
        width: D.
        hidden: width of the hidden layer.
        start_budget: s of an untrained network, in (0, 1): the last bias is its logit.
    """

    def __init__(self, width: int, hidden: int, start_budget: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, 1)
        nn.init.constant_(self.output.bias, math.log(start_budget / (1 - start_budget)))

    def forward(self, summary_BD: Tensor) -> Tensor:
        return torch.sigmoid(self.output(torch.relu(self.hidden(summary_BD)))).squeeze(-1)


class BudgetController(nn.Module):
    """Budget and relevance of one layer, and the gates made from them.

    With u a summary of the real tokens, ``s = f_theta(u)`` and ``p = softmax((g_phi(u) + noise) / tau)``. In training
    the gates are a soft function of s and p, and every head is computed; otherwise the top ``k = round(s H)`` heads by
    p are active. With ``straight-through`` both phases use the same hard choice and the gradient is that of ``s H p``.

    Args:
        num_heads: H.
        budget: f_theta, or None for a fixed budget.
        relevance: g_phi, ``(B, D) -> (B, H)``, or None for a random relevance (new at each training step).
        fixed_s: the budget where there is no f_theta.
        formula: the gates in training.
        reweighting: the weight of a kept head at inference: ``weighted`` is the formula's, ``renormalised`` scales
            those to the mass that the formula has over all heads, ``unit`` is 1.
        rounding: how s H becomes k.
        min_heads: the least k.
        noise_law: law of the noise on the relevance scores in training.
        summary: what u is, a key of ``SUMMARIES``.
        detach_summary: the gradient of the gates ends at the summary.
        generator: source of this layer's salt.
    """

    tau: Tensor
    noise_scale: Tensor
    salt: Tensor
    step_salt: Tensor

    def __init__(
        self,
        num_heads: int,
        *,
        budget: BudgetNetwork | None,
        relevance: nn.Module | None,
        fixed_s: float,
        formula: GateFormula,
        reweighting: Reweighting,
        rounding: Rounding,
        min_heads: int,
        noise_law: NoiseLaw,
        summary: Summary,
        detach_summary: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.budget = budget
        self.relevance = relevance
        self.fixed_s = fixed_s
        self.formula = formula
        self.reweighting = reweighting
        self.rounding: Rounding = rounding
        self.min_heads = min_heads
        self.noise_law = noise_law
        self.summarise = SUMMARIES[summary]
        self.detach_summary = detach_summary
        self.register_buffer("tau", torch.ones(()))
        self.register_buffer("noise_scale", torch.zeros(()))
        self.register_buffer("salt", new_salt(generator))
        self.register_buffer("step_salt", torch.zeros((), dtype=torch.long))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        summary_BD = self.summarise(x_BTD.detach() if self.detach_summary else x_BTD, mask_BT)
        s_B = summary_BD.new_full((len(key_B),), self.fixed_s) if self.budget is None else self.budget(summary_BD)
        scores_BH = self._scores(summary_BD, key_B)
        p_BH = torch.softmax(scores_BH / self.tau.to(summary_BD.dtype), dim=-1)
        soft_BH = self._soft(s_B, p_BH)
        if self.training and self.formula != "straight-through":
            return Gates(soft_BH, s_B, p_BH)
        hard_BH = self._hard(s_B, scores_BH, soft_BH)
        if self.training:
            hard_BH = hard_BH.detach() + (soft_BH - soft_BH.detach())
        return Gates(hard_BH, s_B, p_BH)

    def _scores(self, summary_BD: Tensor, key_B: Tensor) -> Tensor:
        salt = self.salt + self.step_salt if self.training else self.salt
        if self.relevance is None:
            return random_uniform(key_B, salt, self.num_heads).to(summary_BD.dtype)
        scores_BH: Tensor = self.relevance(summary_BD)
        if self.training and self.noise_law != "none":
            draw = random_normal if self.noise_law == "gaussian" else random_gumbel
            scores_BH = scores_BH + self.noise_scale * draw(key_B, salt, self.num_heads).to(scores_BH.dtype)
        return scores_BH

    def _soft(self, s_B: Tensor, p_BH: Tensor) -> Tensor:
        mass_BH = s_B[:, None] * p_BH
        if self.formula == "s*p":
            return mass_BH
        return (self.num_heads * mass_BH).clamp(max=1) if self.formula == "min(1,s*H*p)" else self.num_heads * mass_BH

    def _hard(self, s_B: Tensor, scores_BH: Tensor, soft_BH: Tensor) -> Tensor:
        # The scores have the order of p, and keep it where small probabilities underflow to the same 0.
        active_BH = top_k_mask(scores_BH, head_counts(s_B, self.num_heads, self.rounding, self.min_heads))
        if self.reweighting == "unit":
            return active_BH.to(soft_BH.dtype)
        kept_BH = active_BH * soft_BH
        if self.reweighting == "renormalised":
            kept_mass_B1 = kept_BH.sum(dim=-1, keepdim=True)
            kept_BH = kept_BH * (soft_BH.sum(dim=-1, keepdim=True) / kept_mass_B1.where(kept_mass_B1 > 0, 1.0))
        # A kept head must stay active where its weight is 0, for want of budget or because p underflowed.
        return active_BH * kept_BH.clamp(min=torch.finfo(kept_BH.dtype).tiny)

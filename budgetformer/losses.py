"""Terms that BudgetFormer adds to the task's loss.

Shapes: B batch, L layers, H heads.
"""

import torch
from torch import Tensor


def budget_hinge(s: Tensor, s_min: float, s_max: float) -> Tensor:
    """Mean of ``max(0, s_min - s)^2 + max(0, s - s_max)^2``: 0 while the budget stays in its range.

    The form of the paper's L_budget is our reading of "quadratic hinge" (see docs/methods.md).

    Args:
        s: predicted fractions of heads, any shape.
        s_min: lower end of the range.
        s_max: upper end of the range.
    """
    return ((s_min - s).clamp(min=0) ** 2 + (s - s_max).clamp(min=0) ** 2).mean()


def budget_target(s: Tensor, target_s: float) -> Tensor:
    """``(mean(s) - target_s)^2``: aims the mean budget at a target, and leaves each input and layer free.

    Args:
        s: predicted fractions of heads, any shape.
        target_s: the fraction aimed at.
    """
    return (s.mean() - target_s) ** 2


def mean_entropy(relevance: Tensor) -> Tensor:
    """Mean entropy, in nats, of distributions over the last dimension; in [0, ln H]."""
    # A probability can underflow to 0, where x log x has no gradient of its own.
    smallest = torch.finfo(relevance.dtype).tiny
    return -(relevance * relevance.clamp(min=smallest).log()).sum(dim=-1).mean()

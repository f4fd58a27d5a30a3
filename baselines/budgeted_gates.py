"""Gates for a budget that the user gives at inference, in the spirit of Nidhi 2026 (arXiv 2605.05697).

Shapes: H heads.
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
from budgetformer.selection import top_k_mask, whole_heads

TrainingBudgets = Literal["uniform", "requested"]


class MonotoneGates(SharedGates):
    """Gates of one layer that never fall as the budget rises: the heads of a budget are among those of a larger one.

    ``soft_h(k) = sigmoid((score_h - threshold(k)) / tau)``, where the threshold lies midway between the k-th and the
    next score. The gate is 1 where the score is above the threshold, so for exactly k heads, and its gradient is the
    soft gate's.

    Args:
        scores_H: the scores before training.
        s: the budget asked for at inference, in [0, 1].
        tau: temperature of the soft gates.
    """

    training_k: Tensor

    def __init__(self, scores_H: Tensor, s: float, tau: float) -> None:
        super().__init__(s)
        self.tau = tau
        self.k = whole_heads(s, len(scores_H))
        self.scores_H = nn.Parameter(scores_H)
        self.register_buffer("training_k", torch.tensor(len(scores_H)))

    def hard(self, k: int) -> Tensor:
        """The gates of a budget of k heads, ``(H,)``, in {0, 1}."""
        return top_k_mask(self.scores_H.detach()[None], k)[0].to(self.scores_H.dtype)

    def soft(self, k: int) -> Tensor:
        """The relaxed gates of a budget of k heads, ``(H,)``."""
        sorted_H = self.scores_H.detach().sort(descending=True).values
        # Beyond the highest and the lowest, for the thresholds of the budgets 0 and H.
        edges = torch.cat([sorted_H[:1] + 2 * self.tau, sorted_H, sorted_H[-1:] - 2 * self.tau])
        return torch.sigmoid((self.scores_H - (edges[k] + edges[k + 1]) / 2) / self.tau)

    def in_training(self) -> Tensor:
        k = int(self.training_k)
        soft_H = self.soft(k)
        return self.hard(k) + (soft_H - soft_H.detach())

    def settled(self) -> Tensor:
        return self.hard(self.k)


@dataclass(frozen=True, kw_only=True)
class BudgetedGates(Method):
    """One model for every budget: after a dense start, each step trains with a random budget.

    The paper's gates are functions of the requested budget alone, as these are; hers are soft and made hard by an
    adaptation of their own, ours are exactly k of H in both phases.

    Attributes:
        s: the budget at inference, in [0, 1]; k is s * H, rounded to the nearest whole number.
        dense: the share of training with all heads, before budgets are drawn, in [0, 1).
        training_budgets: ``uniform`` draws k from 1 to H for each step, ``requested`` trains for s alone.
        tau: temperature of the soft gates, > 0.
        lr_scale: factor on the learning rate of the scores, > 0.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "budgeted-gates"
    place: ClassVar[int] = 80

    s: float = 0.25
    dense: float = 0.3
    training_budgets: TrainingBudgets = "uniform"
    tau: float = 0.3
    lr_scale: float = 10.0

    def __post_init__(self) -> None:
        check_choice(self, "training_budgets", TrainingBudgets)
        check_interval(self, "[0, 1]", "s")
        check_interval(self, "[0, 1)", "dense")
        check_interval(self, "(0, inf)", "tau", "lr_scale")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        scores_LH = self.tau * torch.randn(spec.num_layers, spec.num_heads, generator=generator)
        return nn.ModuleList(MonotoneGates(scores_H.clone(), self.s, self.tau) for scores_H in scores_LH.unbind())

    def param_groups(self, model: Encoder) -> list[dict[str, Any]]:
        return gates_apart(model, self.lr_scale)

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        num_heads = model.spec.num_heads
        drawn = torch.randint(1, num_heads + 1, (), generator=generator)
        for gate in model.gates:
            gate = cast("MonotoneGates", gate)
            requested = self.training_budgets == "requested" or progress >= 1  # trained: the budget is known
            k = torch.tensor(gate.k) if requested else drawn
            gate.training_k.copy_(torch.tensor(num_heads) if progress < self.dense else k)

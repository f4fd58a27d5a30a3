"""BudgetFormer (arXiv 2604.22583): per-input budget and relevance of heads.

What the paper's summaries leave open is a field here, with a default (docs/methods.md says what is known).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from budgetformer.checks import check_choice, check_flag, check_interval, check_whole
from budgetformer.controller import BudgetController, BudgetNetwork, GateFormula, NoiseLaw, Reweighting, Summary
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.importance import LabelledBatch
from budgetformer.losses import budget_hinge, budget_target, mean_entropy
from budgetformer.method import Method
from budgetformer.schedules import Shape, interpolate
from budgetformer.selection import Rounding, new_salt


@dataclass(frozen=True, kw_only=True)
class BudgetFormer(Method):
    """Adaptive head budgeting: soft gates from s and p in training, the top k heads by p at inference.

    ``L = L_task + budget_weight * hinge(s; s_min, s_max) + target_weight * (mean(s) - aim(t))^2 + w(t) * entropy(p)``
    with w moving from ``entropy_weight_start`` (negative: high entropy is rewarded) to ``entropy_weight_end``. The
    aim, from ``start_budget`` to ``target_s``, is ours and absent by default.

    Attributes:
        gate: formula of the gates in training.
        reweighting: weight of the kept heads at inference.
        rounding: how s H becomes a whole number of heads.
        min_heads: the least number of active heads per layer; with 0 and ``floor``, s < 1/H keeps none.
        start_budget: s before training, in (0, 1).
        fixed_s: a budget in [0, 1] for every input in place of the budget network; None uses the network.
        learned_relevance: False draws the relevance at random instead of using the relevance network.
        s_min, s_max: the range in which the budget costs nothing, in [0, 1].
        budget_weight: weight of the hinge.
        target_s: the mean budget to aim at, in [0, 1]; None leaves it to the hinge and the task.
        target_weight: weight of the aim.
        target_cooldown: the share of training over which the aim goes from ``start_budget`` to ``target_s``, in (0, 1].
        entropy_weight_start, entropy_weight_end, entropy_weight_shape: weight of the entropy.
        tau_start, tau_end, tau_shape: the temperature, > 0.
        noise_start, noise_end, noise_shape, noise_law: scale (>= 0) and law of the noise on the scores.
        summary: what the networks see of an input: mean or maximum over its real tokens, or its first token.
        detach_summary: the gradient of the gates trains the networks alone; it does not reach the encoder by way of
            the summary.
        hidden: hidden width of the budget network; None is D // 2.
        shared_networks: one pair of networks for all layers.

    Raises:
        ValueError: for a value outside its range.
    """

    name: ClassVar[str] = "budgetformer"
    place: ClassVar[int] = 100

    gate: GateFormula = "s*H*p"
    reweighting: Reweighting = "renormalised"
    rounding: Rounding = "floor"
    min_heads: int = 0
    start_budget: float = 0.9
    fixed_s: float | None = None
    learned_relevance: bool = True
    s_min: float = 0.1
    s_max: float = 0.9
    budget_weight: float = 1.0
    target_s: float | None = None
    target_weight: float = 10.0
    target_cooldown: float = 0.5
    entropy_weight_start: float = -0.01
    entropy_weight_end: float = 0.01
    entropy_weight_shape: Shape = "linear"
    tau_start: float = 2.0
    tau_end: float = 0.1
    tau_shape: Shape = "exponential"
    noise_start: float = 0.5
    noise_end: float = 0.0
    noise_shape: Shape = "linear"
    noise_law: NoiseLaw = "gaussian"
    summary: Summary = "mean"
    detach_summary: bool = False
    hidden: int | None = None
    shared_networks: bool = False

    def __post_init__(self) -> None:
        for field, choices in (
            ("gate", GateFormula),
            ("reweighting", Reweighting),
            ("rounding", Rounding),
            ("noise_law", NoiseLaw),
            ("tau_shape", Shape),
            ("noise_shape", Shape),
            ("entropy_weight_shape", Shape),
            ("summary", Summary),
        ):
            check_choice(self, field, choices)
        check_interval(self, "[0, 1]", "fixed_s", "target_s", optional=True)
        check_interval(self, "[0, 1]", "s_min", "s_max")
        check_interval(self, "(0, 1)", "start_budget")
        check_interval(self, "(0, 1]", "target_cooldown")
        check_interval(self, "(0, inf)", "tau_start", "tau_end")
        check_interval(self, "[0, inf)", "noise_start", "noise_end", "budget_weight", "target_weight")
        check_interval(self, "(-inf, inf)", "entropy_weight_start", "entropy_weight_end")
        check_whole(self, 0, "min_heads")
        check_whole(self, 1, "hidden", optional=True)
        check_flag(self, "learned_relevance", "shared_networks", "detach_summary")
        if self.s_min > self.s_max:
            raise ValueError(f"s_min must not be above s_max, not {self.s_min} and {self.s_max}")
        if self.fixed_s is not None and self.target_s is not None:
            raise ValueError(f"fixed_s {self.fixed_s} leaves nothing to aim at target_s {self.target_s}")
        if self.entropy_weight_shape == "exponential":
            raise ValueError("entropy_weight_shape cannot be exponential: the weight changes its sign")
        if self.noise_shape == "exponential" and 0 in (self.noise_start, self.noise_end):
            raise ValueError(f"exponential noise must be positive, not {self.noise_start} -> {self.noise_end}")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        if self.min_heads > spec.num_heads:
            raise ValueError(f"min_heads {self.min_heads} is more than the {spec.num_heads} heads of the encoder")
        hidden = self.hidden or max(1, spec.width // 2)

        def networks() -> tuple[BudgetNetwork | None, nn.Module | None]:
            budget = BudgetNetwork(spec.width, hidden, self.start_budget) if self.fixed_s is None else None
            return budget, nn.Linear(spec.width, spec.num_heads) if self.learned_relevance else None

        shared = networks() if self.shared_networks else None
        controllers = []
        for _ in range(spec.num_layers):
            budget, relevance = shared or networks()
            controllers.append(
                BudgetController(
                    spec.num_heads,
                    budget=budget,
                    relevance=relevance,
                    fixed_s=1.0 if self.fixed_s is None else self.fixed_s,
                    formula=self.gate,
                    reweighting=self.reweighting,
                    rounding=self.rounding,
                    min_heads=self.min_heads,
                    noise_law=self.noise_law,
                    summary=self.summary,
                    detach_summary=self.detach_summary,
                    generator=generator,
                )
            )
        return nn.ModuleList(controllers)

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        salt = new_salt(generator)
        for gate in model.gates:
            controller = cast("BudgetController", gate)
            controller.tau.fill_(interpolate(self.tau_start, self.tau_end, progress, self.tau_shape))
            controller.noise_scale.fill_(interpolate(self.noise_start, self.noise_end, progress, self.noise_shape))
            controller.step_salt.copy_(salt)

    def extra_losses(self, model: Encoder, output: EncoderOutput, progress: float) -> dict[str, Tensor]:
        assert output.s_BL is not None
        assert output.relevance_BLH is not None
        losses = {}
        if self.fixed_s is None:
            losses["budget"] = self.budget_weight * budget_hinge(output.s_BL, self.s_min, self.s_max)
        if self.target_s is not None:
            aim = interpolate(self.start_budget, self.target_s, progress / self.target_cooldown)
            losses["target"] = self.target_weight * budget_target(output.s_BL, aim)
        if self.learned_relevance:
            weight = interpolate(
                self.entropy_weight_start, self.entropy_weight_end, progress, self.entropy_weight_shape
            )
            losses["entropy"] = weight * mean_entropy(output.relevance_BLH)
        return losses


@dataclass(frozen=True, kw_only=True)
class BudgetFormerST(BudgetFormer):
    """BudgetFormer that selects in training as it does at inference, with a budget that can be aimed.

    The gates of both phases are those of the hard top k, and the gradient is that of the soft gates (straight-through,
    Bengio, Leonard and Courville 2013). It trains the two networks alone: in the encoder a gradient of what the gates
    did not do would only be noise. ``target_s`` aims the mean budget, so that a curve of accuracy over cost can be
    traced. Everything else is as in :class:`BudgetFormer`; what differs is our choice, not the paper's.
    """

    name: ClassVar[str] = "budgetformer-st"
    place: ClassVar[int] = 110

    gate: GateFormula = "straight-through"
    reweighting: Reweighting = "unit"
    rounding: Rounding = "nearest"
    target_s: float | None = 0.25
    detach_summary: bool = True

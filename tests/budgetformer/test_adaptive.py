import math
from typing import Any

import pytest
import torch
from torch import Tensor

from budgetformer.adaptive import BudgetFormer, BudgetFormerST
from budgetformer.controller import SUMMARIES, BudgetController, Summary
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.losses import budget_hinge, budget_target, mean_entropy
from budgetformer.schedules import interpolate

SPEC = EncoderSpec(vocab_size=20, num_classes=2, max_length=6, width=16, num_layers=2, num_heads=4)


def controller(method: BudgetFormer, p_H: list[float], s: float) -> BudgetController:
    """The first layer's gate, made to say a given budget and relevance."""
    gate = method.gates(SPEC, torch.Generator().manual_seed(0))[0]
    assert isinstance(gate, BudgetController)
    assert isinstance(gate.relevance, torch.nn.Linear)
    assert gate.budget is not None
    with torch.no_grad():
        gate.relevance.weight.zero_()
        gate.relevance.bias.copy_(torch.tensor(p_H).log())
        gate.budget.output.weight.zero_()
        gate.budget.output.bias.fill_(math.log(s / (1 - s)))
    return gate


def call(gate: BudgetController) -> Any:
    return gate(torch.randn(3, 5, 16), torch.ones(3, 5, dtype=torch.bool), torch.arange(3))


P = [0.4, 0.1, 0.3, 0.2]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("s*p", [0.24, 0.06, 0.18, 0.12]),
        ("s*H*p", [0.96, 0.24, 0.72, 0.48]),
        ("min(1,s*H*p)", [0.96, 0.24, 0.72, 0.48]),
    ],
)
def test_gates_in_training_follow_the_formula(formula: str, expected: list[float]) -> None:
    gates_BH = call(controller(BudgetFormer(gate=formula), P, 0.6).train()).gates_BH  # type: ignore[arg-type]
    torch.testing.assert_close(gates_BH, torch.tensor(expected).expand(3, 4))


def test_the_cap_caps() -> None:
    gates_BH = call(controller(BudgetFormer(gate="min(1,s*H*p)"), P, 0.9).train()).gates_BH
    torch.testing.assert_close(gates_BH[0], torch.tensor([1.0, 0.36, 1.0, 0.72]))


@pytest.mark.parametrize(
    ("reweighting", "expected"),
    [
        ("weighted", [0.96, 0, 0.72, 0]),
        ("renormalised", [2.4 * 0.4 / 0.7, 0, 2.4 * 0.3 / 0.7, 0]),  # to the mass s H = 2.4 of the soft gates
        ("unit", [1, 0, 1, 0]),
    ],
)
def test_inference_keeps_the_top_heads_with_their_weight(reweighting: str, expected: list[float]) -> None:
    method = BudgetFormer(reweighting=reweighting)  # type: ignore[arg-type]
    gates_BH = call(controller(method, P, 0.6).eval()).gates_BH
    torch.testing.assert_close(gates_BH, torch.tensor(expected, dtype=torch.float32).expand(3, 4))


def test_straight_through_is_hard_forwards_and_soft_backwards() -> None:
    gate = controller(BudgetFormer(gate="straight-through", reweighting="unit"), P, 0.6).train()
    gates = call(gate)
    assert gates.gates_BH.tolist() == [[1, 0, 1, 0]] * 3
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (gates.gates_BH * weights).sum().backward()
    assert gate.relevance is not None
    hard = gate.relevance.get_parameter("bias").grad
    soft_gate = controller(BudgetFormer(), P, 0.6).train()
    (call(soft_gate).gates_BH * weights).sum().backward()
    assert soft_gate.relevance is not None
    torch.testing.assert_close(hard, soft_gate.relevance.get_parameter("bias").grad)


def test_a_kept_head_stays_active_when_its_probability_underflows() -> None:
    gate = controller(BudgetFormer(reweighting="weighted"), [1.0, 1e-30, 1e-30, 1e-30], 0.9).eval()
    gate.tau.fill_(0.1)
    assert (call(gate).gates_BH > 0).sum(dim=1).tolist() == [3, 3, 3]


def test_budgets_start_near_where_they_were_told_to() -> None:
    gate = BudgetFormer(start_budget=0.9).gates(SPEC, torch.Generator().manual_seed(0))[0]
    s_B = gate(torch.zeros(1, 5, 16), torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, dtype=torch.long)).s_B
    assert abs(float(s_B.detach()) - 0.9) < 0.05


def test_the_summary_is_the_mean_of_real_tokens() -> None:
    gate = BudgetFormer().gates(SPEC, torch.Generator().manual_seed(0))[0].eval()
    x_BTD = torch.randn(1, 5, 16)
    mask_BT = torch.tensor([[True, True, False, False, False]])
    key_B = torch.zeros(1, dtype=torch.long)
    padded = gate(x_BTD, mask_BT, key_B)
    short = gate(x_BTD[:, :2].mean(dim=1, keepdim=True), mask_BT[:, :1], key_B)
    torch.testing.assert_close(padded.s_B, short.s_B)
    torch.testing.assert_close(padded.relevance_BH, short.relevance_BH)


def test_noise_is_for_training_and_is_new_at_each_step() -> None:
    method = BudgetFormer()
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(1)
    tokens_BT, mask_BT = torch.randint(1, 20, (4, 6)), torch.ones(4, 6, dtype=torch.bool)

    def relevance() -> Tensor:
        relevance_BLH: Tensor = model(tokens_BT, mask_BT).relevance_BLH
        return relevance_BLH

    model.train()
    model.dropout.p = 0
    for layer in model.layers:
        layer.dropout.p = 0
    method.on_step(model, 0.0, generator, [])
    first = relevance()
    assert torch.equal(relevance(), first)
    method.on_step(model, 0.0, generator, [])
    assert not torch.equal(relevance(), first)
    model.eval()
    quiet = relevance()
    method.on_step(model, 0.0, generator, [])
    assert torch.equal(relevance(), quiet)


def test_temperature_and_noise_fall_with_progress() -> None:
    method = BudgetFormer()
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator().manual_seed(0)))
    seen = []
    for progress in (0.0, 0.5, 1.0):
        method.on_step(model, progress, torch.Generator().manual_seed(0), [])
        gate = model.gates[1]
        seen.append((float(gate.get_buffer("tau")), float(gate.get_buffer("noise_scale"))))
    assert seen[0] == pytest.approx((2.0, 0.5))
    assert seen[1] == pytest.approx((math.sqrt(2.0 * 0.1), 0.25))
    assert seen[2] == pytest.approx((0.1, 0.0))


def test_the_extra_losses_are_weighted_and_named() -> None:
    s_BL = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
    relevance_BLH = torch.full((2, 2, 4), 0.25)
    output = EncoderOutput(torch.zeros(2, 2), torch.ones(2, 2, 4), s_BL, relevance_BLH)
    model = Encoder(SPEC, BudgetFormer().gates(SPEC, torch.Generator()))
    start, end = (BudgetFormer(budget_weight=3.0).extra_losses(model, output, progress) for progress in (0.0, 1.0))
    assert float(start["budget"]) == pytest.approx(3 * (0.1**2 + 0.1**2) / 4)
    assert float(start["entropy"]) == pytest.approx(-0.01 * math.log(4))
    assert float(end["entropy"]) == pytest.approx(0.01 * math.log(4))
    assert BudgetFormer(fixed_s=0.5, learned_relevance=False).extra_losses(model, output, 0.0) == {}


@pytest.mark.parametrize(
    ("s", "expected"), [(0.5, 0.0), (0.1, 0.0), (0.9, 0.0), (0.0, 0.01), (1.0, 0.01), (0.05, 0.0025)]
)
def test_the_hinge_is_free_inside_its_range(s: float, expected: float) -> None:
    assert float(budget_hinge(torch.tensor([s]), 0.1, 0.9)) == pytest.approx(expected, abs=1e-7)


def test_entropy_at_its_ends_has_finite_gradients() -> None:
    assert float(mean_entropy(torch.full((3, 8), 1 / 8))) == pytest.approx(math.log(8))
    scores = torch.tensor([[1000.0, 0.0, 0.0]], requires_grad=True)
    entropy = mean_entropy(torch.softmax(scores, dim=-1))
    entropy.backward()  # type: ignore[no-untyped-call]
    assert float(entropy.detach()) == 0
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", 2.0),
        ("linear", 1.55),
        ("exponential", 2 * 0.25**0.3),
        ("cosine", 0.5 + 0.75 * (1 + math.cos(0.3 * math.pi))),
    ],
)
def test_schedules(shape: str, expected: float) -> None:
    assert interpolate(2.0, 0.5, 0.3, shape) == pytest.approx(expected)  # type: ignore[arg-type]
    assert interpolate(2.0, 0.5, 0.0, shape) == pytest.approx(2.0)  # type: ignore[arg-type]
    if shape != "constant":
        assert interpolate(2.0, 0.5, 1.5, shape) == pytest.approx(0.5)  # type: ignore[arg-type]


def test_schedules_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="positive ends"):
        interpolate(0.0, 1.0, 0.5, "exponential")
    with pytest.raises(ValueError, match="unknown schedule 'steps'"):
        interpolate(0.0, 1.0, 0.5, "steps")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gate": "p"},
        {"reweighting": "none"},
        {"rounding": "down"},
        {"noise_law": "cauchy"},
        {"tau_shape": "steps"},
        {"fixed_s": 1.5},
        {"start_budget": 1.0},
        {"s_min": 0.95},
        {"tau_end": 0.0},
        {"noise_start": -1.0},
        {"min_heads": -1},
        {"hidden": 0},
        {"target_s": 1.5},
        {"target_weight": -1.0},
        {"target_cooldown": 0.0},
        {"budget_weight": float("nan")},
        {"entropy_weight_end": float("inf")},
        {"entropy_weight_shape": "exponential"},
        {"summary": "last"},
    ],
)
def test_a_parameter_outside_its_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=name.split("_")[0]) as refused:
        BudgetFormer(**wrong)
    assert str(value) in str(refused.value)


def test_more_heads_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="min_heads 5 is more than the 4 heads"):
        BudgetFormer(min_heads=5).gates(SPEC, torch.Generator())


def test_a_fixed_budget_cannot_be_aimed() -> None:
    with pytest.raises(ValueError, match=r"fixed_s 0.5 leaves nothing to aim at target_s 0.25"):
        BudgetFormer(fixed_s=0.5, target_s=0.25)


def test_the_target_is_of_the_mean_and_leaves_inputs_free() -> None:
    s_BL = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
    assert float(budget_target(s_BL, 0.5)) == 0
    assert float(budget_target(s_BL, 0.25)) == pytest.approx(0.0625)
    method = BudgetFormer(target_s=0.25, target_weight=4.0, target_cooldown=0.5, start_budget=0.75)
    output = EncoderOutput(torch.zeros(2, 2), torch.ones(2, 2, 4), s_BL, torch.full((2, 2, 4), 0.25))
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    for progress, aim in ((0.0, 0.75), (0.25, 0.5), (0.5, 0.25), (1.0, 0.25)):
        loss = float(method.extra_losses(model, output, progress)["target"])
        assert loss == pytest.approx(4 * (0.5 - aim) ** 2, abs=1e-7)
    assert "target" not in BudgetFormer().extra_losses(model, output, 0.3)


@pytest.mark.parametrize(("shape", "weight"), [("linear", 0.0), ("constant", -0.01), ("cosine", 0.0)])
def test_the_entropy_weight_moves_by_its_shape(shape: Any, weight: float) -> None:
    output = EncoderOutput(torch.zeros(2, 2), torch.ones(2, 2, 4), torch.ones(2, 2), torch.full((2, 2, 4), 0.25))
    method = BudgetFormer(entropy_weight_shape=shape)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    loss = float(method.extra_losses(model, output, 0.5)["entropy"])
    assert loss == pytest.approx(weight * math.log(4), abs=1e-9)


@pytest.mark.parametrize(
    ("summary", "expected"),
    [("mean", [[1.0, -2.0], [0.0, 0.0]]), ("max", [[2.0, -1.0], [0.0, 0.0]]), ("first", [[0.0, -1.0], [0.0, 0.0]])],
)
def test_a_summary_is_of_the_real_tokens(summary: Summary, expected: list[list[float]]) -> None:
    x_BTD = torch.tensor([[[0.0, -1.0], [2.0, -3.0], [9.0, 9.0]], [[7.0, 7.0], [7.0, 7.0], [7.0, 7.0]]])
    mask_BT = torch.tensor([[True, True, False], [False, False, False]])
    assert SUMMARIES[summary](x_BTD, mask_BT).tolist() == expected


def test_the_straight_through_preset_selects_alike_in_both_phases_and_aims() -> None:
    method = BudgetFormerST(noise_law="none")
    assert (method.name, method.gate, method.target_s) == ("budgetformer-st", "straight-through", 0.25)
    gate = controller(method, P, 0.6)  # 0.6 * 4 heads: 2 to the nearest
    in_training, at_inference = call(gate.train()).gates_BH, call(gate.eval()).gates_BH
    assert in_training.tolist() == at_inference.tolist() == [[1, 0, 1, 0]] * 3


def test_one_soft_head_each_is_full_attention_at_s_1() -> None:
    """The paper's audit: k = H hard equals s = 1 soft where the gate is the same in both phases."""
    for reweighting in ("weighted", "renormalised"):
        gate = controller(BudgetFormer(fixed_s=None, reweighting=reweighting, noise_law="none"), P, 1 - 1e-6)
        gate.tau.fill_(1.0)
        torch.testing.assert_close(call(gate.train()).gates_BH, call(gate.eval()).gates_BH, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("detached", [False, True])
def test_the_gradient_of_the_gates_reaches_the_input_unless_it_is_detached(detached: bool) -> None:
    gate = BudgetFormer(detach_summary=detached).gates(SPEC, torch.Generator().manual_seed(0))[0].train()
    x_BTD = torch.randn(3, 5, 16, requires_grad=True)
    gates = gate(x_BTD, torch.ones(3, 5, dtype=torch.bool), torch.arange(3))
    gates.gates_BH[:, 0].sum().backward()
    assert (x_BTD.grad is None) is detached
    assert all(parameter.grad is not None for parameter in gate.parameters())

"""The controller beyond its closed forms: mass, the hard choice in training, limits, and what a step changes."""

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from budgetformer import selection
from budgetformer.adaptive import BudgetFormer
from budgetformer.controller import BudgetController, GateFormula, NoiseLaw, Reweighting
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import Gates
from budgetformer.selection import Rounding
from budgetformer.surgery import compact

SPEC = EncoderSpec(vocab_size=20, num_classes=2, max_length=6, width=16, num_layers=2, num_heads=4)
KEYS = torch.arange(32)
INPUTS = torch.randn(32, 5, 16, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(32, 5, dtype=torch.bool)


def make_gate(method: BudgetFormer) -> BudgetController:
    """The first layer's gate, with a relevance and a budget that differ much between inputs."""
    torch.manual_seed(0)
    gate = method.gates(SPEC, torch.Generator().manual_seed(0))[0]
    assert isinstance(gate, BudgetController)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.mul_(3)
    return gate


def call(gate: nn.Module) -> Gates:
    gates = gate(INPUTS, MASK, KEYS)
    assert isinstance(gates, Gates)
    return gates


def gates_of(gate: nn.Module) -> Tensor:
    gates_BH = call(gate).gates_BH
    assert gates_BH is not None
    return gates_BH


@pytest.mark.parametrize(("formula", "rounding"), list(product(get_args(GateFormula), get_args(Rounding))))
def test_renormalised_heads_have_the_mass_of_the_formula_over_all_heads(
    formula: GateFormula, rounding: Rounding
) -> None:
    method = BudgetFormer(gate=formula, rounding=rounding, noise_law="none", start_budget=0.5)
    gate = make_gate(method)
    hard_BH = gates_of(gate.eval())
    gate.formula = "s*H*p" if formula == "straight-through" else formula
    soft_BH = gates_of(gate.train())
    some_B = (hard_BH > 0).any(dim=1)
    assert some_B.sum() > 16
    torch.testing.assert_close(hard_BH.sum(dim=1)[some_B], soft_BH.sum(dim=1)[some_B])


@pytest.mark.parametrize("reweighting", get_args(Reweighting))
def test_straight_through_chooses_in_training_as_at_inference(reweighting: Reweighting) -> None:
    gate = make_gate(BudgetFormer(gate="straight-through", reweighting=reweighting, noise_law="none"))
    assert torch.equal(gates_of(gate.train()), gates_of(gate.eval()))


@pytest.mark.parametrize("reweighting", get_args(Reweighting))
def test_straight_through_learns_as_the_soft_gates_do(reweighting: Reweighting) -> None:
    weights_BH = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    found = []
    for formula in ("straight-through", "s*H*p"):
        gate = make_gate(BudgetFormer(gate=formula, reweighting=reweighting)).train()
        found.append(torch.autograd.grad((gates_of(gate) * weights_BH).sum(), list(gate.parameters())))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_relevance_is_a_softmax_of_scores_over_the_temperature() -> None:
    gate = make_gate(BudgetFormer()).eval()
    gate.tau.fill_(0.5)
    assert gate.relevance is not None
    expected = torch.softmax(gate.relevance(INPUTS.mean(dim=1)) * 2, dim=-1)
    torch.testing.assert_close(call(gate).relevance_BH, expected)


@pytest.mark.parametrize("law", get_args(NoiseLaw))
def test_noise_changes_training_alone_and_by_its_scale(law: NoiseLaw) -> None:
    gate = make_gate(BudgetFormer(noise_law=law))
    quiet = call(gate.eval()).relevance_BH
    assert quiet is not None
    torch.testing.assert_close(call(gate.train()).relevance_BH, quiet)  # a scale of 0
    gate.noise_scale.fill_(0.5)
    torch.testing.assert_close(call(gate.eval()).relevance_BH, quiet)
    loud = call(gate.train()).relevance_BH
    assert loud is not None
    assert torch.equal(loud, quiet) is (law == "none")


@pytest.mark.parametrize("law", ["gaussian", "gumbel"])
@pytest.mark.parametrize("bits", [0, -1], ids=["all bits 0", "all bits 1"])
def test_the_rarest_noise_leaves_a_distribution(law: NoiseLaw, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_mix", lambda x: torch.full_like(x, bits))
    gate = make_gate(BudgetFormer(noise_law=law)).train()
    gate.noise_scale.fill_(0.5)
    relevance_BH = call(gate).relevance_BH
    assert relevance_BH is not None
    torch.testing.assert_close(relevance_BH.sum(dim=1), torch.ones(32))


@pytest.mark.parametrize("min_heads", range(5))
@pytest.mark.parametrize("reweighting", get_args(Reweighting))
@pytest.mark.parametrize("fixed_s", [0.0, 0.1, 0.5, 1.0])
def test_no_layer_has_fewer_active_heads_than_the_least(
    fixed_s: float, reweighting: Reweighting, min_heads: int
) -> None:
    gate = make_gate(BudgetFormer(fixed_s=fixed_s, reweighting=reweighting, min_heads=min_heads)).eval()
    expected = max(min_heads, int(fixed_s * 4))
    assert (gates_of(gate) > 0).sum(dim=1).tolist() == [expected] * 32


@pytest.mark.parametrize("formula", get_args(GateFormula))
def test_gates_are_finite_and_not_negative_at_any_temperature(formula: GateFormula) -> None:
    gate = make_gate(BudgetFormer(gate=formula))
    for training, tau in product((False, True), (1e-3, 0.1, 100.0)):
        gate.tau.fill_(tau)
        gates_BH = gates_of(gate.train(training))
        assert gates_BH.isfinite().all()
        assert (gates_BH >= 0).all()


@pytest.mark.parametrize("start_budget", [0.1, 0.5, 0.9])
def test_an_untrained_budget_is_near_where_it_was_told_to_start(start_budget: float) -> None:
    torch.manual_seed(0)
    gate = BudgetFormer(start_budget=start_budget).gates(SPEC, torch.Generator().manual_seed(0))[0]
    s_B = call(gate).s_B
    assert s_B is not None
    assert abs(float(s_B.detach().mean()) - start_budget) < 0.1


@pytest.mark.parametrize(
    ("change", "part"), [({"fixed_s": 0.5}, "budget"), ({"learned_relevance": False}, "relevance")]
)
def test_what_is_not_learned_has_no_parameters(change: dict[str, Any], part: str) -> None:
    model = Encoder(SPEC, replace(BudgetFormer(), **change).gates(SPEC, torch.Generator()))
    assert not [name for name, _ in model.named_parameters() if f".gate.{part}" in name]


def test_a_fixed_budget_is_that_of_every_input() -> None:
    assert call(make_gate(BudgetFormer(fixed_s=0.3))).s_B.tolist() == pytest.approx([0.3] * 32)  # type: ignore[union-attr]


@pytest.mark.parametrize(("hidden", "width"), [(None, 8), (3, 3)])
def test_the_hidden_width_is_half_of_the_model_unless_given(hidden: int | None, width: int) -> None:
    gate = make_gate(BudgetFormer(hidden=hidden))
    assert gate.budget is not None
    assert gate.budget.hidden.weight.shape == (width, 16)


def test_shared_networks_are_one_pair_also_in_the_model_that_is_run() -> None:
    method = BudgetFormer(shared_networks=True)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    for each in (model, compact(model)):
        first, second = each.gates
        assert isinstance(first, BudgetController)
        assert isinstance(second, BudgetController)
        assert first.budget is second.budget
        assert first.relevance is second.relevance
        assert first.salt != second.salt


def test_random_relevance_is_new_at_each_step_and_fixed_at_inference() -> None:
    method = BudgetFormer(learned_relevance=False, fixed_s=0.5, gate="straight-through", reweighting="unit")
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(1)
    trained, evaluated = [], []
    for _ in range(2):
        method.on_step(model, 0.5, generator, [])
        trained.append(gates_of(model.gates[0].train()))
        evaluated.append(gates_of(model.gates[0].eval()))
    assert not torch.equal(*trained)
    assert torch.equal(*evaluated)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fixed_s": -0.1},
        {"fixed_s": float("nan")},
        {"start_budget": 0.0},
        {"s_min": -0.1},
        {"s_max": 1.1},
        {"s_max": 0.05},
        {"tau_start": 0.0},
        {"tau_start": float("nan")},
        {"tau_end": float("nan")},
        {"noise_end": -1.0},
        {"noise_start": float("nan")},
        {"noise_shape": "steps"},
    ],
    ids=str,
)
def test_a_parameter_outside_its_range_is_refused_with_its_value(wrong: dict[str, Any]) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=name.split("_")[0]) as refused:
        BudgetFormer(**wrong)
    assert str(value) in str(refused.value)


def test_a_schedule_that_cannot_run_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="noise"):
        BudgetFormer(noise_shape="exponential", noise_start=0.5, noise_end=0.0)

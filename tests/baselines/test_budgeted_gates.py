"""Gates for a budget of the user's: exactly k heads, nested, and monotone in the budget."""

from itertools import pairwise

import pytest
import torch

from baselines.budgeted_gates import BudgetedGates, MonotoneGates
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=2, num_heads=8)
SCORES_H = torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, 0.31, -2.0, 0.0])


def make_gates(s: float = 0.25) -> MonotoneGates:
    return MonotoneGates(SCORES_H.clone(), s, 0.3)


@pytest.mark.parametrize("k", range(9))
def test_a_budget_has_exactly_its_heads_the_ones_with_the_highest_scores(k: int) -> None:
    hard_H = make_gates().hard(k)
    assert hard_H.nonzero().flatten().tolist() == sorted(SCORES_H.topk(k).indices.tolist())


def test_gates_never_fall_as_the_budget_rises() -> None:
    gates = make_gates()
    for k in range(8):
        assert (gates.hard(k + 1) >= gates.hard(k)).all()
        assert (gates.soft(k + 1) > gates.soft(k)).all()


@pytest.mark.parametrize("k", range(9))
def test_a_soft_gate_is_above_a_half_where_the_head_is_on(k: int) -> None:
    gates = make_gates()
    assert (gates.soft(k) > 0.5).tolist() == gates.hard(k).bool().tolist()


def test_soft_gates_by_hand() -> None:
    # two heads of scores 2 and 1 are in, the next is 0.5: the threshold is 0.75
    torch.testing.assert_close(make_gates().soft(2), torch.sigmoid((SCORES_H - 0.75) / 0.3))


def test_training_is_dense_at_first_and_then_draws_budgets() -> None:
    method = BudgetedGates(dense=0.3)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator())).train()
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for progress in [0.0, 0.29, *[0.5] * 200]:
        method.on_step(model, progress, generator, [])
        drawn.append([int(gate.get_buffer("training_k")) for gate in model.gates])
    assert drawn[:2] == [[8, 8], [8, 8]]
    assert all(first == second for first, second in drawn)
    assert {k for k, _ in drawn[2:]} == set(range(1, 9))
    output = model(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    assert output.gates_BLH.sum(dim=2).tolist() == [drawn[-1]]
    method.on_step(model, 1.0, generator, [])
    assert [int(gate.get_buffer("training_k")) for gate in model.gates] == [2, 2]


def test_one_model_serves_every_budget() -> None:
    model = Encoder(SPEC, BudgetedGates().gates(SPEC, torch.Generator().manual_seed(0)))
    kept = []
    for s in (0.0, 0.25, 0.5, 1.0):
        for gate in model.gates:
            assert isinstance(gate, MonotoneGates)
            gate.k = round(8 * s)
        kept.append([set(layer.attention.heads) for layer in BudgetedGates().for_inference(model).layers])
    assert [[len(heads) for heads in layers] for layers in kept] == [[0, 0], [2, 2], [4, 4], [8, 8]]
    for smaller, larger in pairwise(kept):
        assert all(few <= many for few, many in zip(smaller, larger, strict=True))


@pytest.mark.parametrize(("field", "value"), [("s", 1.5), ("dense", 1.0), ("tau", 0.0), ("lr_scale", -1.0)])
def test_a_value_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in .*, not {value}"):
        BudgetedGates(**{field: value})  # type: ignore[arg-type]

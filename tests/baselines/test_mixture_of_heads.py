"""Mixture of heads: shared and routed heads, their weights, and the load-balance loss."""

import pytest
import torch
from torch import Tensor

from baselines.mixture_of_heads import MixtureGates, MixtureOfHeads, Weights, load_balance
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=2, num_heads=8)
X_BTD = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0))
MASK_BT = torch.ones(5, 3, dtype=torch.bool)
KEY_B = torch.zeros(5, dtype=torch.long)


def make_gates(weights: Weights = "softmax", num_shared: int = 2, k: int = 3) -> MixtureGates:
    torch.manual_seed(0)
    return MixtureGates(16, 8, num_shared=num_shared, k=k, s=0.5, weights=weights)


def chosen(gates: MixtureGates) -> tuple[Tensor, Tensor]:
    output = gates(X_BTD, MASK_BT, KEY_B)
    assert output.gates_BH is not None
    assert output.relevance_BH is not None
    return output.gates_BH.detach(), output.relevance_BH.detach()


@pytest.mark.parametrize(("num_routed", "k"), [(7, 1), (6, 3), (4, 4)])
def test_a_uniform_router_has_a_load_balance_of_one(num_routed: int, k: int) -> None:
    uniform = torch.full((num_routed,), 1 / num_routed)
    even = torch.full((num_routed,), k / num_routed)
    assert float(load_balance(even, uniform, k)) == pytest.approx(1)
    first_k = (torch.arange(num_routed) < k).float()  # ties all go to the first heads
    assert float(load_balance(first_k, uniform, k)) == pytest.approx(1)


def test_no_router_that_follows_its_probabilities_has_less_than_a_uniform_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        share_R = torch.rand(6, generator=generator).sort().values
        probability_R = torch.rand(6, generator=generator).sort().values
        k = 2
        loss = load_balance(k * share_R / share_R.sum(), probability_R / probability_R.sum(), k)
        assert float(loss) >= 1 - 1e-6


def test_a_sure_router_has_the_highest_load_balance() -> None:
    one_hot = torch.tensor([1.0, 0, 0, 0])
    assert float(load_balance(one_hot, one_hot, 1)) == pytest.approx(4)
    assert float(load_balance(torch.tensor([0.5, 0.5, 0, 0]), torch.tensor([0.6, 0.2, 0.1, 0.1]), 1)) == pytest.approx(
        4 * (0.3 + 0.1)
    )


def test_the_loss_is_the_mean_over_layers_of_what_the_gates_did() -> None:
    method = MixtureOfHeads(s=0.5, balance_weight=0.1)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator())).train()
    tokens_BT = torch.randint(1, 20, (5, 4), generator=torch.Generator().manual_seed(1))
    output = model(tokens_BT, torch.ones(5, 4, dtype=torch.bool))
    expected = [
        load_balance((output.gates_BLH[:, i, 2:] > 0).float().mean(0), output.relevance_BLH[:, i, 2:].mean(0), 2)
        for i in range(2)
    ]
    loss = method.extra_losses(model, output, 0.5)["balance"]
    assert float(loss.detach()) == pytest.approx(0.1 * float(torch.stack(expected).mean().detach()))


@pytest.mark.parametrize("weights", ["softmax", "renormalised", "unit"])
def test_shared_heads_are_always_on_and_k_others(weights: Weights) -> None:
    gates_BH, relevance_BH = chosen(make_gates(weights))
    assert (gates_BH[:, :2] > 0).all()
    assert ((gates_BH[:, 2:] > 0).sum(dim=1) == 3).all()
    best = relevance_BH[:, 2:].topk(3, dim=1).indices
    assert (gates_BH[:, 2:].gather(1, best) > 0).all()
    assert (relevance_BH[:, :2] == 0).all()


def test_an_undecided_router_gives_every_active_head_a_weight_of_one() -> None:
    both: tuple[Weights, ...] = ("softmax", "renormalised")
    for weights in both:
        gates = make_gates(weights)
        with torch.no_grad():
            for parameter in gates.parameters():
                parameter.zero_()
        gates_BH, _ = chosen(gates)
        torch.testing.assert_close(gates_BH[:, :5], torch.ones(5, 5))
        assert (gates_BH[:, 5:] == 0).all()


def test_softmax_weights_by_hand() -> None:
    gates = make_gates()
    mean_BD = X_BTD.mean(dim=1)
    assert gates.balance is not None
    assert gates.shared is not None
    assert gates.routed is not None
    with torch.no_grad():
        alpha = torch.softmax(gates.balance(mean_BD), dim=1)
        shared = 2 * alpha[:, :1] * 2 * torch.softmax(gates.shared(mean_BD), dim=1)
        p = torch.softmax(gates.routed(mean_BD), dim=1)
        routed = 2 * alpha[:, 1:] * 6 * p * (p >= p.topk(3, dim=1).values[:, -1:])
    torch.testing.assert_close(chosen(gates)[0], torch.cat([shared, routed], dim=1))


def test_renormalised_weights_add_up_to_k_before_the_balance() -> None:
    gates_BH, _ = chosen(make_gates("renormalised", num_shared=0))
    torch.testing.assert_close(gates_BH.sum(dim=1), torch.full((5,), 3.0))


def test_unit_weights_are_one() -> None:
    gates_BH, _ = chosen(make_gates("unit"))
    assert set(gates_BH.flatten().tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("s", "shared", "num_shared", "k"), [(0.25, 0.5, 1, 1), (0.5, 0.5, 2, 2), (0.5, 0.0, 0, 4), (0.5, 1.0, 4, 0)]
)
def test_numbers_of_heads(s: float, shared: float, num_shared: int, k: int) -> None:
    gate = MixtureOfHeads(s=s, shared=shared).gates(SPEC, torch.Generator())[0]
    assert isinstance(gate, MixtureGates)
    assert (gate.num_shared, gate.k) == (num_shared, k)


@pytest.mark.parametrize(("field", "value"), [("s", 2.0), ("shared", -0.5), ("balance_weight", -1.0)])
def test_a_value_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in .*, not {value}"):
        MixtureOfHeads(**{field: value})  # type: ignore[arg-type]

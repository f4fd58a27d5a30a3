"""Hard-concrete gates against the formulas of Louizos et al. 2018."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

from baselines.l0_gates import HIGH, LOW, TEMPERATURE, HardConcreteGates, L0Gates
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=2, num_heads=4)


def make_gates(*log_alpha: float) -> HardConcreteGates:
    gates = HardConcreteGates(len(log_alpha), 0.0, 0.5)
    with torch.no_grad():
        gates.log_alpha_H.copy_(torch.tensor(log_alpha))
    return gates


def test_far_gates_are_exactly_open_or_closed_at_inference() -> None:
    gates = make_gates(-10.0, 10.0)
    assert gates.settled().tolist() == [0, 1]
    assert gates.settled().tolist() == [0, 1]


def test_a_gate_is_closed_below_the_logit_of_its_stretch() -> None:
    edge = float(logit(-LOW / (HIGH - LOW)))  # -2.398
    assert make_gates(edge - 1e-3, edge + 1e-3).settled().gt(0).tolist() == [False, True]


def test_gates_in_training_follow_the_formula() -> None:
    gates = make_gates(-1.0, 0.0, 2.0)
    gates.noise_H.copy_(torch.tensor([0.9, 0.5, 0.1]))
    concrete = expit((logit(np.array([0.9, 0.5, 0.1])) + np.array([-1.0, 0.0, 2.0])) / TEMPERATURE)
    expected = np.clip(concrete * 1.2 - 0.1, 0, 1)
    np.testing.assert_allclose(gates.in_training().detach().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("log_alpha", [-3.0, -0.5, 0.0, 1.0])
def test_the_open_probability_is_the_share_of_open_draws(log_alpha: float) -> None:
    gates = make_gates(*[log_alpha] * 200_000)
    gates.noise_H.copy_(torch.rand(200_000, generator=torch.Generator().manual_seed(0)))
    share = float((gates.in_training() > 0).float().mean())
    expected = expit(log_alpha - TEMPERATURE * math.log(0.1 / 1.1))
    assert float(gates.open_probability()[0].detach()) == pytest.approx(expected, abs=1e-6)
    assert share == pytest.approx(expected, abs=5e-3)


def test_the_penalty_is_the_squared_distance_in_heads() -> None:
    method = L0Gates(s=0.25, penalty=0.5, cooldown=0.5)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    expected_open = 8 * expit(2.0 - TEMPERATURE * math.log(0.1 / 1.1))
    output = model(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    for progress, aim in ((0.0, 8), (0.25, 5), (0.5, 2), (1.0, 2)):
        loss = float(method.extra_losses(model, output, progress)["l0"].detach())
        assert loss == pytest.approx(0.5 * (expected_open - aim) ** 2, rel=1e-5)


def test_each_step_draws_new_noise_and_inference_none() -> None:
    method = L0Gates()
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    generator = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(2):
        method.on_step(model, 0.5, generator, [])
        seen.append(torch.stack([gate.get_buffer("noise_H") for gate in model.gates]))
    assert not torch.equal(*seen)
    assert ((seen[0] > 0) & (seen[0] < 1)).all()
    method.on_step(model, 1.0, generator, [])
    assert all((gate.get_buffer("noise_H") == 0.5).all() for gate in model.gates)
    first, again = (method.for_inference(model).gates[0].get_buffer("gates_H") for _ in range(2))
    assert torch.equal(first, again)


def test_without_a_penalty_all_heads_stay_on() -> None:
    method = L0Gates(s=0.25, penalty=0.0)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    output = method.for_inference(model)(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    assert (output.gates_BLH > 0).all()
    assert float(output.s_BL.mean()) == 0.25  # the aim, which the heads that ran do not meet


def test_gates_have_a_rate_of_their_own() -> None:
    method = L0Gates(lr_scale=7.0)
    shared, gates = method.param_groups(Encoder(SPEC, method.gates(SPEC, torch.Generator())))
    assert [tuple(parameter.shape) for parameter in gates["params"]] == [(4,), (4,)]
    assert (gates["lr_scale"], gates["weight_decay"]) == (7.0, 0.0)
    assert all(parameter.shape != (4,) for parameter in shared["params"])
    assert "lr_scale" not in shared


@pytest.mark.parametrize(
    ("field", "value"),
    [("s", 1.1), ("penalty", -1.0), ("cooldown", 0.0), ("lr_scale", 0.0), ("start_log_alpha", float("nan"))],
)
def test_a_value_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in .*, not {value}"):
        L0Gates(**{field: value})

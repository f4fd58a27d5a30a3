"""Differentiable subset pruning: exactly k heads, and a relaxation that hardens."""

import pytest
import torch

from baselines.subset_pruning import HeadScores, SubsetPruning, soft_top_k
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=3, num_heads=4)
SCORES = torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("tau", [1e-3, 0.1, 1.0, 100.0])
def test_soft_gates_sum_to_k(k: int, tau: float) -> None:
    assert float(soft_top_k(SCORES, k, tau).sum()) == pytest.approx(k)


@pytest.mark.parametrize("k", range(6))
def test_a_low_temperature_is_the_hard_top_k(k: int) -> None:
    expected = torch.zeros(5, dtype=torch.float64)
    expected[SCORES.topk(k).indices] = 1
    torch.testing.assert_close(soft_top_k(SCORES, k, 1e-3), expected)


def test_a_high_temperature_spreads_k_evenly() -> None:
    torch.testing.assert_close(soft_top_k(SCORES, 2, 1e9), torch.full((5,), 0.4, dtype=torch.float64))


def test_two_of_three_by_hand() -> None:
    # p1 = softmax(log w) = w / sum w; then w <- w (1 - p1)
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    left = w * (1 - w)
    torch.testing.assert_close(soft_top_k(w.log(), 2, 1.0), w + left / left.sum())


@pytest.mark.parametrize("k", range(13))
@pytest.mark.parametrize("seed", range(3))
def test_gumbel_top_k_keeps_exactly_k(k: int, seed: int) -> None:
    scores = HeadScores((3, 4), k)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scores.importance_LH.copy_(torch.randn(3, 4, generator=generator))
    assert int(scores.hard().sum()) == k
    scores.tau.fill_(1e-3)
    scores.noise_LH.copy_(torch.randn(3, 4, generator=generator))
    assert float(scores.soft().detach().sum()) == pytest.approx(k, abs=1e-4)


def test_equal_scores_are_exactly_k_too() -> None:
    assert HeadScores((3, 4), 5).hard().sum() == 5


@pytest.mark.parametrize(("scope", "per_layer"), [("layer", [2, 2, 2]), ("global", [4, 2, 0])])
def test_layers_compete_only_where_the_scope_says_so(scope: str, per_layer: list[int]) -> None:
    method = SubsetPruning(s=0.5, scope=scope)  # type: ignore[arg-type]
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    with torch.no_grad():
        for parameter in model.gates[0].parameters():
            parameter.copy_(torch.arange(parameter.numel(), 0, -1.0).view_as(parameter))
    final = method.for_inference(model)
    assert [len(layer.attention.heads) for layer in final.layers] == per_layer
    output = final(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    assert output.s_BL.tolist() == [[0.5, 0.5, 0.5]]


def test_shared_scores_are_one_parameter_and_get_one_noise() -> None:
    method = SubsetPruning()
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    _, gates = method.param_groups(model)
    assert [tuple(parameter.shape) for parameter in gates["params"]] == [(3, 4)]
    method.on_step(model, 0.0, torch.Generator().manual_seed(0), [])
    noise = [gate.get_buffer("scores.noise_LH") for gate in model.gates]
    assert all(torch.equal(each, noise[0]) for each in noise)
    uniform = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise[0], -torch.log(-torch.log(uniform)))


@pytest.mark.parametrize(("progress", "scale"), [(0.0, 1.0), (0.3, 0.6), (0.6, 0.2), (1.0, 0.2)])
def test_the_noise_falls_and_then_stays(progress: float, scale: float) -> None:
    method = SubsetPruning(noise_end=0.2, cooldown=0.6)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    method.on_step(model, progress, torch.Generator().manual_seed(0), [])
    uniform = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        model.gates[0].get_buffer("scores.noise_LH"), -scale * torch.log(-torch.log(uniform)), atol=1e-6, rtol=1e-5
    )


def test_the_set_of_the_last_steps_is_the_one_that_is_kept() -> None:
    method = SubsetPruning(s=0.5)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator())).train()
    with torch.no_grad():
        for parameter in model.gates[0].parameters():  # shared by all layers
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    kept = model.eval()(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)).gates_BLH
    generator = torch.Generator().manual_seed(2)
    for progress in (0.6, 0.8, 1.0):
        method.on_step(model.train(), progress, generator, [])
        gates_BLH = model(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)).gates_BLH
        torch.testing.assert_close(gates_BLH, kept, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("progress", "tau"), [(0.0, 10.0), (0.25, 1.0), (0.5, 0.1), (1.0, 0.1)])
def test_the_temperature_falls_by_equal_factors_and_then_stays(progress: float, tau: float) -> None:
    method = SubsetPruning(tau_start=10.0, tau_end=0.1, cooldown=0.5)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator()))
    method.on_step(model, progress, torch.Generator(), [])
    assert float(model.gates[0].get_buffer("scores.tau")) == pytest.approx(tau)


@pytest.mark.parametrize(
    ("field", "value"), [("s", -0.1), ("tau_start", 0.0), ("tau_end", -1.0), ("cooldown", 1.5), ("lr_scale", 0.0)]
)
def test_a_value_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in .*, not {value}"):
        SubsetPruning(**{field: value})  # type: ignore[arg-type]


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(ValueError, match="scope must be one of global, layer, not 'model'"):
        SubsetPruning(scope="model")  # type: ignore[arg-type]

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baselines.static_pruning import StaticPruning
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.importance import LabelledBatch, gradient_importance, magnitude_importance

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=2, num_heads=4)
LENGTHS = torch.tensor([6, 2, 4, 1, 3])
MASK = torch.arange(6) < LENGTHS[:, None]
TOKENS = torch.randint(1, 20, (5, 6), generator=torch.Generator().manual_seed(0)) * MASK
LABELS = torch.tensor([0, 1, 2, 1, 0])
# Batches of unequal size: a mean of their means would be another number.
BATCHES = [LabelledBatch(TOKENS[rows], MASK[rows], LABELS[rows]) for rows in (slice(0, 4), slice(4, 5))]


def make_model(method: StaticPruning) -> Encoder:
    torch.manual_seed(0)
    return Encoder(SPEC, method.gates(SPEC, torch.Generator()))


def kept_heads(model: Encoder) -> list[list[int]]:
    return [gate.get_buffer("gates_H").nonzero().flatten().tolist() for gate in model.gates]


def importance_by_differences(model: Encoder, step: float = 1e-4) -> Tensor:
    """``E_x |L(gate + step) - L(gate - step)| / (2 step)``, one input at a time."""
    importance_LH = torch.zeros(2, 4, dtype=torch.float64)
    for layer, gate in enumerate(model.gates):
        gates_H = gate.get_buffer("gates_H")
        for head in range(4):
            losses = []
            for gate_value in (1 + step, 1 - step):
                gates_H[head] = gate_value
                with torch.no_grad():
                    losses.append(F.cross_entropy(model(TOKENS, MASK).logits_BC, LABELS, reduction="none"))
            gates_H[head] = 1
            importance_LH[layer, head] = ((losses[0] - losses[1]).abs() / (2 * step)).mean()
    return importance_LH


def test_importance_is_the_mean_absolute_derivative_by_a_gate() -> None:
    model = make_model(StaticPruning()).double().eval()
    torch.testing.assert_close(
        gradient_importance(model, BATCHES), importance_by_differences(model), atol=1e-8, rtol=1e-5
    )


def test_pruning_happens_once() -> None:
    method = StaticPruning(s=0.5, prune_steps=1)
    model = make_model(method)
    method.on_step(model, 0.5, torch.Generator(), BATCHES)
    kept = kept_heads(model)
    assert [len(heads) for heads in kept] == [2, 2]
    for layer, heads in zip(model.layers, kept, strict=True):  # what counted most now counts nothing
        with torch.no_grad():
            layer.attention.out.weight.view(16, 4, 4)[:, heads] = 0
    method.on_step(model, 0.75, torch.Generator(), BATCHES)
    assert kept_heads(model) == kept


def test_before_its_time_it_is_full_attention() -> None:
    method = StaticPruning(s=0.0, prune_at=0.5)
    model = make_model(method)
    method.on_step(model, 0.49, torch.Generator(), BATCHES)
    assert kept_heads(model) == [[0, 1, 2, 3]] * 2


def test_keeping_all_heads_looks_at_no_data() -> None:
    method = StaticPruning(s=1.0)
    model = make_model(method)
    method.on_step(model, 0.9, torch.Generator(), [])  # scores of nothing would be an error
    assert kept_heads(model) == [[0, 1, 2, 3]] * 2


def test_pruning_continues_where_a_stored_model_was() -> None:
    method = StaticPruning(s=0.25, prune_steps=1)
    model, restored = make_model(method), make_model(method)
    method.on_step(model, 0.5, torch.Generator(), BATCHES)
    restored.load_state_dict(model.state_dict())
    method.on_step(restored, 0.6, torch.Generator(), [])
    assert kept_heads(restored) == kept_heads(model)


@pytest.mark.parametrize("prune_at", [-0.1, 1.0, float("nan")])
def test_pruning_after_the_end_is_refused(prune_at: float) -> None:
    with pytest.raises(ValueError, match=rf"prune_at must be in \[0, 1\), not {prune_at}"):
        StaticPruning(prune_at=prune_at)


@pytest.mark.parametrize("s", [-0.25, 1.25])
def test_a_fraction_outside_its_range_is_refused(s: float) -> None:
    with pytest.raises(ValueError, match=rf"s must be in \[0, 1\], not {s}"):
        StaticPruning(s=s)


def test_magnitude_is_the_norm_of_a_heads_weights() -> None:
    model = make_model(StaticPruning())
    attention = model.layers[1].attention
    rows, columns = (
        slice(2 * 12, 3 * 12),
        slice(2 * 4, 3 * 4),
    )  # head 2: Q, K and V of width 4, and the output's columns
    expected = (attention.qkv.weight[rows].square().sum() + attention.out.weight[:, columns].square().sum()).sqrt()
    scores_LH = magnitude_importance(model)
    assert scores_LH.shape == (2, 4)
    assert float(scores_LH[1, 2]) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_heads_go_in_steps_and_those_that_went_stay_away() -> None:
    method = StaticPruning(s=0.25, prune_at=0.4, prune_until=0.8, prune_steps=3)
    model = make_model(method)
    kept = []
    for progress in (0.39, 0.4, 0.59, 0.61, 0.79, 0.8, 1.0):
        method.on_step(model, progress, torch.Generator(), BATCHES)
        kept.append(kept_heads(model))
    assert [[len(heads) for heads in layers] for layers in kept] == [
        [4, 4], [3, 3], [3, 3], [2, 2], [2, 2], [1, 1], [1, 1],
    ]  # fmt: skip
    for before, after in pairwise(kept):
        assert all(set(few) <= set(many) for many, few in zip(before, after, strict=True))


def test_global_ranking_may_empty_a_layer_and_min_heads_prevents_it() -> None:
    method = StaticPruning(s=0.5, scope="global", score="magnitude", prune_steps=1)
    for min_heads, expected in ((0, [4, 0]), (1, [3, 1])):
        model = make_model(method)
        with torch.no_grad():  # one head far above the rest of its layer: normalised, the rest is next to nothing
            model.layers[1].attention.out.weight.mul_(0)
            model.layers[1].attention.qkv.weight.mul_(0)
        replaced = StaticPruning(s=0.5, scope="global", score="magnitude", prune_steps=1, min_heads=min_heads)
        replaced.on_step(model, 0.5, torch.Generator(), [])
        assert [len(heads) for heads in kept_heads(model)] == expected
        final = replaced.for_inference(model)
        assert final(TOKENS, MASK).logits_BC.isfinite().all()


def test_global_scores_are_normalised_by_layer() -> None:
    method = StaticPruning(s=0.5, scope="global", score="magnitude", prune_steps=1)
    model, scaled = make_model(method), make_model(method)
    with torch.no_grad():  # heads a hundred times larger in one layer change nothing
        scaled.layers[0].attention.qkv.weight.mul_(100)
        scaled.layers[0].attention.out.weight.mul_(100)
    for each in (model, scaled):
        method.on_step(each, 0.5, torch.Generator(), [])
    assert kept_heads(scaled) == kept_heads(model)
    assert sum(map(len, kept_heads(model))) == 4


def test_random_pruning_is_one_of_its_generator_and_looks_at_no_data() -> None:
    method = StaticPruning(s=0.25, score="random")
    kept = []
    for seed in (0, 0, 1, 2, 3):
        model = make_model(method)
        method.on_step(model, 0.99, torch.Generator().manual_seed(seed), [])
        kept.append(kept_heads(model))
    assert kept[0] == kept[1]
    assert any(other != kept[0] for other in kept[2:])


@pytest.mark.parametrize(
    ("field", "value"),
    [("score", "loss"), ("scope", "head"), ("min_heads", -1), ("prune_steps", 0), ("prune_until", 1.0)],
)
def test_other_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        StaticPruning(**{field: value})  # type: ignore[arg-type]


def test_more_heads_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="min_heads 5 is more than the 4 heads"):
        make_model(StaticPruning(min_heads=5))

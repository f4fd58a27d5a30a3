import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baselines.static_pruning import StaticPruning
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.importance import LabelledBatch, gradient_importance

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

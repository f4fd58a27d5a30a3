from typing import Any

import pytest
import torch
from torch import nn

from budgetformer.encoder import Encoder, EncoderSpec, mean_over_tokens
from budgetformer.gates import AllHeads, ConstantGates
from budgetformer.importance import LabelledBatch, gradient_importance
from budgetformer.surgery import compact

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "num_classes": 2,
    "max_length": 6,
    "width": 16,
    "num_layers": 2,
    "num_heads": 4,
}
SPEC = EncoderSpec(**SIZES)
BATCH = LabelledBatch(torch.randint(1, 20, (3, 6)), torch.ones(3, 6, dtype=torch.bool), torch.tensor([0, 1, 0]))


def make_model(**sizes: Any) -> Encoder:
    spec = EncoderSpec(**SIZES | sizes)
    return Encoder(spec, nn.ModuleList(AllHeads() for _ in range(spec.num_layers)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocab_size": 0},
        {"num_layers": 0},
        {"width": 18},
        {"dropout": 1.0},
        {"token_dropout": -0.1},
        {"embedding_std": 0.0},
        {"max_length": -1},
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        EncoderSpec(**SIZES | wrong)


def test_one_gate_per_layer() -> None:
    with pytest.raises(ValueError, match="1 gate modules for 2 layers"):
        Encoder(SPEC, nn.ModuleList([AllHeads()]))


def test_an_input_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="inputs of 7 tokens; this encoder takes 6"):
        make_model()(torch.ones(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.bool))


def test_training_and_evaluation_differ_by_dropout_alone() -> None:
    model = make_model(dropout=0.0)
    evaluated = model.eval()(BATCH.tokens_BT, BATCH.mask_BT).logits_BC
    torch.testing.assert_close(model.train()(BATCH.tokens_BT, BATCH.mask_BT).logits_BC, evaluated)
    dropping = make_model(dropout=0.0, token_dropout=0.5)
    dropping.load_state_dict(model.state_dict())
    torch.testing.assert_close(dropping.eval()(BATCH.tokens_BT, BATCH.mask_BT).logits_BC, evaluated)
    assert not torch.allclose(dropping.train()(BATCH.tokens_BT, BATCH.mask_BT).logits_BC, evaluated)


def test_without_a_budget_in_some_layer_there_is_none() -> None:
    model = Encoder(SPEC, nn.ModuleList([ConstantGates([1.0] * 4, s=1.0), AllHeads()]))
    output = model(BATCH.tokens_BT, BATCH.mask_BT)
    assert output.s_BL is None
    assert output.relevance_BLH is None


def test_the_mean_is_over_real_tokens() -> None:
    x_BTD = torch.arange(12.0).view(2, 3, 2)
    mask_BT = torch.tensor([[True, True, False], [False, False, False]])
    assert mean_over_tokens(x_BTD, mask_BT).tolist() == [[1.0, 2.0], [0.0, 0.0]]


def test_importance_leaves_no_trace() -> None:
    model = make_model().train()
    before = model(BATCH.tokens_BT, BATCH.mask_BT)
    importance_LH = gradient_importance(model, [BATCH, BATCH])
    assert importance_LH.shape == (2, 4)
    assert (importance_LH > 0).all()
    torch.testing.assert_close(importance_LH, gradient_importance(model, [BATCH]))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model(BATCH.tokens_BT, BATCH.mask_BT).gates_BLH, before.gates_BLH)
    with pytest.raises(ValueError, match="at least one batch"):
        gradient_importance(model, [])


def test_given_gates_take_the_place_of_those_the_modules_choose() -> None:
    gates_BLH = torch.rand(3, SPEC.num_layers, SPEC.num_heads)
    chosen = Encoder(SPEC, nn.ModuleList(ConstantGates(gates_BLH[0, i]) for i in range(SPEC.num_layers))).eval()
    model = make_model().eval()
    model.load_state_dict(chosen.state_dict(), strict=False)
    output = model(BATCH.tokens_BT, BATCH.mask_BT, gates_BLH[:1].expand(3, -1, -1))
    torch.testing.assert_close(output.logits_BC, chosen(BATCH.tokens_BT, BATCH.mask_BT).logits_BC)
    torch.testing.assert_close(output.gates_BLH, gates_BLH[:1].expand(3, -1, -1))


def test_a_sliced_model_cannot_be_given_other_gates() -> None:
    gates = nn.ModuleList(ConstantGates([1.0, 0.0, 1.0, 0.0]) for _ in range(SPEC.num_layers))
    with pytest.raises(ValueError, match="removed for good"):
        compact(Encoder(SPEC, gates))(BATCH.tokens_BT, BATCH.mask_BT, torch.ones(3, SPEC.num_layers, SPEC.num_heads))

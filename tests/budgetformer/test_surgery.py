import pytest
import torch
from torch import nn

from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import AllHeads, ConstantGates, RandomHeads
from budgetformer.importance import LabelledBatch, gradient_importance
from budgetformer.kernel import load_kernel
from budgetformer.surgery import compact, execution_of

needs_kernel = pytest.mark.skipif(load_kernel().function is None, reason=load_kernel().description)
EXECUTIONS = ["auto", "masked", "gathered", "sliced", pytest.param("compiled", marks=needs_kernel)]
SPEC = EncoderSpec(vocab_size=20, num_classes=2, max_length=6, width=16, num_layers=2, num_heads=4, dropout=0.0)
TOKENS = torch.randint(1, 20, (5, 6), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(6) < torch.tensor([6, 1, 3, 4, 2])[:, None]
BATCH = LabelledBatch(TOKENS, MASK, torch.tensor([0, 1, 0, 1, 1]))


def make_model(*gates: nn.Module) -> Encoder:
    torch.manual_seed(0)
    return Encoder(SPEC, nn.ModuleList(gates))


def weighted_model() -> Encoder:
    return make_model(ConstantGates([0.5, 0.0, 2.0, 0.0]), ConstantGates([0.0, 1.0, 0.0, 0.25]))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_weighted_constant_gates_mean_the_same_however_they_run(execution: str) -> None:
    model = weighted_model().eval()
    expected, found = model(TOKENS, MASK), compact(model, execution)(TOKENS, MASK)
    torch.testing.assert_close(found.logits_BC, expected.logits_BC, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.gates_BLH, expected.gates_BLH)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_compact_model_made_compact_again_is_the_same(execution: str) -> None:
    once = compact(weighted_model())
    twice = compact(once, execution)
    torch.testing.assert_close(twice(TOKENS, MASK).logits_BC, once(TOKENS, MASK).logits_BC, atol=1e-5, rtol=1e-5)


def test_a_model_without_heads_can_be_made_compact_again() -> None:
    once = compact(make_model(ConstantGates([0.0] * 4), ConstantGates([0.0] * 4)))
    assert torch.equal(compact(once)(TOKENS, MASK).logits_BC, once(TOKENS, MASK).logits_BC)


@pytest.mark.parametrize("kept", range(5))
def test_each_removed_head_takes_its_weights_with_it(kept: int) -> None:
    gates = [ConstantGates([float(h < kept) for h in range(4)]) for _ in range(2)]
    model = make_model(*gates)
    per_head = 3 * 4 * 16 + 3 * 4 + 16 * 4  # Q, K and V with their biases, and the output's columns; K = 4
    assert num_parameters(model) - num_parameters(compact(model)) == 2 * (4 - kept) * per_head
    assert num_parameters(compact(model, "masked")) == num_parameters(model)


def test_the_execution_is_named_after_what_runs() -> None:
    random = RandomHeads(4, 0.5, torch.Generator().manual_seed(0))
    mixed = make_model(random, ConstantGates([1.0, 0.0, 0.0, 1.0]))
    assert execution_of(compact(mixed)) == "gathered+sliced"
    assert execution_of(compact(mixed, "masked")) == "masked"
    assert execution_of(compact(mixed, "gathered")) == "gathered"
    assert execution_of(compact(make_model(AllHeads(), AllHeads()))) == "dense"


def test_layers_of_different_kinds_agree_with_the_masked_model() -> None:
    random = RandomHeads(4, 0.5, torch.Generator().manual_seed(0))
    model = make_model(random, ConstantGates([1.0, 0.0, 0.0, 1.0]))
    expected = compact(model, "masked")(TOKENS, MASK)
    found = compact(model)(TOKENS, MASK)
    torch.testing.assert_close(found.logits_BC, expected.logits_BC, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="layer 0 chooses heads per input"):
        compact(model, "sliced")


def test_removing_one_head_after_another_is_removing_both() -> None:
    torch.manual_seed(0)
    both, one_by_one = HeadGatedAttention(16, 4), HeadGatedAttention(16, 4)
    one_by_one.load_state_dict(both.state_dict())
    both.keep([2, 3])
    one_by_one.keep([1, 2, 3])
    one_by_one.keep([2, 3])
    for ours, theirs in zip(one_by_one.parameters(), both.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_keeping_no_head_twice_is_keeping_none() -> None:
    layer = HeadGatedAttention(16, 4)
    layer.keep([])
    layer.keep([])
    assert layer.heads == ()


def test_a_layer_with_fewer_heads_can_be_trained_on() -> None:
    model = weighted_model()
    for layer in model.layers:
        layer.attention.keep([0, 3])
    model.train()(TOKENS, MASK).logits_BC.sum().backward()
    grad = model.layers[0].attention.qkv.weight.grad
    assert grad is not None
    assert grad.shape == (2 * 3 * 4, 16)


@pytest.mark.parametrize("head_width", [0, -1])
def test_a_head_width_that_is_not_positive_is_refused(head_width: int) -> None:
    with pytest.raises(ValueError, match="head_width"):
        HeadGatedAttention(16, 4, head_width=head_width)


@pytest.mark.parametrize("ffn_width", [0, -3])
def test_a_feed_forward_width_that_is_not_positive_is_refused(ffn_width: int) -> None:
    with pytest.raises(ValueError, match="ffn_width"):
        EncoderSpec(vocab_size=20, num_classes=2, max_length=6, ffn_width=ffn_width)


def test_importance_leaves_gradients_hooks_and_modes_as_they_were() -> None:
    model = weighted_model().train()
    model.layers[0].eval()
    model(TOKENS, MASK).logits_BC.sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    modes = [module.training for module in model.modules()]
    gradient_importance(model, [BATCH])
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(old, new) for old, new in zip(grads, after, strict=True))
    assert [module.training for module in model.modules()] == modes
    assert not any(gate._forward_hooks for gate in model.gates)


@pytest.mark.parametrize("training", [False, True])
def test_importance_that_fails_leaves_hooks_and_mode_as_they_were(training: bool) -> None:
    model = weighted_model().train(training)
    too_long = LabelledBatch(torch.ones(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.bool), torch.tensor([0]))
    with pytest.raises(ValueError, match="inputs of 7 tokens"):
        gradient_importance(model, [BATCH, too_long])
    assert model.training is training
    assert not any(gate._forward_hooks for gate in model.gates)

"""More of what every method must hold to: see tests/test_contract.py, whose methods and models these are."""

from operator import attrgetter

import pytest
import torch
import torch.nn.functional as F

from baselines.full_mha import FullMHA
from budgetformer.method import Method
from suites.training.model import build_model
from suites.training.seeding import Streams
from tests.test_contract import BATCH, PER_INPUT, SPEC, VARIANTS, every_method, make_model, run


@every_method
def test_for_inference_keeps_gradients_and_mode(method: Method) -> None:
    model = make_model(method)
    F.cross_entropy(model(BATCH.tokens_BT, BATCH.mask_BT).logits_BC, BATCH.labels_B).backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for training in (True, False):
        model.train(training)
        final = method.for_inference(model)
        final(BATCH.tokens_BT, BATCH.mask_BT)
        assert model.training is training
        assert not any(parameter.requires_grad for parameter in final.parameters())
    after = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads.keys() == after.keys()
    assert all(torch.equal(grads[name], after[name]) for name in grads)


@every_method
def test_the_same_seed_draws_the_same_in_training(method: Method) -> None:
    first, again = (run(make_model(method).train()) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@every_method
def test_gates_in_training_do_not_depend_on_padding_or_company(method: Method) -> None:
    model = make_model(method).train()
    _, gates_BLH = run(model)
    for i, length in enumerate(BATCH.mask_BT.sum(dim=1).tolist()):
        with torch.no_grad():
            alone = model(BATCH.tokens_BT[i : i + 1, :length], BATCH.mask_BT[i : i + 1, :length])
        torch.testing.assert_close(alone.gates_BLH[0], gates_BLH[i], atol=1e-5, rtol=1e-4)


@every_method
def test_tokens_under_the_padding_change_nothing(method: Method) -> None:
    final = method.for_inference(make_model(method))
    noise_BT = torch.randint(1, SPEC.vocab_size, BATCH.tokens_BT.shape, generator=torch.Generator().manual_seed(9))
    other = BATCH._replace(tokens_BT=torch.where(BATCH.mask_BT, BATCH.tokens_BT, noise_BT))
    logits_BC, gates_BLH = run(final)
    other_BC, other_BLH = run(final, other)
    torch.testing.assert_close(other_BC, logits_BC, atol=1e-5, rtol=1e-5)
    assert torch.equal(other_BLH, gates_BLH)


@every_method
def test_inputs_of_padding_alone_can_be_trained_on(method: Method) -> None:
    model = make_model(method).train()
    mask_BT = BATCH.mask_BT.clone()
    mask_BT[0] = False
    output = model(BATCH.tokens_BT, mask_BT)
    losses = [F.cross_entropy(output.logits_BC, BATCH.labels_B), *method.extra_losses(model, output, 0.5).values()]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_queries_values_and_their_biases_learn() -> None:
    # A bias of the keys adds the same to all scores of a query: softmax gives it no gradient.
    model = build_model(SPEC, FullMHA(), Streams("contract", 0)).train()
    F.cross_entropy(model(BATCH.tokens_BT, BATCH.mask_BT).logits_BC, BATCH.labels_B).backward()  # type: ignore[no-untyped-call]
    for layer in model.layers:
        assert layer.attention.qkv.bias.grad is not None
        grad_H3K = layer.attention.qkv.bias.grad.view(SPEC.num_heads, 3, -1)
        assert (grad_H3K[:, [0, 2]].abs().sum(dim=2) > 0).all()
        assert grad_H3K[:, 1].abs().max() < 1e-6


@pytest.mark.parametrize("method", [each for each in VARIANTS if each not in PER_INPUT], ids=attrgetter("label"))
@pytest.mark.parametrize("execution", ["auto", "sliced"])
def test_weights_of_a_sliced_model_are_of_kept_heads_alone(method: Method, execution: str) -> None:
    final = method.for_inference(make_model(method), execution)
    _, gates_BLH = run(final)
    for index, layer in enumerate(final.layers):
        kept = gates_BLH[0, index].nonzero().flatten().tolist()
        assert list(layer.attention.heads) == kept
        assert layer.attention.qkv.weight.shape == (len(kept) * 3 * 4, SPEC.width)
        assert layer.attention.qkv.bias.shape == (len(kept) * 3 * 4,)
        assert layer.attention.out.weight.shape == (SPEC.width, len(kept) * 4)
        assert layer.attention.out.bias.shape == (SPEC.width,)

import pytest
import torch

from baselines.random_k import RandomK
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=30, num_classes=2, max_length=8, width=16, num_layers=2, num_heads=8)
TOKENS = torch.randint(1, 30, (256, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(TOKENS, dtype=torch.bool)


def make_model(s: float) -> Encoder:
    torch.manual_seed(0)
    return Encoder(SPEC, RandomK(s=s).gates(SPEC, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("s", "k"), [(0.0, 0), (0.25, 2), (0.3, 2), (0.5, 4), (1.0, 8)])
@pytest.mark.parametrize("training", [False, True])
def test_every_input_and_layer_has_k_heads(s: float, k: int, training: bool) -> None:
    output = make_model(s).train(training)(TOKENS, MASK)
    assert (output.gates_BLH.sum(dim=2) == k).all()
    assert output.gates_BLH.unique().tolist() in ([0.0], [1.0], [0.0, 1.0])
    torch.testing.assert_close(output.s_BL, torch.full_like(output.s_BL, s))


def test_layers_choose_independently_and_each_head_equally_often() -> None:
    gates_BLH = make_model(0.5).eval()(TOKENS, MASK).gates_BLH
    # Means of 256 draws have a standard deviation of 0.031; the overlap of two random halves is half of each.
    torch.testing.assert_close(gates_BLH.mean(dim=0), torch.full((2, 8), 0.5), atol=0.14, rtol=0)
    overlap = (gates_BLH[:, 0] * gates_BLH[:, 1]).sum(dim=1).mean() / 4
    assert abs(float(overlap.detach()) - 0.5) < 0.06


def test_a_head_learns_from_the_inputs_that_use_it_alone() -> None:
    model = make_model(0.25).train()
    output = model(TOKENS[:2], MASK[:2])
    output.logits_BC.square().sum().backward()
    for index, layer in enumerate(model.layers):
        used_H = output.gates_BLH[:, index].sum(dim=0) > 0
        assert 2 <= int(used_H.sum()) <= 4
        assert layer.attention.qkv.weight.grad is not None
        assert layer.attention.out.weight.grad is not None
        qkv_H = layer.attention.qkv.weight.grad.view(8, -1).abs().sum(dim=1)
        out_H = layer.attention.out.weight.grad.view(16, 8, -1).abs().sum(dim=(0, 2))
        assert torch.equal(qkv_H > 0, used_H)
        assert torch.equal(out_H > 0, used_H)


@pytest.mark.parametrize("s", [-0.1, 1.01, float("nan")])
def test_a_fraction_outside_its_range_is_refused(s: float) -> None:
    with pytest.raises(ValueError, match=rf"s must be in \[0, 1\], not {s}"):
        RandomK(s=s)

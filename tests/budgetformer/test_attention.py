import pytest
import torch
from torch import Tensor, nn

from budgetformer.attention import HeadGatedAttention
from budgetformer.execution import EXECUTIONS

B, T, D, H, K = 5, 7, 24, 6, 4
HEADS_PER_INPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0]]
)
MASK = torch.arange(T) < torch.tensor([7, 3, 1, 0, 5])[:, None]


def make_layer(dtype: torch.dtype = torch.float32) -> HeadGatedAttention:
    torch.manual_seed(0)
    return HeadGatedAttention(D, H).to(dtype)


def make_input(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x_BTD = torch.randn(B, T, D, generator=generator, dtype=dtype)
    weights_BH = torch.rand(B, H, generator=generator, dtype=dtype) + 0.5
    return x_BTD, weights_BH * HEADS_PER_INPUT


@pytest.mark.parametrize("padded", [False, True])
def test_without_gates_it_is_multi_head_attention(padded: bool) -> None:
    layer, theirs = make_layer(), nn.MultiheadAttention(D, H, batch_first=True)
    with torch.no_grad():
        qkv_HRD = layer.qkv.weight.view(H, 3, K, D)
        theirs.in_proj_weight.copy_(qkv_HRD.transpose(0, 1).reshape(3 * D, D))
        theirs.in_proj_bias.copy_(layer.qkv.bias.view(H, 3, K).transpose(0, 1).flatten())
        theirs.out_proj.weight.copy_(layer.out.weight)
        theirs.out_proj.bias.copy_(layer.out.bias)
    x_BTD, _ = make_input()
    mask_BT = torch.arange(T) < torch.tensor([7, 3, 1, 2, 5])[:, None] if padded else None
    expected, _ = theirs(x_BTD, x_BTD, x_BTD, key_padding_mask=None if mask_BT is None else ~mask_BT)
    torch.testing.assert_close(layer(x_BTD, None, mask_BT), expected)


def test_a_gate_is_the_weight_of_its_head_and_not_of_the_bias() -> None:
    layer = make_layer()
    x_BTD, gates_BH = make_input()
    alone = [layer(x_BTD, torch.eye(H)[h].expand(B, H)) - layer.out.bias for h in range(H)]
    expected = layer.out.bias + sum(gates_BH[:, h, None, None] * alone[h] for h in range(H))
    torch.testing.assert_close(layer(x_BTD, gates_BH), expected)
    assert torch.equal(layer(x_BTD, gates_BH)[1], layer.out.bias.expand(T, D))


def test_kept_heads_are_numbered_as_in_the_full_layer() -> None:
    x_BTD, gates_BH = make_input()
    twice, once = make_layer(), make_layer()
    twice.keep([1, 2, 3, 4, 5])
    twice.keep([2, 4, 5])
    once.keep([5, 2, 4])
    assert twice.heads == once.heads == (2, 4, 5)
    torch.testing.assert_close(twice(x_BTD, gates_BH), once(x_BTD, gates_BH))
    off = torch.tensor([0, 0, 1, 0, 1, 1])
    torch.testing.assert_close(once(x_BTD, gates_BH), make_layer()(x_BTD, gates_BH * off))
    torch.testing.assert_close(once(x_BTD, gates_BH, MASK, "gathered"), once(x_BTD, gates_BH, MASK))


def test_constant_gates_can_be_folded_into_the_weights() -> None:
    x_BTD, _ = make_input()
    gates_H = torch.tensor([0.0, 2.0, 0.0, 0.5, 0.0, 1.0])
    layer = make_layer()
    expected = layer(x_BTD, gates_H.expand(B, H), MASK)
    layer.keep([1, 3, 5], gates_H)
    torch.testing.assert_close(layer(x_BTD, None, MASK), expected)


def test_a_layer_without_heads_is_its_bias() -> None:
    layer = make_layer()
    layer.keep([])
    x_BTD, gates_BH = make_input()
    for execution in EXECUTIONS:
        assert torch.equal(layer(x_BTD, gates_BH, MASK, execution), layer.out.bias.expand(B, T, D))


def test_a_head_that_is_gone_cannot_be_kept() -> None:
    layer = make_layer()
    layer.keep([1, 2])
    with pytest.raises(ValueError, match=r"heads \[0, 3\] are not in this layer, which has \[1, 2\]"):
        layer.keep([0, 2, 3])


@pytest.mark.parametrize(
    ("width", "num_heads", "message"), [(0, 2, "positive"), (8, 0, "positive"), (10, 4, "not a multiple")]
)
def test_sizes_that_do_not_fit_are_refused(width: int, num_heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadGatedAttention(width, num_heads)


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (3, 5), (4,)])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_gates_of_another_shape_are_refused(shape: tuple[int, ...], execution: str) -> None:
    layer = HeadGatedAttention(16, 4)
    with pytest.raises(ValueError, match=r"gates must be of shape \(batch, heads\) = \(3, 4\), not"):
        layer(torch.randn(3, 5, 16), torch.ones(shape), execution=execution)


@pytest.mark.parametrize("shape", [(5, 16), (3, 5, 15), (3, 5, 17), (1, 3, 5, 16)])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...], execution: str) -> None:
    with pytest.raises(ValueError, match=r"the input must be of shape \(batch, tokens, 16\), not"):
        HeadGatedAttention(16, 4)(torch.randn(shape), execution=execution)


@pytest.mark.parametrize(
    "mask", [torch.ones(1, 5) > 0, torch.ones(3, 4) > 0, torch.ones(3, 1, 5) > 0, torch.ones(3, 5).long()]
)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_masks_of_another_shape_or_type_are_refused(mask: Tensor, execution: str) -> None:
    with pytest.raises(ValueError, match=r"the mask must be torch\.bool of shape \(batch, tokens\) = \(3, 5\), not"):
        HeadGatedAttention(16, 4)(torch.randn(3, 5, 16), None, mask, execution)


def test_an_unknown_execution_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown execution 'sliced'\. Known: auto, masked, gathered, compiled"):
        HeadGatedAttention(16, 4)(torch.randn(1, 2, 16), execution="sliced")

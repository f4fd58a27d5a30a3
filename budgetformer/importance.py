"""Scores of how much each head matters to a trained model.

Shapes: B batch, T tokens, L layers, H heads, X weights of a head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgetformer.encoder import Encoder
from budgetformer.gates import Gates


class LabelledBatch(NamedTuple):
    """Padded inputs with their labels.

    Attributes:
        tokens_BT: int64 token ids.
        mask_BT: True at real tokens.
        labels_B: int64 classes.
    """

    tokens_BT: Tensor
    mask_BT: Tensor
    labels_B: Tensor


def gradient_importance(model: Encoder, batches: Iterable[LabelledBatch]) -> Tensor:
    """``I_h = E_x |dL(x) / dgate_h|``, ``(L, H)`` (Michel, Levy and Neubig 2019, eq. 2).

    The absolute value is taken per input, before the mean. Dropout is off.

    Args:
        model: a model whose layers have gates; its gradients and its mode are left as they were.
        batches: labelled inputs, never from the test set.

    Raises:
        ValueError: if there are no batches.
    """
    chosen: list[Tensor] = []

    def make_leaf(_: nn.Module, inputs: tuple[Any, ...], gates: Gates) -> Gates:
        x_BTD = inputs[0]
        ones_BH = x_BTD.new_ones(x_BTD.shape[0], model.spec.num_heads)
        leaf_BH = (ones_BH if gates.gates_BH is None else gates.gates_BH).detach().clone().requires_grad_()
        chosen.append(leaf_BH)
        return gates._replace(gates_BH=leaf_BH)

    modes = [(module, module.training) for module in model.modules()]
    handles = [gate.register_forward_hook(make_leaf) for gate in model.gates]
    total_LH = torch.zeros(model.spec.num_layers, model.spec.num_heads, dtype=torch.float64)
    num_inputs = 0
    try:
        model.eval()
        for batch in batches:
            chosen.clear()
            output = model(batch.tokens_BT, batch.mask_BT)
            loss = F.cross_entropy(output.logits_BC, batch.labels_B, reduction="sum")
            grads = torch.autograd.grad(loss, chosen)
            total_LH += torch.stack([grad_BH.abs().sum(dim=0) for grad_BH in grads]).double().cpu()
            num_inputs += len(batch.labels_B)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    if num_inputs == 0:
        raise ValueError("importance needs at least one batch")
    return total_LH / num_inputs


def magnitude_importance(model: Encoder) -> Tensor:
    """``I_h = ||(W_Q, W_K, W_V, W_out)_h||_2``, ``(L, H)``: the size of each head's weights, biases left out."""
    scores = []
    for layer in model.layers:
        attention = layer.attention
        num_heads, width = model.spec.num_heads, model.spec.width
        qkv_HX = attention.qkv.weight.detach().view(num_heads, -1)
        out_HX = attention.out.weight.detach().view(width, num_heads, -1).transpose(0, 1).flatten(1)
        scores.append(torch.cat([qkv_HX, out_HX], dim=1).norm(dim=1))
    return torch.stack(scores).double().cpu()

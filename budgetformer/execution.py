"""The ways in which a set of gates is really run.

``masked`` computes every head and multiplies by the gate: the reference, which saves nothing. ``gathered`` does no
work for a head that an input does not use. ``sliced`` is ``masked`` on a layer whose unused heads' weights are gone
(``HeadGatedAttention.keep``). All agree to float tolerance.

Shapes: B batch, T tokens, D width, A heads of this layer, K head width, P active (input, head) pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from budgetformer.attention import HeadGatedAttention


def _attend(layer: HeadGatedAttention, qkv: Tensor, keep_keys: Tensor | None) -> Tensor:
    query, key, value = torch.split(qkv, layer.head_width, dim=-1)
    dropout = layer.dropout if layer.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep_keys, dropout_p=dropout)


def masked(layer: HeadGatedAttention, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """Computes every head, then multiplies its output by its gate."""
    batch, tokens, _ = x_BTD.shape
    qkv_BATK3 = layer.qkv(x_BTD).view(batch, tokens, len(layer.heads), 3 * layer.head_width).transpose(1, 2)
    out_BATK = _attend(layer, qkv_BATK3, None if mask_BT is None else mask_BT[:, None, None, :])
    if gates_BA is not None:
        out_BATK = out_BATK * gates_BA[:, :, None, None].to(out_BATK.dtype)
    out_BTD: Tensor = layer.out(out_BATK.transpose(1, 2).flatten(2))
    return out_BTD


def gathered(layer: HeadGatedAttention, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """Computes the active (input, head) pairs only: Q, K, V, scores, AV and output product.

    Each head's product runs on the inputs that chose it; one attention call serves all pairs.
    """
    if gates_BA is None:
        return masked(layer, x_BTD, None, mask_BT)
    width = x_BTD.shape[-1]
    num_heads, head_width = len(layer.heads), layer.head_width
    head_P, input_P = (gates_BA > 0).t().nonzero(as_tuple=True)
    out_BTD = layer.out.bias.expand_as(x_BTD).clone()
    if len(head_P) == 0:
        return out_BTD
    counts = torch.bincount(head_P, minlength=num_heads).tolist()
    qkv_weight = layer.qkv.weight.view(num_heads, 3 * head_width, width)
    qkv_bias = layer.qkv.bias.view(num_heads, 3 * head_width)
    out_weight = layer.out.weight.view(width, num_heads, head_width)
    inputs = torch.split(input_P, counts)
    qkv_PTK3 = torch.cat(
        [F.linear(x_BTD[rows], qkv_weight[h], qkv_bias[h]) for h, rows in enumerate(inputs) if len(rows)]
    )
    # A head axis of size one keeps the call on the fused kernel.
    keep_keys = None if mask_BT is None else mask_BT[input_P][:, None, None, :]
    out_PTK = _attend(layer, qkv_PTK3[:, None], keep_keys)[:, 0]
    out_PTK = out_PTK * gates_BA[input_P, head_P][:, None, None].to(out_PTK.dtype)
    for h, (rows, out) in enumerate(zip(inputs, torch.split(out_PTK, counts), strict=True)):
        if len(rows):
            out_BTD = out_BTD.index_add(0, rows, F.linear(out, out_weight[:, h]).to(out_BTD.dtype))
    return out_BTD


EXECUTIONS: dict[str, Callable[[HeadGatedAttention, Tensor, Tensor | None, Tensor | None], Tensor]] = {
    "masked": masked,
    "gathered": gathered,
}

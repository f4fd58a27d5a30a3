"""Multi-head attention whose heads carry gates.

Shapes: B batch, T tokens, D width, H heads of the full layer, A heads this layer still has, K head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from budgetformer.execution import EXECUTIONS, bias_alone, execute, is_transformed, what_is_not_plain
from budgetformer.gated_layer import Execution
from budgetformer.gates import check_gates
from budgetformer.kernel import PackedWeights, pack


class HeadGatedAttention(nn.Module):
    """Self-attention in which every head's output is multiplied by a gate.

    ``y = b_out + sum_h gate_h * softmax(Q_h K_h^T / sqrt(K)) V_h W_out,h``. A gate of 1 for every head is ordinary
    multi-head attention (Vaswani et al. 2017); a gate of 0 removes the head. The output bias is never gated.

    Weights are laid out head by head (``qkv.weight`` is ``(A * 3 * K, D)``), so that a head is one contiguous block
    that can be removed or run alone. A state says which heads it holds: a layer that loads it has these heads, in the
    numbering of the full layer.

    Args:
        width: D, the width of the input and the output.
        num_heads: H, the number of heads before any removal.
        head_width: K; by default ``width // num_heads``.
        dropout: probability with which attention weights are dropped in training.

    Raises:
        ValueError: if the sizes are not positive, or ``width`` is no multiple of ``num_heads`` and no ``head_width``
            is given.
    """

    head_numbers: Tensor
    _packed: tuple[list[tuple[Tensor, Tensor, int]], PackedWeights] | None = None

    def __init__(self, width: int, num_heads: int, *, head_width: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        if width < 1 or num_heads < 1:
            raise ValueError(f"width and num_heads must be positive, not {width} and {num_heads}")
        if head_width is not None and head_width < 1:
            raise ValueError(f"head_width must be positive, not {head_width}")
        if head_width is None and width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}; give head_width")
        self.num_heads = num_heads
        self.head_width = head_width or width // num_heads
        self.dropout = dropout
        self.heads = tuple(range(num_heads))
        # The heads' numbers, for the file: which ones a state holds cannot be told from its shapes.
        self.register_buffer("head_numbers", torch.arange(num_heads))
        self.qkv = nn.Linear(width, 3 * num_heads * self.head_width)
        self.out = nn.Linear(num_heads * self.head_width, width)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_packed": None}  # of a copy's weights the layout is made anew

    def forward(
        self,
        x_BTD: Tensor,
        gates_BH: Tensor | None = None,
        mask_BT: Tensor | None = None,
        execution: str = Execution.AUTO,
    ) -> Tensor:
        """Attends within each input.

        Args:
            x_BTD: the input.
            gates_BH: one gate >= 0 per input and head, in the numbering of the full layer; None is 1 everywhere.
            mask_BT: True at real tokens; None means that there is no padding. An input of padding alone attends to
                all of its tokens, so that its output stays finite.
            execution: how to run it, a key of ``budgetformer.execution.EXECUTIONS``. All give the same output; ``auto``
                is the CPU kernel where it fits.

        Returns:
            The output, ``(B, T, D)``.

        Raises:
            ValueError: for an unknown execution, an input, gates or a mask of another shape, a mask of another type,
                gates that are negative or not finite, or ``gathered`` or ``compiled`` where they cannot run.
        """
        if execution not in EXECUTIONS:
            raise ValueError(f"unknown execution {execution!r}. Known: {', '.join(EXECUTIONS)}")
        if x_BTD.dim() != 3 or x_BTD.shape[2] != self.out.out_features:
            width = self.out.out_features
            raise ValueError(f"the input must be of shape (batch, tokens, {width}), not {tuple(x_BTD.shape)}")
        if gates_BH is not None and gates_BH.shape != (x_BTD.shape[0], self.num_heads):
            expected = (x_BTD.shape[0], self.num_heads)
            raise ValueError(f"gates must be of shape (batch, heads) = {expected}, not {tuple(gates_BH.shape)}")
        if mask_BT is not None and (mask_BT.shape != x_BTD.shape[:2] or mask_BT.dtype != torch.bool):
            size, found = tuple(x_BTD.shape[:2]), f"{mask_BT.dtype} of shape {tuple(mask_BT.shape)}"
            raise ValueError(f"the mask must be torch.bool of shape (batch, tokens) = {size}, not {found}")
        if gates_BH is not None and not is_transformed(gates_BH):
            check_gates(gates_BH)
        if not self.heads:
            return bias_alone(self, x_BTD)
        if gates_BH is not None and len(self.heads) < self.num_heads:
            gates_BH = gates_BH[:, list(self.heads)]
        if mask_BT is not None:
            mask_BT = mask_BT | ~mask_BT.any(dim=1, keepdim=True)
        return execute(execution, self, x_BTD, gates_BH, mask_BT)

    def packed_weights(self) -> PackedWeights:
        """The weights as the kernel reads them; made once while they are frozen and unchanged.

        What is written through ``.data`` of a frozen weight escapes notice, as it escapes autograd's.
        """
        parameters = (self.qkv.weight, self.qkv.bias, self.out.weight, self.out.bias)
        if any(parameter.requires_grad or parameter.is_inference() for parameter in parameters):
            return pack(self.qkv, self.out, self.head_width)
        if self._packed is None or not all(
            parameter is packed and alias.is_set_to(parameter) and parameter._version == version
            for parameter, (packed, alias, version) in zip(parameters, self._packed[0], strict=True)
        ):
            # An alias keeps the memory of what was packed: no other weights can come to lie there, and pass for these.
            state = [(parameter, parameter.detach(), parameter._version) for parameter in parameters]
            self._packed = state, pack(self.qkv, self.out, self.head_width)
        return self._packed[1]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes on the heads that a state was saved with; a state from before their numbers were saved has these."""
        numbers = state_dict.setdefault(f"{prefix}head_numbers", self.head_numbers)
        heads = tuple(numbers.tolist())
        if heads != self.heads:
            self._set_heads(heads)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _set_heads(self, heads: tuple[int, ...]) -> None:
        """Makes room for the weights of other heads, which are to be loaded."""
        if self.num_heads <= max(heads, default=0) or len(set(heads)) < len(heads):
            raise ValueError(f"a state with the heads {list(heads)} is not of a layer of {self.num_heads} heads")
        trainable, weight, width = self.out.bias.requires_grad, self.qkv.weight, self.out.out_features
        inner = len(heads) * self.head_width
        self.qkv = _linear(weight.new_zeros(3 * inner, width), weight.new_zeros(3 * inner)).requires_grad_(trainable)
        self.out = _linear(weight.new_zeros(width, inner), weight.new_zeros(width)).requires_grad_(trainable)
        self._number(heads)

    def _number(self, heads: tuple[int, ...]) -> None:
        self.heads = heads
        self.head_numbers = torch.tensor(heads, dtype=torch.long, device=self.head_numbers.device)

    @torch.no_grad()
    def keep(self, heads: Sequence[int], gates_H: Tensor | None = None) -> None:
        """Removes the weights of every other head, for good.

        Args:
            heads: the heads to keep, in the numbering of the full layer.
            gates_H: constant gates to fold into the output weights, in the numbering of the full layer.

        Raises:
            ValueError: if a head is not in this layer (any more), or its projections are no plain linear layers.
        """
        if obstacle := what_is_not_plain(self):
            raise ValueError(f"heads cannot be removed: {obstacle}")
        missing = sorted(set(heads) - set(self.heads))
        if missing:
            raise ValueError(f"heads {missing} are not in this layer, which has {list(self.heads)}")
        kept = tuple(sorted(set(heads)))
        index = torch.tensor([self.heads.index(head) for head in kept], dtype=torch.long, device=self.out.weight.device)
        num_heads, head_width, width = len(self.heads), self.head_width, self.out.out_features
        qkv_weight = self.qkv.weight.view(num_heads, 3 * head_width, width)[index].flatten(0, 1)
        qkv_bias = self.qkv.bias.view(num_heads, 3 * head_width)[index].flatten()
        out_weight_DAK = self.out.weight.view(width, num_heads, head_width)[:, index]
        if gates_H is not None:
            out_weight_DAK = out_weight_DAK * gates_H[list(kept), None].to(out_weight_DAK)
        trainable = self.out.bias.requires_grad
        self.qkv = _linear(qkv_weight, qkv_bias).requires_grad_(trainable)
        self.out = _linear(out_weight_DAK.flatten(1), self.out.bias.clone()).requires_grad_(trainable)
        self._number(kept)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    # Made at size 1 and given its weights afterwards: initialising a layer without heads would warn.
    linear = nn.Linear(1, 1, device="meta")
    linear.out_features, linear.in_features = weight.shape
    linear.weight = nn.Parameter(weight)
    linear.bias = nn.Parameter(bias)
    return linear

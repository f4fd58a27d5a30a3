"""Gate modules: what decides, for each input, how much each head counts.

A gate module maps ``(x_BTD, mask_BT, key_B)`` to :class:`Gates`, where ``x_BTD`` is the input of the attention,
``mask_BT`` is True at real tokens and ``key_B`` is a fingerprint of the input's tokens
(:func:`budgetformer.selection.input_keys`), from which a random choice can be made that does not depend on the batch.

Shapes: B batch, T tokens, D width, H heads.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from budgetformer.selection import new_salt, random_uniform, top_k_mask, whole_heads


class Gates(NamedTuple):
    """The choice of heads of one layer.

    Attributes:
        gates_BH: the weight of each head, >= 0; a head is active where it is > 0. None: 1 everywhere.
        s_B: the fraction of heads asked for, in [0, 1]; None where the method has no such number.
        relevance_BH: a distribution over heads; None where the method has none.
    """

    gates_BH: Tensor | None = None
    s_B: Tensor | None = None
    relevance_BH: Tensor | None = None


def check_gates(gates_BH: Tensor) -> None:
    """Refuses gates that are no weights: each execution would take them for something else.

    Raises:
        ValueError: if one is negative or not a finite number.
    """
    if not gates_BH.numel():
        return
    low, high = gates_BH.detach().aminmax()  # NaN if any is
    if not (low.item() >= 0 and high.item() < math.inf):
        raise ValueError("a gate is negative or not a finite number")


class AllHeads(nn.Module):
    """Full attention: every head at 1 for every input."""

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        return Gates()


class SharedGates(nn.Module):
    """Gates that are the same for every input: the base of those that are learned, or random in training.

    At inference they are settled, so that heads with a gate of 0 can be removed (:func:`budgetformer.surgery.compact`).

    Args:
        s: the fraction of heads that is asked for, in [0, 1], if the method asks for one.
    """

    def __init__(self, s: float | None = None) -> None:
        super().__init__()
        self.s = s

    def settled(self) -> Tensor:
        """The gates at inference, ``(H,)``, >= 0."""
        raise NotImplementedError

    def in_training(self) -> Tensor:
        """The gates of the present training step, ``(H,)``, >= 0."""
        return self.settled()

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        batch = x_BTD.shape[0]
        gates_H = self.in_training() if self.training else self.settled()
        s_B = None if self.s is None else x_BTD.new_full((batch,), self.s)
        return Gates(gates_H.to(x_BTD.dtype).expand(batch, -1), s_B)


class ConstantGates(SharedGates):
    """Given gates.

    Args:
        gates_H: the gates, >= 0.
        s: the fraction of heads that was asked for, if the method asks for one.
    """

    gates_H: Tensor

    def __init__(self, gates_H: Sequence[float] | Tensor, s: float | None = None) -> None:
        super().__init__(s)
        self.register_buffer("gates_H", torch.as_tensor(gates_H, dtype=torch.float32).detach().clone())

    def settled(self) -> Tensor:
        return self.gates_H


class RandomHeads(nn.Module):
    """k random heads per input: new ones at each training step, always the same ones at inference.

    Args:
        num_heads: H.
        s: the fraction of heads asked for, in [0, 1]; k is s H, rounded to the nearest whole number.
        generator: source of the salt that fixes the choice at inference.
    """

    salt: Tensor
    step_salt: Tensor

    def __init__(self, num_heads: int, s: float, generator: torch.Generator) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.s = s
        self.k = whole_heads(s, num_heads)
        self.register_buffer("salt", new_salt(generator))
        self.register_buffer("step_salt", torch.zeros((), dtype=torch.long))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        salt = self.salt + self.step_salt if self.training else self.salt
        active_BH = top_k_mask(random_uniform(key_B, salt, self.num_heads), self.k)
        return Gates(active_BH.to(x_BTD.dtype), x_BTD.new_full((len(key_B),), self.s))

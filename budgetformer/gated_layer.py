"""What an execution needs to see of a layer, and the names of the ways to run one.

Shapes: B batch, T tokens, D width, A heads of this layer, K head width.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

from torch import nn

from budgetformer.kernel import PackedWeights


class Execution(StrEnum):
    """How a set of gates is run. All ways give the same output, to float tolerance."""

    AUTO = "auto"
    """The fastest that fits: asked for, and recorded as what it chose."""
    MASKED = "masked"
    """Every head is computed, then multiplied by its gate: saves nothing."""
    GATHERED = "gathered"
    """Each input's own heads alone, in PyTorch's operators."""
    COMPILED = "compiled"
    """The same by the CPU kernel."""
    SLICED = "sliced"
    """The weights of heads that no input uses are gone; what is left runs in any of the other ways."""
    DENSE = "dense"
    """Full attention: there is nothing to choose. Never asked for."""


class GatedLayer(Protocol):
    """A layer of attention whose weights are laid out head by head.

    Attributes:
        qkv: query, key and value projections, ``(A * 3 * K, D)``.
        out: output projection, ``(D, A * K)``.
        heads: the heads that the layer has, in the numbering of the full layer.
        head_width: K.
        dropout: probability with which attention weights are dropped in training.
        training: whether the layer is in training mode.
    """

    qkv: nn.Linear
    out: nn.Linear
    heads: tuple[int, ...]
    head_width: int
    dropout: float
    training: bool

    def packed_weights(self) -> PackedWeights:
        """The weights as the kernel reads them."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All weights and biases."""

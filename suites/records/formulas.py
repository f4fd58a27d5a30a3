"""Closed forms of the cost of one input. Imports neither torch nor numpy.

Counts are MACs: one multiplication and the addition that goes with it, 2 FLOPs. Only matrix products count; biases,
norms, activations, softmax, look-ups of embeddings and means over tokens do not. N is the number of tokens that run,
padding included; D the width, K the head width, k the number of heads that run, F the hidden width of the feed-forward
block, C the number of classes, H the number of heads of the full layer.

Whole numbers give exact whole counts. A count is linear in k, so a mean k gives the mean count. The attention core
is quadratic in N: evaluate it per input and average the results, because a mean N would leave out N's variance.
"""

from collections.abc import Sequence


def attention_core_macs(tokens: float, heads: float, head_width: int) -> float:
    """QK^T and AV of one layer, ``2 N^2 K k`` MACs."""
    return 2 * tokens**2 * head_width * heads


def projection_macs(tokens: float, width: int, heads: float, head_width: int) -> float:
    """Query, key, value and output products of one layer, ``4 N D K k`` MACs."""
    return 4 * tokens * width * head_width * heads


def attention_block_macs(tokens: float, width: int, heads: float, head_width: int) -> float:
    """Core and projections of one layer, in MACs."""
    return attention_core_macs(tokens, heads, head_width) + projection_macs(tokens, width, heads, head_width)


def ffn_macs(tokens: float, width: int, ffn_width: int) -> float:
    """Both products of one feed-forward block, ``2 N D F`` MACs."""
    return 2 * tokens * width * ffn_width


def model_macs(
    tokens: float,
    *,
    width: int,
    ffn_width: int,
    heads: Sequence[float],
    head_width: int,
    num_classes: int,
    gate_macs: float = 0,
) -> float:
    """The whole encoder for one input, in MACs.

    Args:
        tokens: N.
        width: D.
        ffn_width: F.
        heads: k of each layer; its length is the number of layers.
        head_width: K.
        num_classes: C.
        gate_macs: what the gates of all layers cost together, in MACs.
    """
    layers = sum(attention_block_macs(tokens, width, k, head_width) + ffn_macs(tokens, width, ffn_width) for k in heads)
    return layers + width * num_classes + gate_macs


PAPER_G_PER_FLOP = 1.67e-15
"""What arXiv 2604.22583 seems to multiply its FLOPs with to get gCO2: both of its known pairs give it."""


def paper_flops(tokens: float, width: int, num_heads: int, num_layers: int, s: float | None = None) -> float:
    """FLOPs of one input by the convention of arXiv 2604.22583's table.

    Per layer, full attention is ``8 N D^2 + 4 N^2 D`` and BudgetFormer ``8 N D^2 + 4 N^2 D s + (2 D^2 + 2 D H + N D)``.
    The convention is inferred from the printed cuts: it leaves the projections whole and the feed-forward block out,
    so it is not what any execution runs.

    Args:
        tokens: N.
        width: D.
        num_heads: H.
        num_layers: L.
        s: mean fraction of heads, in [0, 1]; full attention where None.

    Raises:
        ValueError: if s is outside [0, 1].
    """
    if s is not None and not 0 <= s <= 1:
        raise ValueError(f"s must be in [0, 1], not {s}")
    projections = 8 * tokens * width**2
    core = 4 * tokens**2 * width
    gates = 2 * width**2 + 2 * width * num_heads + tokens * width
    return num_layers * (projections + (core if s is None else core * s + gates))


def paper_flops_cut(tokens: float, width: int, num_heads: int, s: float) -> float:
    """The fraction of FLOPs that BudgetFormer saves by :func:`paper_flops`; negative where gates cost more than that.

    Raises:
        ValueError: if s is outside [0, 1].
    """
    return 1 - paper_flops(tokens, width, num_heads, 1, s) / paper_flops(tokens, width, num_heads, 1)


def paper_co2_g(flops: float) -> float:
    """Emissions in gCO2 by the paper's apparent rule: derived from FLOPs, not measured."""
    return flops * PAPER_G_PER_FLOP

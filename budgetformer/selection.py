"""Choosing heads: counts from fractions, top-k masks, and random numbers that belong to an input.

Random numbers are a hash of (input, salt, position), not draws from a stream: an input alone and the same input in a
batch get the same numbers on every device, and there is no generator state to checkpoint.

Shapes: B batch, T tokens, H heads.
"""

from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["floor", "ceil", "nearest"]

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the increment of splitmix64, as a signed integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele et al. 2014) on int64, whose products wrap around."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def input_keys(tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A 64-bit fingerprint of each input's real tokens, ``(B,)``; padding does not change it."""
    positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    mixed_BT = _mix(_mix(tokens_BT.long()) + _GOLDEN * positions_T)
    return torch.where(mask_BT, mixed_BT, 0).sum(dim=1)


def random_uniform(key_B: Tensor, salt: Tensor, count: int) -> Tensor:
    """``(B, count)`` uniform numbers in (0, 1) that depend on nothing but each input's key and the salt."""
    positions = torch.arange(1, count + 1, device=key_B.device)
    bits = _mix(_mix(key_B + salt)[:, None] + _GOLDEN * positions)
    # 23 bits and the half are what a float32 holds exactly; the half keeps the ends of the interval out.
    return (((bits >> 41) & 0x7FFFFF).float() + 0.5) / (1 << 23)


def random_normal(key_B: Tensor, salt: Tensor, count: int) -> Tensor:
    """``(B, count)`` standard normal numbers, from :func:`random_uniform`."""
    normal: Tensor = torch.special.ndtri(random_uniform(key_B, salt, count))
    return normal


def random_gumbel(key_B: Tensor, salt: Tensor, count: int) -> Tensor:
    """``(B, count)`` standard Gumbel numbers, from :func:`random_uniform`."""
    return -torch.log(-torch.log(random_uniform(key_B, salt, count)))


def new_salt(generator: torch.Generator) -> Tensor:
    """A random 62-bit integer for :func:`random_uniform`."""
    return torch.randint(2**62, (), generator=generator)


def head_counts(s_B: Tensor, num_heads: int, rounding: Rounding = "floor", min_heads: int = 0) -> Tensor:
    """Whole numbers of heads k for fractions s, ``(B,)`` int64 in [min_heads, num_heads].

    A product that misses a whole number by float error alone counts as that number: 0.7 * 10 keeps 7 heads.
    """
    product_B = s_B.double() * num_heads
    nearest_B = product_B.round()
    product_B = torch.where((product_B - nearest_B).abs() < 1e-5, nearest_B, product_B)
    rounded_B = {"floor": torch.floor, "ceil": torch.ceil, "nearest": torch.round}[rounding](product_B)
    return rounded_B.long().clamp(min_heads, num_heads)


def top_k_mask(scores_BH: Tensor, k_B: Tensor | int) -> Tensor:
    """True at the k highest scores of each row, ``(B, H)``; ties go to the lower index."""
    order_BH = scores_BH.sort(dim=1, descending=True, stable=True).indices
    ranks = torch.arange(scores_BH.shape[1], device=scores_BH.device).expand_as(order_BH)
    ranks_BH = torch.empty_like(order_BH).scatter_(1, order_BH, ranks)
    return ranks_BH < (k_B[:, None] if isinstance(k_B, Tensor) else k_B)


def whole_heads(s: float, num_heads: int) -> int:
    """The whole number of heads nearest to s * H.

    Raises:
        ValueError: if s is outside [0, 1].
    """
    if not 0 <= s <= 1:
        raise ValueError(f"s must be in [0, 1], not {s}")
    return int(head_counts(torch.tensor([s]), num_heads, "nearest"))

import math

import pytest
import torch

from budgetformer.selection import (
    head_counts,
    input_keys,
    random_gumbel,
    random_normal,
    random_uniform,
    top_k_mask,
    whole_heads,
)

SALT = torch.tensor(12345)
KEYS = torch.arange(20_000) * 7919


@pytest.mark.parametrize(
    ("s", "num_heads", "rounding", "expected"),
    [
        (0.7, 10, "floor", 7),  # 0.7 * 10 is 6.999... in float32
        (0.7, 10, "ceil", 7),
        (0.124, 8, "floor", 0),
        (0.125, 8, "floor", 1),
        (0.3, 8, "floor", 2),
        (0.3, 8, "ceil", 3),
        (0.3, 8, "nearest", 2),
        (0.0, 8, "ceil", 0),
        (1.0, 8, "floor", 8),
    ],
)
def test_fractions_become_whole_numbers(s: float, num_heads: int, rounding: str, expected: int) -> None:
    assert head_counts(torch.tensor([s]), num_heads, rounding).tolist() == [expected]  # type: ignore[arg-type]


def test_there_can_be_a_least_number_of_heads() -> None:
    assert head_counts(torch.tensor([0.0, 0.05, 0.9]), 8, "floor", 1).tolist() == [1, 1, 7]


@pytest.mark.parametrize("s", [-0.1, 1.1, math.nan])
def test_a_fraction_outside_its_range_is_refused(s: float) -> None:
    with pytest.raises(ValueError, match=r"s must be in \[0, 1\]"):
        whole_heads(s, 8)


def test_top_k_takes_the_highest_and_of_equals_the_first() -> None:
    scores_BH = torch.tensor([[0.1, 0.4, 0.4, 0.4], [0.2, 0.1, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0]])
    mask = top_k_mask(scores_BH, torch.tensor([2, 1, 0, 4]))
    assert mask.int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert top_k_mask(scores_BH, 3).sum(dim=1).tolist() == [3, 3, 3, 3]


def test_keys_belong_to_the_tokens_not_to_the_padding() -> None:
    tokens_BT = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 9, 9], [5, 7, 6, 0, 0], [5, 6, 0, 0, 0]])
    mask_BT = torch.arange(5) < torch.tensor([3, 3, 3, 2])[:, None]
    keys = input_keys(tokens_BT, mask_BT)
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 3
    assert input_keys(tokens_BT[:1, :3], mask_BT[:1, :3])[0] == keys[0]


def test_uniform_numbers_are_uniform_and_do_not_depend_on_the_batch() -> None:
    u = random_uniform(KEYS, SALT, 8)
    assert ((u > 0) & (u < 1)).all()
    counts = torch.histc(u, bins=20, min=0, max=1)
    chi_square = ((counts - u.numel() / 20) ** 2 / (u.numel() / 20)).sum()
    assert chi_square < 43.8  # the 99.9th percentile with 19 degrees of freedom
    correlations = torch.corrcoef(u.T) - torch.eye(8)
    assert correlations.abs().max() < 0.03
    assert torch.equal(random_uniform(KEYS[77:78], SALT, 8)[0], u[77])
    assert not torch.equal(random_uniform(KEYS, SALT + 1, 8), u)


def test_normal_and_gumbel_numbers_have_their_moments() -> None:
    normal, gumbel = random_normal(KEYS, SALT, 8), random_gumbel(KEYS, SALT, 8)
    assert normal.isfinite().all()
    assert gumbel.isfinite().all()
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs(gumbel.mean() - 0.5772) < 0.015
    assert abs(gumbel.std() - math.pi / math.sqrt(6)) < 0.015


def test_random_top_k_is_fair() -> None:
    shares_H = top_k_mask(random_uniform(KEYS, SALT, 8), 2).float().mean(dim=0)
    torch.testing.assert_close(shares_H, torch.full((8,), 0.25), atol=0.015, rtol=0)

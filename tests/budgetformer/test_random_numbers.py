import math
from collections.abc import Callable
from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetformer import selection
from budgetformer.losses import budget_hinge, mean_entropy
from budgetformer.selection import (
    Rounding,
    head_counts,
    input_keys,
    new_salt,
    random_gumbel,
    random_normal,
    random_uniform,
    top_k_mask,
)

SALT = torch.tensor(99)
EXACT: dict[str, Callable[[Fraction], int]] = {"floor": math.floor, "ceil": math.ceil, "nearest": round}


@pytest.mark.parametrize("bits", [0, -1], ids=["all bits 0", "all bits 1"])
def test_uniform_numbers_never_reach_the_ends(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_mix", lambda x: torch.full_like(x, bits))
    key_B = torch.arange(3)
    u = random_uniform(key_B, SALT, 2)
    assert ((u > 0) & (u < 1)).all()
    assert random_normal(key_B, SALT, 2).isfinite().all()
    assert random_gumbel(key_B, SALT, 2).isfinite().all()


@pytest.mark.parametrize("rounding", get_args(Rounding))
@pytest.mark.parametrize("num_heads", [1, 3, 8, 10, 12, 16])
def test_hundredths_of_heads_are_rounded_as_in_exact_arithmetic(num_heads: int, rounding: Rounding) -> None:
    products = [Fraction(j * num_heads, 100) for j in range(101)]
    counts = head_counts(torch.arange(101) / 100, num_heads, rounding).tolist()
    for product, count in zip(products, counts, strict=True):
        if rounding != "nearest" or product % 1 != Fraction(1, 2):  # a tie that no float can hold
            assert count == EXACT[rounding](product), product


@pytest.mark.parametrize("rounding", get_args(Rounding))
def test_head_counts_stay_between_the_least_and_all(rounding: Rounding) -> None:
    assert head_counts(torch.tensor([-0.5, 0.0, 1.0, 1.5]), 8, rounding, 2).tolist() == [2, 2, 8, 8]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4), st.data())
def test_top_k_is_a_stable_sort(scores: list[list[int]], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 5), min_size=len(scores), max_size=len(scores)))
    mask = top_k_mask(torch.tensor(scores, dtype=torch.float32), torch.tensor(counts))
    for row, count, chosen in zip(scores, counts, mask, strict=True):
        expected = sorted(range(5), key=lambda h: (-row[h], h))[:count]
        assert chosen.nonzero().flatten().tolist() == sorted(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 2**31), min_size=1, max_size=6), st.integers(0, 4), st.integers(0, 9))
def test_the_key_of_an_input_does_not_know_its_padding(tokens: list[int], padding: int, filler: int) -> None:
    padded = torch.tensor([tokens + [filler] * padding])
    mask = torch.tensor([[True] * len(tokens) + [False] * padding])
    alone = torch.tensor([tokens])
    assert input_keys(padded, mask).tolist() == input_keys(alone, torch.ones_like(alone, dtype=torch.bool)).tolist()


def test_order_and_repetition_of_tokens_make_other_keys() -> None:
    tokens_BT = torch.tensor([[3, 4, 5], [5, 4, 3], [4, 3, 5], [3, 3, 5], [3, 4, 4]])
    keys = input_keys(tokens_BT, torch.ones_like(tokens_BT, dtype=torch.bool))
    assert len(set(keys.tolist())) == 5


def test_positions_salts_and_keys_draw_different_numbers() -> None:
    key_B = torch.arange(100)
    generator = torch.Generator().manual_seed(0)
    draws = torch.cat([random_uniform(key_B, new_salt(generator), 4) for _ in range(3)])
    assert len(set(draws.flatten().tolist())) > 1195  # of 1200 24-bit numbers, hardly two are equal
    assert torch.equal(random_uniform(key_B, SALT, 4)[:, :2], random_uniform(key_B, SALT, 2))
    assert torch.equal(random_uniform(key_B.flip(0), SALT, 4), random_uniform(key_B, SALT, 4).flip(0))


def test_salts_are_a_function_of_the_generator_and_not_negative() -> None:
    first, second = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    salts = [int(new_salt(first)) for _ in range(10)]
    assert salts == [int(new_salt(second)) for _ in range(10)]
    assert len(set(salts)) == 10
    assert all(0 <= salt < 2**62 for salt in salts)


def test_the_hinge_is_a_mean_over_everything_and_has_the_slope_of_a_square() -> None:
    s_BL = torch.tensor([[0.0, 0.5], [1.0, 0.95]], requires_grad=True)
    loss = budget_hinge(s_BL, 0.2, 0.9)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx((0.04 + 0.01 + 0.0025) / 4)
    torch.testing.assert_close(s_BL.grad, torch.tensor([[-0.1, 0.0], [0.05, 0.025]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_entropy_of_a_certain_choice_is_0_with_a_finite_gradient(dtype: torch.dtype) -> None:
    p_BH = torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    entropy = mean_entropy(p_BH)
    entropy.backward()  # type: ignore[no-untyped-call]
    assert float(entropy.detach()) == 0
    assert p_BH.grad is not None
    assert p_BH.grad.isfinite().all()


def test_the_entropy_is_a_mean_over_distributions_in_nats() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert float(mean_entropy(p)) == pytest.approx((math.log(2) + math.log(4)) / 2)

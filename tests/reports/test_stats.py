import numpy as np
import pytest
from scipy import stats

from reports.stats import best, paired_difference, summarise


def test_mean_and_sample_standard_deviation() -> None:
    summary = summarise(np.array([1.0, 2.0, 4.0]))
    assert summary.mean == pytest.approx(7 / 3)
    assert summary.std == pytest.approx(np.sqrt(7 / 3))
    assert summary.n == 3


def test_one_value_has_no_spread_and_no_interval() -> None:
    assert summarise(np.array([1.0])).std is None
    assert paired_difference(np.array([1.0]), np.array([3.0])).interval is None


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        summarise(np.array([]))


def test_the_paired_interval_is_the_one_of_the_paired_t_test() -> None:
    ours, theirs = np.array([0.9, 0.8, 0.95, 0.7]), np.array([0.85, 0.82, 0.9, 0.6])
    difference = paired_difference(ours, theirs)
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert difference.mean == pytest.approx(0.045)
    assert difference.interval == pytest.approx((expected.low, expected.high))


def test_equal_differences_have_an_interval_of_no_width() -> None:
    assert paired_difference(np.array([2.0, 3.0]), np.array([1.0, 2.0])).interval == (1.0, 1.0)


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(size=(400, 2, 5))
    intervals = [paired_difference(ours, theirs).interval for ours, theirs in draws]
    missed = sum(interval is not None and not interval[0] <= 0 <= interval[1] for interval in intervals)
    assert 8 <= missed <= 34  # 20 expected, and three standard deviations


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference(np.array([1.0]), np.array([1.0, 2.0]))


def test_the_best_depends_on_the_direction_and_missing_is_never_best() -> None:
    assert best([1.0, None, 3.0], "higher", 1) == [False, False, True]
    assert best([1.0, None, 3.0], "lower", 1) == [True, False, False]
    assert best([1.0, None, 3.0], "none", 1) == [False, False, False]


def test_what_looks_equal_is_best_together() -> None:
    assert best([91.24, 91.21, 90.0], "higher", 1) == [True, True, False]


def test_nobody_is_best_where_all_are_equal_or_alone() -> None:
    assert best([1.0, 1.0], "higher", 1) == [False, False]
    assert best([1.0, None], "higher", 1) == [False, False]

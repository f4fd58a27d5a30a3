from dataclasses import dataclass
from typing import Any, Literal

import pytest

from budgetformer.checks import check_choice, check_flag, check_interval, check_whole


@dataclass(frozen=True)
class Owner:
    value: Any


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.5, 1, 1.0], [-0.1, 1.1, float("nan"), float("inf")]),
        ("(0, 1)", [0.5], [0, 1, float("nan")]),
        ("[0, inf)", [0, 1e9], [float("inf"), -1]),
        ("(-inf, inf)", [-5, 0.0], [float("inf"), float("-inf"), float("nan")]),
    ],
)
def test_intervals(interval: str, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        check_interval(Owner(value), interval, "value")
    for value in outside:
        with pytest.raises(ValueError, match="value must be in") as refused:
            check_interval(Owner(value), interval, "value")
        assert str(refused.value) == f"value must be in {interval}, not {value}"


@pytest.mark.parametrize("value", ["half", True, None, [0.5]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="value must be a number in"):
        check_interval(Owner(value), "[0, 1]", "value")


def test_none_passes_where_it_may() -> None:
    check_interval(Owner(None), "[0, 1]", "value", optional=True)
    check_whole(Owner(None), 1, "value", optional=True)
    with pytest.raises(ValueError, match=r"value must be a number in \[1, inf\), not None"):
        check_whole(Owner(None), 1, "value")


def test_whole_numbers() -> None:
    check_whole(Owner(3), 0, "value")
    with pytest.raises(ValueError, match=r"value must be a whole number, not 0\.5"):
        check_whole(Owner(0.5), 0, "value")
    with pytest.raises(ValueError, match=r"value must be in \[1, inf\), not 0"):
        check_whole(Owner(0), 1, "value")


def test_flags_and_choices() -> None:
    check_flag(Owner(False), "value")
    with pytest.raises(ValueError, match="value must be True or False, not 'no'"):
        check_flag(Owner("no"), "value")
    check_choice(Owner("a"), "value", Literal["a", "b"])
    with pytest.raises(ValueError, match="value must be one of a, b, not 'c'"):
        check_choice(Owner("c"), "value", Literal["a", "b"])

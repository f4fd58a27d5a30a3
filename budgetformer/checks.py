"""Checks of parameters: one clear line that names the field, its value and what it may be."""

import math
from types import NoneType
from typing import Any, get_args


def check_choice(owner: object, field: str, choices: Any) -> None:
    """Refuses a field that is none of the values of a ``Literal``.

    Raises:
        ValueError: if so.
    """
    value = getattr(owner, field)
    if value not in get_args(choices):
        raise ValueError(f"{field} must be one of {', '.join(map(str, get_args(choices)))}, not {value!r}")


def check_interval(owner: object, interval: str, *fields: str, optional: bool = False) -> None:
    """Refuses fields that are no number in an interval such as ``[0, 1)``; None passes if ``optional``.

    Raises:
        ValueError: if one is.
    """
    low, high = map(float, interval[1:-1].split(","))
    for field in fields:
        value = getattr(owner, field)
        if value is None and optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{field} must be a number in {interval}, not {value!r}")
        above = low <= value if interval[0] == "[" else low < value
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below and not math.isnan(value)):
            raise ValueError(f"{field} must be in {interval}, not {value}")


def check_whole(owner: object, least: int, *fields: str, optional: bool = False) -> None:
    """Refuses fields that are no whole number from ``least`` on; None passes if ``optional``.

    Raises:
        ValueError: if one is.
    """
    check_interval(owner, f"[{least}, inf)", *fields, optional=optional)
    for field in fields:
        value = getattr(owner, field)
        if not isinstance(value, int | NoneType):
            raise ValueError(f"{field} must be a whole number, not {value}")


def check_flag(owner: object, *fields: str) -> None:
    """Refuses fields that are neither True nor False.

    Raises:
        ValueError: if one is.
    """
    for field in fields:
        if not isinstance(getattr(owner, field), bool):
            raise ValueError(f"{field} must be True or False, not {getattr(owner, field)!r}")

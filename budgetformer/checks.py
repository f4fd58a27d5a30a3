"""Checks of a method's parameters: one clear line that names the field, its value and what it may be."""

import math
from typing import Any, get_args


def check_choice(owner: object, field: str, choices: Any) -> None:
    """Refuses a field that is none of the values of a ``Literal``.

    Raises:
        ValueError: if so.
    """
    value = getattr(owner, field)
    if value not in get_args(choices):
        raise ValueError(f"{field} must be one of {', '.join(map(str, get_args(choices)))}, not {value!r}")


def check_interval(owner: object, interval: str, *fields: str) -> None:
    """Refuses fields outside an interval such as ``[0, 1)`` or ``(0, inf)``; None passes, NaN does not.

    Raises:
        ValueError: if one is.
    """
    low, high = map(float, interval[1:-1].split(","))
    for field in fields:
        value = getattr(owner, field)
        if value is None:
            continue
        above = low <= value if interval[0] == "[" else low < value
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below and not math.isnan(value)):
            raise ValueError(f"{field} must be in {interval}, not {value}")

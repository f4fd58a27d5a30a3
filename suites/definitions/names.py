"""Finding things by name, with a hint for those who mistyped."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def look_up(name: str, known: Mapping[str, T], kind: str) -> T:
    """An entry of a registry.

    Raises:
        ValueError: if there is none of that name; names the known ones and the nearest.
    """
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "."
    raise ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")

"""Full multi-head attention (Vaswani et al. 2017): the contract's defaults."""

from dataclasses import dataclass
from typing import ClassVar

from budgetformer.method import Method


@dataclass(frozen=True, kw_only=True)
class FullMHA(Method):
    """Every head at 1 for every input."""

    name: ClassVar[str] = "full-mha"
    place: ClassVar[int] = 0

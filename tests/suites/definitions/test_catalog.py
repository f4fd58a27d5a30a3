"""The suites hold what their summaries promise."""

import dataclasses
from itertools import product
from typing import get_args

import pytest

from budgetformer.adaptive import BudgetFormer
from budgetformer.controller import GateFormula, Reweighting
from suites.definitions.catalog import FRACTIONS, SUITES
from suites.definitions.registry import METHODS

NOT_VARIED = {"noise_end", "target_weight", "target_cooldown"}
"""Fields of BudgetFormer that no ablation changes: the first is 0 so that training ends as inference begins, and the
others only matter with a target, which the presets have."""


def test_the_ablation_changes_every_choice_by_itself() -> None:
    variants = [method for method in SUITES["ablation"]().methods if type(method) is BudgetFormer]
    defaults = BudgetFormer().params
    changes = [{key for key, value in method.params.items() if value != defaults[key]} for method in variants]
    alone = {key for change in changes if len(change) == 1 for key in change}
    fields = {field.name for field in dataclasses.fields(BudgetFormer)}
    assert fields - NOT_VARIED == alone | {"entropy_weight_start", "entropy_weight_end"}
    assert {"entropy_weight_start", "entropy_weight_end"} in changes
    formulas = {(method.gate, method.reweighting) for method in variants}
    assert set(product(get_args(GateFormula), get_args(Reweighting))) <= formulas


def test_methods_with_a_number_of_heads_are_compared_at_the_same_ones() -> None:
    asked: dict[str, set[float]] = {}
    for method in (*SUITES["counted"]().methods, *SUITES["learned"]().methods):
        s = method.params.get("target_s", method.params.get("s"))
        if s is not None:
            asked.setdefault(method.name, set()).add(s)
    assert asked.pop("layer-drop") == {0.5}
    assert set(map(frozenset, asked.values())) == {frozenset(FRACTIONS)}


def test_every_method_is_in_a_suite() -> None:
    assert {method.name for make in SUITES.values() for method in make().methods} == set(METHODS)


@pytest.mark.parametrize("name", SUITES)
def test_no_method_comes_twice(name: str) -> None:
    labels = [method.label for method in SUITES[name]().methods]
    assert len(set(labels)) == len(labels)

"""The methods by name: an explicit table, and what other packages add to it."""

import dataclasses
from importlib.metadata import entry_points

from baselines.budgeted_gates import BudgetedGates
from baselines.full_mha import FullMHA
from baselines.l0_gates import L0Gates
from baselines.layer_drop import LayerDrop
from baselines.mixture_of_heads import MixtureOfHeads
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from baselines.random_subset import RandomSubset
from baselines.static_pruning import StaticPruning
from baselines.subset_pruning import SubsetPruning
from budgetformer.adaptive import BudgetFormer, BudgetFormerST
from budgetformer.method import Method
from suites.lookup import look_up

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FullMHA,
        NoAttention,
        LayerDrop,
        RandomK,
        RandomSubset,
        StaticPruning,
        L0Gates,
        SubsetPruning,
        BudgetedGates,
        MixtureOfHeads,
        BudgetFormer,
        BudgetFormerST,
    )
}
"""The methods of this project. A new one is a line here."""

ENTRY_POINT_GROUP = "budgetformer.methods"


def known_methods() -> dict[str, type[Method]]:
    """All methods: this project's, and those of installed packages in the entry-point group ``budgetformer.methods``.

    Raises:
        ValueError: if an entry point cannot be loaded, is no method, or takes a name that is taken.
    """
    known = dict(METHODS)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            method = entry.load()
        except Exception as error:
            raise ValueError(f"the method {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise ValueError(f"{entry.value} is no subclass of budgetformer.Method")
        required = [field.name for field in dataclasses.fields(method) if _has_no_default(field)]
        if required:
            raise ValueError(f"{entry.value} needs a default for {', '.join(required)}")
        if known.setdefault(method.name, method) is not method:
            raise ValueError(f"{entry.value} has the name of another method: {method.name}")
    return known


def find_method(name: str) -> type[Method]:
    """The method of that name.

    Raises:
        ValueError: if there is none; names the known ones and the nearest.
    """
    return look_up(name, known_methods(), "method")


def _has_no_default(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def label(method: Method) -> str:
    """How tables call a method: its name, and the parameters that are not at their defaults."""
    defaults = type(method)().params
    changed = [f"{key}={value}" for key, value in method.params.items() if value != defaults[key]]
    return f"{method.name}({', '.join(changed)})" if changed else method.name

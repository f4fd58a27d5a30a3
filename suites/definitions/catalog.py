"""The suites: which tasks, methods and seeds, at which size. A suite is a Python value."""

from itertools import product
from typing import get_args

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
from budgetformer.controller import GateFormula, Reweighting
from budgetformer.method import Method
from suites.definitions.names import look_up
from suites.definitions.recipe import Recipe
from suites.definitions.suite import Suite, TaskUse
from suites.definitions.uses import LOOKUP, TWEETS

ENDS: tuple[Method, ...] = (FullMHA(), NoAttention())
"""The two ends: all heads, and none."""

CORE: tuple[Method, ...] = (*ENDS, RandomK(), StaticPruning(), BudgetFormer())
"""One method of each kind: constant or per input, drawn, scored or learned."""

FRACTIONS = (0.25, 0.5)
"""The budgets at which methods are compared: H/4 and H/2."""


def smoke() -> Suite:
    """The whole harness once."""
    recipe = Recipe(epochs=1)
    return Suite(
        name="smoke",
        summary="the whole harness in a minute: 2 tasks cut short, 5 methods, 1 seed; its accuracies mean nothing",
        tasks=(
            TaskUse(name="bbc-topics", max_length=32, train_limit=160, test_limit=100, recipe=recipe, vocab_size=2000),
            TaskUse(
                name="tweet-sentiment", max_length=32, train_limit=320, test_limit=200, recipe=recipe, vocab_size=2000
            ),
        ),
        methods=CORE,
        seeds=(0,),
    )


def quick() -> Suite:
    """The default: the five methods on the embedded texts."""
    return Suite(
        name="quick",
        summary="2 tasks x 5 methods x 3 seeds on real text, in 15 to 25 minutes on 2 cores",
        tasks=(
            TaskUse(name="bbc-topics", max_length=128, recipe=Recipe(lr=2e-3, epochs=2, batch_size=16)),
            TWEETS,
        ),
        methods=CORE,
        seeds=(0, 1, 2),
    )


def counted() -> Suite:
    """Methods that are told how many heads."""
    at_each = (RandomK, RandomSubset, StaticPruning, SubsetPruning, BudgetedGates, MixtureOfHeads)
    return Suite(
        name="counted",
        summary="methods that are told how many heads, at H/4 and H/2 of them",
        tasks=(LOOKUP, TWEETS),
        methods=(
            *ENDS,
            LayerDrop(),
            *(method(s=s) for method, s in product(at_each, FRACTIONS)),
            StaticPruning(score="random"),
            StaticPruning(score="magnitude"),
            StaticPruning(scope="global"),
        ),
        seeds=(0, 1, 2),
    )


def learned() -> Suite:
    """Methods that learn how many heads."""
    return Suite(
        name="learned",
        summary="methods that learn how many heads, those with an aim at H/4 and H/2",
        tasks=(LOOKUP, TWEETS),
        methods=(
            *ENDS,
            *(L0Gates(s=s) for s in FRACTIONS),
            BudgetFormer(),
            *(BudgetFormerST(target_s=s) for s in FRACTIONS),
        ),
        seeds=(0, 1, 2),
    )


def ablation() -> Suite:
    """Each open choice of BudgetFormer by itself, and each way to weight the heads in both phases."""
    formulas = product(get_args(GateFormula), get_args(Reweighting))
    return Suite(
        name="ablation",
        summary="BudgetFormer with each of its choices changed, and every gate formula with every re-weighting",
        tasks=(LOOKUP, TWEETS),
        methods=(
            *ENDS,
            *(BudgetFormer(gate=gate, reweighting=reweighting) for gate, reweighting in formulas),
            # The fractions of the paper; with 8 heads and floor, 0.1 keeps none.
            *(BudgetFormer(fixed_s=s) for s in (0.1, 0.25, 0.5, 1.0)),
            BudgetFormer(learned_relevance=False),
            BudgetFormer(entropy_weight_start=0.0, entropy_weight_end=0.0),
            BudgetFormer(entropy_weight_shape="constant"),
            BudgetFormer(budget_weight=0.0),
            BudgetFormer(s_min=0.3),
            BudgetFormer(s_max=0.5),
            BudgetFormer(noise_law="none"),
            BudgetFormer(noise_law="gumbel"),
            BudgetFormer(noise_shape="constant"),
            BudgetFormer(noise_start=1.0),
            BudgetFormer(tau_shape="constant"),
            BudgetFormer(tau_start=1.0),
            BudgetFormer(tau_end=0.5),
            BudgetFormer(rounding="ceil"),
            BudgetFormer(rounding="nearest"),
            BudgetFormer(min_heads=1),
            BudgetFormer(start_budget=0.5),
            BudgetFormer(summary="max"),
            BudgetFormer(summary="first"),
            BudgetFormer(hidden=16),
            BudgetFormer(shared_networks=True),
            BudgetFormer(target_s=0.25),
            BudgetFormer(detach_summary=True),
            BudgetFormerST(),
            BudgetFormerST(detach_summary=False),
        ),
        seeds=(0, 1, 2),
    )


SUITES = {suite.__name__: suite for suite in (smoke, quick, counted, learned, ablation)}


def find_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ValueError: if there is none; names the known ones and the nearest.
    """
    return look_up(name, SUITES, "suite")()

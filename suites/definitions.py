"""The suites: which tasks, methods and seeds, at which size. A suite is a Python value."""

from dataclasses import dataclass

from budgetformer.method import Method
from suites.lookup import look_up
from suites.recipe import Recipe
from suites.registry import METHODS


@dataclass(frozen=True, kw_only=True)
class TaskUse:
    """How a suite uses a task.

    Attributes:
        name: the task.
        max_length: T, longest input in tokens.
        recipe: how every method is trained on it.
        train_limit: the most training rows, drawn by class; None takes all.
        test_limit: the same for validation and for test rows.
        vocab_size: the most token ids.
    """

    name: str
    max_length: int
    recipe: Recipe
    train_limit: int | None = None
    test_limit: int | None = None
    vocab_size: int = 8000


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The encoder of a suite; the task adds the rest."""

    width: int = 128
    num_layers: int = 2
    num_heads: int = 8
    dropout: float = 0.0
    token_dropout: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A question that is worth a table.

    Attributes:
        name: how it is called on the command line.
        summary: one line.
        tasks: every method is run on each.
        methods: with their parameters.
        seeds: every method is run with each.
        sizes: the encoder.
    """

    name: str
    summary: str
    tasks: tuple[TaskUse, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    sizes: Sizes = Sizes()


def all_methods() -> tuple[Method, ...]:
    """Every method of this project with its default parameters."""
    return tuple(method() for method in METHODS.values())


def smoke() -> Suite:
    """Everything once."""
    recipe = Recipe(epochs=1)
    return Suite(
        name="smoke",
        summary="every part once, in a minute: 2 tasks cut short, 5 methods, 1 seed; its accuracies mean nothing",
        tasks=(
            TaskUse(name="bbc-topics", max_length=32, train_limit=160, test_limit=100, recipe=recipe, vocab_size=2000),
            TaskUse(
                name="tweet-sentiment", max_length=32, train_limit=320, test_limit=200, recipe=recipe, vocab_size=2000
            ),
        ),
        methods=all_methods(),
        seeds=(0,),
    )


def quick() -> Suite:
    """The default: the five methods on the embedded texts."""
    return Suite(
        name="quick",
        summary="2 tasks x 5 methods x 3 seeds on real text, in a quarter of an hour on 2 cores",
        tasks=(
            TaskUse(name="bbc-topics", max_length=128, recipe=Recipe(lr=2e-3, epochs=2, batch_size=16)),
            TaskUse(name="tweet-sentiment", max_length=32, train_limit=10_000, recipe=Recipe(epochs=2)),
        ),
        methods=all_methods(),
        seeds=(0, 1, 2),
    )


SUITES = {suite.__name__: suite for suite in (smoke, quick)}


def find_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ValueError: if there is none; names the known ones and the nearest.
    """
    return look_up(name, SUITES, "suite")()

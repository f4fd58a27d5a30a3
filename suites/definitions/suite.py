"""What a suite is: tasks, methods and seeds, at one size."""

from dataclasses import dataclass

from budgetformer.method import Method
from suites.definitions.recipe import Recipe


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

"""How tasks are used by more than one suite."""

from suites.definitions.recipe import Recipe
from suites.definitions.suite import TaskUse

LOOKUP = TaskUse(
    name="lookup",
    max_length=16,
    # Every word counts, and words must be told apart before anything can be learned.
    recipe=Recipe(lr=2e-3, epochs=2, token_dropout=0.0, embedding_std=1.0),
)
TWEETS = TaskUse(name="tweet-sentiment", max_length=32, train_limit=10_000, recipe=Recipe(epochs=2))

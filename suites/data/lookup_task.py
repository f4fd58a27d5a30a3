"""The task ``lookup``: generated texts that only attention can classify, each of a known difficulty."""

from collections.abc import Iterable, Iterator
from random import Random

KEYS = "bcdfghjklmnp"
VALUES = "aeio"
MOST_QUERIES = 3
NUM_ROWS = 17_004
"""A multiple of 12: each label is as frequent with 1, 2 or 3 queries."""
SEED = 20260424


def read_lookup() -> Iterator[tuple[int, str, str]]:
    """Yields (label, text, body) of ``NUM_ROWS`` texts; no two have the same words.

    A text is a shuffle of one item per key (the key and its value, as in ``ba``) and of 1 to ``MOST_QUERIES`` queries
    (a key alone, as in ``b``). Its label is the largest value among the queried keys. Every value belongs to equally
    many keys of a text, so no word by itself tells anything of the label: a query has to meet the item of its key.
    """
    random = Random(SEED)
    bodies: set[str] = set()
    while len(bodies) < NUM_ROWS:
        turn, label = divmod(len(bodies), len(VALUES))
        words = _draw(random, label, 1 + turn % MOST_QUERIES)
        body = " ".join(sorted(words))
        if body not in bodies:
            bodies.add(body)
            yield label, " ".join(words), body


def num_queries(text: str) -> int:
    """How many values have to be looked up to classify a text, from 1 to ``MOST_QUERIES``."""
    return sum(len(word) == 1 for word in text.split())


def _draw(random: Random, label: int, queries: int) -> list[str]:
    """The words of one text with a given label and number of queries."""
    value_of = dict(zip(_shuffled(random, KEYS), VALUES * (len(KEYS) // len(VALUES)), strict=True))
    allowed = [key for key in KEYS if value_of[key] <= VALUES[label]]
    queried: list[str] = []
    while VALUES[label] not in map(value_of.get, queried):
        queried = _shuffled(random, allowed)[:queries]
    return _shuffled(random, [*map("".join, value_of.items()), *queried])


def _shuffled(random: Random, words: Iterable[str]) -> list[str]:
    """Shuffles by ``random()`` alone: only its sequence is the same in every version of Python."""
    return sorted(words, key=lambda _: random.random())

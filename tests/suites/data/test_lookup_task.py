import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from baselines.full_mha import FullMHA
from baselines.no_attention import NoAttention
from budgetformer.method import Method
from suites.data.lookup_task import read_lookup
from suites.data.splits import load_splits
from suites.data.tasks import find_task
from suites.data.tokenizing import encode_task, train_tokenizer
from suites.definitions.suite import Sizes
from suites.definitions.uses import LOOKUP
from suites.sweep.stages import data_of, new_model
from suites.sweep.trial import Trial
from suites.training.evaluate import evaluate
from suites.training.loop import train
from suites.training.seeding import Streams

ROWS = find_task("lookup").rows()
PARTS = ("train", "validation", "test")


def items(text: str) -> dict[str, str]:
    found = re.findall(r"\b([^aeiou\s])([aeiou])\b", text)
    assert len(found) == 12
    return dict(found)


def queries(text: str) -> list[str]:
    return re.findall(r"\b[a-z]\b", text)


def test_every_class_is_as_frequent_with_every_number_of_queries() -> None:
    counts = Counter((label, len(queries(text))) for label, text in ROWS)
    assert counts == dict.fromkeys(product(range(4), (1, 2, 3)), 1417)


def test_a_text_holds_twelve_keys_each_value_three_times_and_distinct_queries() -> None:
    for _, text in ROWS:
        assert sorted(items(text)) == list("bcdfghjklmnp")
        assert Counter(items(text).values()) == {"a": 3, "e": 3, "i": 3, "o": 3}
        assert len(set(queries(text))) == len(queries(text)) == len(text.split()) - 12


def test_the_label_is_the_largest_value_of_the_queried_keys() -> None:
    labels = find_task("lookup").labels
    assert labels == ("a", "e", "i", "o")
    for label, text in ROWS:
        assert labels[label] == max(items(text)[key] for key in queries(text))


def test_difficulty_is_the_number_of_queries() -> None:
    difficulty = find_task("lookup").difficulty
    assert difficulty is not None
    assert all(difficulty(text) == len(queries(text)) for _, text in ROWS)
    assert difficulty("ba c di b") == 2


def test_words_stand_in_any_order() -> None:
    first = Counter(text.split()[0] for _, text in ROWS)
    assert len(first) == 12 * 4 + 12
    assert sum(count for word, count in first.items() if len(word) == 1) / len(ROWS) > 0.12  # 2 of 14 words are queries


def test_no_text_has_the_words_of_another_one() -> None:
    assert len({tuple(sorted(text.split())) for _, text in ROWS}) == len(ROWS)
    splits = load_splits("lookup")
    assert splits.rows == {"train": 11902, "validation": 1701, "test": 3401}
    ids = [number for part in PARTS for number in getattr(splits, part)[:]["id"]]
    assert sorted(ids) == list(range(len(ROWS)))


def test_the_texts_and_their_splits_are_always_the_same() -> None:
    assert [(label, text) for label, text, _ in read_lookup()] == ROWS
    assert load_splits("lookup").fingerprint == "34b0a5a70b81e34a"


def test_every_word_is_one_token() -> None:
    texts = load_splits("lookup").train[:]["text"]
    tokenizer = train_tokenizer(texts, 1000)
    words = sorted({word for text in texts for word in text.split()})
    assert len(words) == 12 * 4 + 12
    tokens = [tokenizer.encode(word).ids for word in words]
    assert all(len(ids) == 2 and ids[0] == 1 for ids in tokens)
    assert len({ids[1] for ids in tokens}) == len(words)
    data = encode_task("lookup", 64, 1000)
    for part in (data.train, data.validation, data.test):
        assert part.difficulty is not None
        assert (part.lengths == 1 + 12 + part.difficulty).all()


def test_counts_of_words_tell_nothing_of_the_label() -> None:
    splits = load_splits("lookup")
    train, test = splits.train[:], splits.test[:]
    counts = CountVectorizer(token_pattern=r"\w+")
    model = LogisticRegression(max_iter=1000).fit(counts.fit_transform(train["text"]), train["label"])
    accuracy = float(np.mean(model.predict(counts.transform(test["text"])) == test["label"]))
    assert abs(accuracy - 1 / 4) < 0.05


@pytest.mark.integration
@pytest.mark.parametrize(("method", "least", "most"), [(FullMHA(), 0.98, 1.0), (NoAttention(), 0.0, 0.3)])
def test_only_attention_solves_it(method: Method, least: float, most: float) -> None:
    trial = Trial(
        task=LOOKUP, sizes=Sizes(), method=method, seed=0, device="cpu", execution="auto", deterministic=False
    )
    data, streams = data_of(trial), Streams("lookup", 0)
    model = new_model(trial)
    train(model, method, data, recipe=LOOKUP.recipe, streams=streams, on_step=lambda *_: None)
    assert least <= evaluate(method.for_inference(model), data.test).accuracy <= most

"""Splits: fixed, seeded and stratified; the same for every method and every seed of a trial."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value
from sklearn.model_selection import train_test_split

from suites.data.tasks import Task, find_task

SPLIT_SEED = 20260424
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Splits:
    """A task's texts.

    Attributes:
        task: the task.
        train, validation, test: columns ``id`` (row in the task's distinct texts), ``text`` and ``label``.
        fingerprint: hash of all three.
    """

    task: Task
    train: Dataset
    validation: Dataset
    test: Dataset
    fingerprint: str

    @property
    def rows(self) -> dict[str, int]:
        return {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}


@lru_cache(maxsize=4)
def load_splits(name: str, train_limit: int | None = None, test_limit: int | None = None) -> Splits:
    """Reads a task and splits it.

    Args:
        name: the task.
        train_limit: the most training rows, drawn by class; None takes all.
        test_limit: the same for validation and for test rows.

    Raises:
        ValueError: for an unknown task, missing or changed texts, or limits that leave a class out.
    """
    task = find_task(name)
    labels, texts = zip(*task.rows(), strict=True)
    features = Features({"id": Value("int64"), "text": Value("string"), "label": ClassLabel(names=list(task.labels))})
    columns = {"id": range(len(texts)), "text": texts, "label": labels}
    rest, test = _split(Dataset.from_dict(columns, features=features), TEST_SHARE)
    train, validation = _split(rest, VALIDATION_SHARE / (1 - TEST_SHARE))
    train, validation, test = _limit(train, train_limit), _limit(validation, test_limit), _limit(test, test_limit)
    digest = hashlib.sha256()
    for part in (train, validation, test):
        rows = part[:]  # one read; a column by itself is read row by row
        for number, text, label in zip(rows["id"], rows["text"], rows["label"], strict=True):
            digest.update(f"{number}\t{label}\t{text}\n".encode())
        if len(set(rows["label"])) < len(task.labels):
            raise ValueError(f"a split of {name} lacks a class; raise its limit of {len(part)} rows")
    return Splits(task, train, validation, test, digest.hexdigest()[:16])


def _split(rows: Dataset, share: float | int) -> tuple[Dataset, Dataset]:
    """Splits off a share or a number of rows, by class."""
    # Dataset.train_test_split does the same, but reads the labels one by one: 25 s for 35,000 rows.
    kept, split_off = train_test_split(
        np.arange(len(rows)), test_size=share, stratify=rows[:]["label"], random_state=SPLIT_SEED
    )
    return rows.select(kept), rows.select(split_off)


def _limit(rows: Dataset, limit: int | None) -> Dataset:
    """At most so many rows, by class.

    Raises:
        ValueError: if there are more classes than that.
    """
    if limit is None or limit >= len(rows):
        return rows
    labels = rows[:]["label"]
    counts = np.bincount(labels)
    if limit < np.count_nonzero(counts):
        raise ValueError(f"a limit of {limit} rows leaves out a class; give {np.count_nonzero(counts)} or more")
    if len(rows) - limit >= np.count_nonzero(counts):
        return _split(rows, limit)[1]
    # Too few are left over to have one of each class: they are the last ones of the most frequent class.
    frequent = np.flatnonzero(np.asarray(labels) == counts.argmax())
    return rows.select(np.delete(np.arange(len(rows)), frequent[limit - len(rows) :]))

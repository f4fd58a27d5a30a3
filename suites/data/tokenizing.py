"""Texts to token ids, by a BPE tokenizer that is trained on the training split alone."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from suites.data.encoded import EncodedSplit, EncodedTask
from suites.data.splits import load_splits
from suites.definitions.suite import TaskUse

SPECIAL_TOKENS = ["[PAD]", "[CLS]"]


@lru_cache(maxsize=4)
def encode_task(
    name: str, max_length: int, vocab_size: int, train_limit: int | None = None, test_limit: int | None = None
) -> EncodedTask:
    """Loads a task, trains its tokenizer and encodes its splits.

    Args:
        name: the task.
        max_length: longest input in tokens; the rest is cut off.
        vocab_size: the most token ids.
        train_limit: the most training rows.
        test_limit: the most validation rows, and test rows.

    Raises:
        ValueError: as ``load_splits``.
    """
    splits = load_splits(name, train_limit, test_limit)
    tokenizer = train_tokenizer(splits.train[:]["text"], vocab_size)
    tokenizer.enable_truncation(max_length)
    train, validation, test = (
        _encode(part, tokenizer, splits.task.difficulty) for part in (splits.train, splits.validation, splits.test)
    )
    return EncodedTask(train, validation, test, tokenizer.get_vocab_size(), len(splits.task.labels))


def encode_use(use: TaskUse) -> EncodedTask:
    """A task as a suite uses it, encoded; see :func:`encode_task`."""
    return encode_task(use.name, use.max_length, use.vocab_size, use.train_limit, use.test_limit)


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A lower-casing byte-level BPE tokenizer that puts [CLS] before every text; [PAD] is id 0.

    Byte-level, since its training gives the same vocabulary every time; the library's WordPiece training does not.
    """
    tokenizer = Tokenizer(models.BPE())
    # A link or a user's name would cost a tweet a third of its tokens and tell nothing.
    links = normalizers.Replace(Regex(r"https?://\S+"), "http")
    users = normalizers.Replace(Regex(r"@\w+"), "@user")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), links, users])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer: Any = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))]
    )
    return tokenizer


def _encode(split: Dataset, tokenizer: Tokenizer, difficulty: Callable[[str], int] | None) -> EncodedSplit:
    rows = split[:]
    encodings = tokenizer.encode_batch_fast(rows["text"])
    return EncodedSplit(
        [np.array(encoding.ids, dtype=np.int64) for encoding in encodings],
        np.array(rows["label"], dtype=np.int64),
        np.array(rows["id"], dtype=np.int64),
        None if difficulty is None else np.array([difficulty(text) for text in rows["text"]], dtype=np.int64),
    )

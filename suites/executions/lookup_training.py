"""Does a model train on this device? The task ``lookup``, which needs no text and no tokenizer."""

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from baselines.full_mha import FullMHA
from budgetformer.adaptive import BudgetFormer
from budgetformer.encoder import EncoderSpec
from budgetformer.execution import count_executions
from budgetformer.method import Method
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.data.lookup_task import VALUES, num_queries, read_lookup
from suites.definitions.uses import LOOKUP
from suites.executions.measurement import Answer, Measurement
from suites.records.record import Learned, Timed
from suites.training.evaluate import evaluate
from suites.training.loop import train
from suites.training.model import build_model
from suites.training.seeding import Streams

METHODS: dict[str, Method] = {method.name: method for method in (FullMHA(), BudgetFormer())}
NUM_EVALUATED = 1200


class NotTrainedError(AssertionError):
    """The loss has not fallen."""


@dataclass(frozen=True, kw_only=True)
class LookupTraining(Measurement):
    """A method trained on ``lookup`` by its recipe, at the default sizes.

    The record's history has the mean loss over the training split of the model that would be run, before and after.

    Attributes:
        method: a key of ``METHODS``.
        train_rows: inputs to train on.
        epochs: passes over them.
    """

    kind: ClassVar[str] = "training"

    method: str
    train_rows: int
    epochs: int

    @property
    def title(self) -> str:
        return f"training {self.method}"

    def measure(self) -> Answer:
        """Trains.

        Raises:
            NotTrainedError: if the loss has not fallen.
            TrainingDivergedError: if it is no finite number any more.
        """
        method, data, recipe = METHODS[self.method], word_by_word(self.train_rows), LOOKUP.recipe
        spec = EncoderSpec(
            vocab_size=data.vocab_size,
            num_classes=data.num_classes,
            max_length=LOOKUP.max_length,
            dropout=recipe.dropout,
            token_dropout=recipe.token_dropout,
            embedding_std=recipe.embedding_std,
        )
        streams = Streams(LOOKUP.name, 0)
        model = build_model(spec, method, streams, self.device)
        ends: list[float] = []
        before = evaluate(method.for_inference(model), data.train, self.device)
        train(
            model,
            method,
            data,
            recipe=replace(recipe, epochs=self.epochs),
            streams=streams,
            device=self.device,
            on_step=lambda *_: ends.append(time.perf_counter()),  # the loss was read, so the device has finished
        )
        trained = method.for_inference(model)
        after = evaluate(trained, data.train, self.device)
        with count_executions() as ran:
            accuracy = evaluate(trained, data.test, self.device).accuracy
        losses = [float(each.arrays["loss"].mean()) for each in (before, after)]
        if not math.inf > losses[0] > losses[1]:
            raise NotTrainedError(f"the loss has not fallen: {losses[0]:.4f} before, {losses[1]:.4f} after")
        history = [{"epoch": epoch, "loss": loss} for epoch, loss in zip((0.0, self.epochs), losses, strict=True)]
        learned = Learned(metrics={"accuracy": accuracy}, ran=dict(ran), history=history)
        return Answer(Timed(timings={"step": [end - start for start, end in pairwise(ends)]}), learned)


def word_by_word(train_rows: int) -> EncodedTask:
    """The task ``lookup``, each word a token: 0 is padding and 1 is [CLS]."""
    labels, texts, _ = zip(*read_lookup(), strict=True)
    words = sorted({word for text in texts for word in text.split()})
    number = {word: index for index, word in enumerate(words, start=2)}

    def split(rows: range) -> EncodedSplit:
        return EncodedSplit(
            [np.array([1, *(number[word] for word in texts[row].split())]) for row in rows],
            np.array([labels[row] for row in rows]),
            np.array(rows),
            np.array([num_queries(texts[row]) for row in rows]),
        )

    validation, test = len(texts) - 2 * NUM_EVALUATED, len(texts) - NUM_EVALUATED
    return EncodedTask(
        split(range(train_rows)),
        split(range(validation, test)),
        split(range(test, len(texts))),
        vocab_size=len(words) + 2,
        num_classes=len(VALUES),
    )

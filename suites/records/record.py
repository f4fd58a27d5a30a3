"""What one trial leaves behind: its question, its answer in two parts, and the circumstance. Imports no torch."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from suites.records.metrics import LEARNED, OF_THE_LAYER, TIMED, check_history, check_metrics, check_samples
from suites.records.text import in_one_line

SCHEMA = 4
"""Shape of the file. Older files keep loading."""

PROTOCOL = "4"
"""What was measured, and how. Results of two protocols are never compared."""

Status = Literal["done", "failed"]


def question_id(question: dict[str, Any]) -> str:
    """The id of a trial: a hash of what it asks, whichever suite asks it and whatever tables call its method."""
    asked = dict(question)
    if isinstance(asked.get("method"), dict):
        asked["method"] = {key: value for key, value in asked["method"].items() if key not in ("label", "place")}
    return _digest(asked)[:16]


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The part of an answer that training and testing give.

    Attributes:
        metrics: values by key of ``LEARNED``; a number, lists for one with axes, or None where it does not exist.
        execution: how the attention ran at inference: dense, sliced, gathered or masked.
        ran: what that was done by, as layer calls over the test set: compiled (the CPU kernel), gathered (PyTorch's
            operators), or masked (all heads that the layer has).
        training_execution: how the attention ran in training.
        history: one entry per epoch: epoch, train_loss, validation_accuracy, and the method's own terms.
        arrays: SHA-256 of the file of per-example arrays beside the record; empty without one.
        weights: SHA-256 of the file of trained weights beside the record; empty without one.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    execution: str = ""
    ran: dict[str, int] = field(default_factory=dict)
    training_execution: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    arrays: str = ""
    weights: str = ""

    def __post_init__(self) -> None:
        check_metrics(self.metrics, LEARNED)
        check_history(self.history)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The part of an answer that depends on the machine; it can be measured again without training.

    Attributes:
        metrics: values by key of ``TIMED``, or of ``OF_THE_LAYER``.
        timings: raw samples in seconds, by name.
        energy: provenance of the energy numbers (components, source of each, intensity, tracker).
        measuring: how it was timed: ``threads``, ``dtype``, ``attention_backend``, ``batch_sizes``, ``deterministic``,
            and who else used the machine meanwhile (``suites.measuring.company``), of which ``shared`` is the verdict.
        circumstance: where and when, if not there and then where the record's other part was made; else empty.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, list[float]] = field(default_factory=dict)
    energy: dict[str, Any] = field(default_factory=dict)
    measuring: dict[str, Any] = field(default_factory=dict)
    circumstance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metrics(self.metrics, TIMED | OF_THE_LAYER)
        check_samples(self.timings)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial: the question, the answer and the circumstance.

    Attributes:
        question: what determines the result. Of a trial: protocol, task, encoder, recipe, method with its parameters,
            seed, device, execution. Of a measurement of the layer itself: its ``kind`` and what that needs.
        status: ``done`` or ``failed``.
        error: why it failed; empty otherwise.
        learned: what training and testing gave, if there was any.
        timed: what measuring gave, if there was any.
        circumstance: commit, versions, hardware, threads, start time, fingerprint of the source code.
    """

    question: dict[str, Any]
    status: Status
    error: str = ""
    learned: Learned = field(default_factory=Learned)
    timed: Timed = field(default_factory=Timed)
    circumstance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in ("done", "failed"):
            raise ValueError(f"status {self.status!r} is neither done nor failed")

    @property
    def id(self) -> str:
        return question_id(self.question)

    @property
    def kind(self) -> str:
        """``trial``, or what else was measured."""
        return str(self.question.get("kind", "trial"))

    @property
    def task(self) -> str:
        return str(self.question["task"]["name"])

    @property
    def method(self) -> str:
        return str(self.question["method"]["label"])

    @property
    def seed(self) -> int:
        return int(self.question["seed"])

    @property
    def error_line(self) -> str:
        """Why it failed, fit for a terminal and a table."""
        return in_one_line(self.error)

    @property
    def metrics(self) -> dict[str, Any]:
        """The values of both parts."""
        return self.learned.metrics | self.timed.metrics

    @property
    def measured_in(self) -> dict[str, Any]:
        """The circumstance of the timed part."""
        return self.timed.circumstance or self.circumstance

    @property
    def timing_key(self) -> dict[str, Any]:
        """What two records must share for their times and energies to be compared; a value is None if unknown."""
        circumstance, measuring = self.measured_in, self.timed.measuring
        gpu = circumstance.get("gpu") or {}
        return {
            "machine": circumstance.get("machine_id") or None,
            "torch": circumstance.get("versions", {}).get("torch"),
            "kernel": circumstance.get("kernel"),
            "driver": gpu.get("driver"),
            # Before schema 3 the threads were those that the recipe asks for.
            "threads": measuring.get("threads", circumstance.get("threads")),
            **{key: measuring.get(key) for key in ("dtype", "attention_backend", "batch_sizes", "deterministic")},
        }

    def to_json(self) -> str:
        """One JSON object, with the schema, the id, and a checksum over all of it."""
        content: dict[str, Any] = {"schema": SCHEMA, "id": self.id, **asdict(self)}
        return json.dumps(content | {"checksum": _digest(content)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Reads a record back.

        Raises:
            ValueError: if it is no record, of a newer schema, or was edited.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
            raise ValueError("not a record")
        if content["schema"] > SCHEMA:
            raise ValueError(f"schema {content['schema']} is newer than this program's {SCHEMA}")
        checksum = content.pop("checksum", None)
        if content["schema"] >= 4 and _digest(content) != checksum:
            raise ValueError("the checksum does not belong to the content: the file was edited")
        if not isinstance(content.get("question"), dict):
            raise ValueError("a record without a question")
        schema, found = content.pop("schema"), content.pop("id", None)
        try:
            parts = content if schema >= 4 else _in_parts(content)
            record = cls(**parts | {"learned": Learned(**parts["learned"]), "timed": Timed(**parts["timed"])})
            if record.kind == "trial":
                record.task, record.method, record.seed  # noqa: B018 - a question without these is no question
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a record: {error}") from error
        if record.id != found:
            raise ValueError("the id does not belong to the question: the file was edited")
        return record


def _in_parts(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a file of schema 1 to 3, which had everything side by side."""
    metrics = content.pop("metrics", {})
    learned: dict[str, Any] = {"metrics": {key: value for key, value in metrics.items() if key not in TIMED}}
    timed: dict[str, Any] = {"metrics": {key: value for key, value in metrics.items() if key in TIMED}}
    for part, names in (
        (learned, ("execution", "ran", "training_execution", "history")),
        (timed, ("timings", "energy", "measuring")),
    ):
        part.update({name: content.pop(name) for name in names if name in content})
    return content | {"learned": learned, "timed": timed}

"""What one trial leaves behind, and what every number in it means. Imports neither torch nor numpy."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

SCHEMA = 3
"""Shape of the file. Older files keep loading."""

PROTOCOL = "4"
"""What was measured, and how. Results of two protocols are never compared."""

Status = Literal["done", "failed"]
Direction = Literal["higher", "lower", "none"]


@dataclass(frozen=True)
class Metric:
    """What a number means.

    Attributes:
        unit: its unit, ``fraction`` for numbers in [0, 1].
        direction: which way is better, ``none`` for a description.
        meaning: one sentence.
        axes: what the value is a list over, outermost first; empty for one number.
    """

    unit: str
    direction: Direction
    meaning: str
    axes: tuple[str, ...] = ()


def _latency(name: str, what: str) -> dict[str, Metric]:
    """The metrics of one batch size."""
    times = {50: f"Median time of {what}.", 95: f"95th percentile of the time of {what}."}
    times[99] = f"99th percentile of the time of {what}; null for fewer than 200 samples."
    ratio, again = f"latency_{name}_ratio", f"latency_{name}_aa_ratio"
    return {
        **{f"latency_{name}_p{q}_s": Metric("s", "lower", meaning) for q, meaning in times.items()},
        ratio: Metric("ratio", "lower", f"Median over rounds in turns of the time of {what} over full attention's."),
        **{
            f"{ratio}_{end}": Metric("ratio", "none", f"The {end} end of its 95 % interval.") for end in ("low", "high")
        },
        again: Metric("ratio", "none", "The same of a second copy of full attention over the first: the noise (A/A)."),
        **{
            f"{again}_{end}": Metric("ratio", "none", f"The {end} end of its 95 % interval.") for end in ("low", "high")
        },
    }


METRICS: dict[str, Metric] = {
    "accuracy": Metric("fraction", "higher", "Correct predictions on the test set, after the last epoch."),
    "validation_accuracy": Metric("fraction", "higher", "Correct predictions on the validation split, last epoch."),
    "test_loss": Metric("nats", "lower", "Mean cross-entropy on the test set."),
    "majority_rate": Metric("fraction", "none", "Accuracy of always answering the test set's most frequent class."),
    "s_mean": Metric("fraction", "none", "Mean over test inputs and layers of the fraction of heads asked for."),
    "s_mean_per_layer": Metric("fraction", "none", "s_mean of each layer.", ("layer",)),
    "heads_executed": Metric("fraction", "none", "Mean over test inputs and layers of active heads / H."),
    "heads_executed_per_layer": Metric("fraction", "none", "heads_executed of each layer.", ("layer",)),
    "heads_executed_per_class": Metric(
        "fraction", "none", "heads_executed of the test inputs of each class, by layer.", ("class", "layer")
    ),
    "use_per_head": Metric("fraction", "none", "Share of the test inputs that used each head.", ("layer", "head")),
    "accuracy_per_difficulty": Metric(
        "fraction",
        "higher",
        "Accuracy at each difficulty, the easiest first; null where it is not known.",
        ("difficulty",),
    ),
    "heads_executed_per_difficulty": Metric(
        "fraction", "none", "heads_executed of the test inputs of each difficulty.", ("difficulty",)
    ),
    "no_head_share": Metric("fraction", "none", "Share of (test input, layer) pairs with no active head."),
    "one_head_share": Metric("fraction", "none", "Share of (test input, layer) pairs with one active head."),
    "accuracy_as_trained": Metric(
        "fraction",
        "none",
        "Accuracy with the gates as at the end of training, soft if they are; null if none learns.",
    ),
    "accuracy_shuffled": Metric("fraction", "none", "Accuracy of the same model with the gates of another input."),
    "accuracy_modal_set": Metric("fraction", "none", "Accuracy with each layer's most frequent head set for all."),
    "accuracy_random_heads": Metric("fraction", "none", "Accuracy with each input's own number of random heads."),
    "accuracy_mean_k": Metric("fraction", "none", "Accuracy with each input's best heads, mean k of them for all."),
    "num_parameters": Metric("count", "lower", "Parameters of the trained model, gates included."),
    "num_parameters_inference": Metric("count", "lower", "Parameters of the model that is run, after removal."),
    "macs_executed": Metric("MAC/input", "lower", "Products that ran over the padded test batches, per input."),
    "macs_unpadded": Metric("MAC/input", "lower", "Products that ran over test batches of equal length, per input."),
    "macs_full": Metric("MAC/input", "lower", "Closed form of full attention's model on the same padded batches."),
    "macs_floor": Metric("MAC/input", "none", "The same without any head: no choice of heads costs less."),
    "macs_model": Metric("MAC/input", "lower", "Closed form of the model with its active heads and gates, padded."),
    "macs_model_p5": Metric("MAC/input", "lower", "5th percentile over inputs of macs_model without padding."),
    "macs_model_p95": Metric("MAC/input", "lower", "95th percentile over inputs of macs_model without padding."),
    "macs_attention_core": Metric("MAC/input", "lower", "Closed form of QK^T and AV of the active heads."),
    "macs_attention_block": Metric("MAC/input", "lower", "Core and projections of the active heads, closed form."),
    "macs_gates": Metric("MAC/input", "lower", "Products that ran in the gates, which choose the heads."),
    "macs_traced": Metric("MAC/input", "lower", "fvcore's count of one full-length input; null for gathered models."),
    "paper_flops_cut": Metric(
        "fraction", "higher", "Cut by the paper's convention at s_mean, which is what was asked for."
    ),
    "paper_co2_g": Metric(
        "gCO2e", "none", "Derived, not measured: 1,000 inputs by the paper's FLOPs times its apparent factor."
    ),
    "padding_share": Metric("fraction", "none", "Share of padding in the test batches."),
    "train_s": Metric("s", "lower", "Time of all training steps, multiplied out from an exclusive window of some."),
    **_latency("b1", "one test input"),
    **_latency("b32", "a batch of 32 test inputs"),
    "throughput_b32_per_s": Metric("input/s", "higher", "Test inputs per second, in batches of 32."),
    "memory_inference_bytes": Metric("bytes", "lower", "Peak above the loaded model, of one batch of 32, the longest."),
    "memory_training_bytes": Metric(
        "bytes", "lower", "Peak above model and optimiser, of one step, the longest batch."
    ),
    "train_energy_kwh": Metric("kWh", "lower", "Energy of all training steps, multiplied out from that window."),
    "inference_energy_kwh": Metric("kWh", "lower", "Energy per 1,000 test inputs."),
    "train_energy_above_idle_kwh": Metric(
        "kWh", "lower", "train_energy_kwh less what the idle machine takes in train_s."
    ),
    "inference_energy_above_idle_kwh": Metric("kWh", "lower", "inference_energy_kwh less the idle machine's."),
    "train_co2_g": Metric("gCO2e", "lower", "Energy of training times the stated intensity."),
    "inference_co2_g": Metric("gCO2e", "lower", "Energy per 1,000 test inputs times the stated intensity."),
}
"""Every key that a record may carry. FLOPs are 2 x MACs."""


def question_id(question: dict[str, Any]) -> str:
    """The id of a trial: a hash of what it asks, whichever suite asks it and whatever tables call its method."""
    method = {key: value for key, value in question["method"].items() if key != "label"}
    canonical = json.dumps(question | {"method": method}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _check(key: str, value: Any, axes: tuple[str, ...]) -> None:
    if isinstance(value, list) is not bool(axes):
        raise ValueError(f"metric {key!r} is {f'a list per {axes[0]}' if axes else 'not a list'}")
    if axes:
        for part in value:
            _check(key, part, axes[1:])
    elif not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"metric {key!r} is not a finite number: {value!r}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial: the question, the answer and the circumstance.

    Attributes:
        question: what determines the result: protocol, task, encoder, recipe, method, params, seed, device, execution.
        status: ``done`` or ``failed``.
        error: why it failed; empty otherwise.
        metrics: values by key of ``METRICS``; a number, lists for one with axes, or None where it does not exist.
        execution: how the attention ran at inference: dense, sliced, gathered or masked.
        ran: what that was done by, as layer calls over the test set: compiled (the CPU kernel), gathered (PyTorch's
            operators), or masked (all heads that the layer has).
        training_execution: how the attention ran in training.
        history: one entry per epoch: epoch, train_loss, validation_accuracy, and the method's own terms.
        timings: raw samples in seconds, by name.
        energy: provenance of the energy numbers (components, source of each, intensity, tracker).
        measuring: how it was timed: ``threads``, ``dtype``, ``attention_backend``, ``batch_sizes``, ``deterministic``,
            and who else used the machine meanwhile (``suites.measuring.company``), of which ``shared`` is the verdict.
        circumstance: commit, versions, hardware, threads, start time, fingerprint of the source code.
    """

    question: dict[str, Any]
    status: Status
    error: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    execution: str = ""
    ran: dict[str, int] = field(default_factory=dict)
    training_execution: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    timings: dict[str, list[float]] = field(default_factory=dict)
    energy: dict[str, Any] = field(default_factory=dict)
    measuring: dict[str, Any] = field(default_factory=dict)
    circumstance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in ("done", "failed"):
            raise ValueError(f"status {self.status!r} is neither done nor failed")
        for key, value in self.metrics.items():
            if key not in METRICS:
                raise ValueError(f"unknown metric {key!r}")
            if value is not None:
                _check(key, value, METRICS[key].axes)

    @property
    def id(self) -> str:
        return question_id(self.question)

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
    def timing_key(self) -> dict[str, Any]:
        """What two records must share for their times and energies to be compared; a value is None if unknown."""
        gpu = self.circumstance.get("gpu") or {}
        return {
            "machine": self.circumstance.get("machine_id") or None,
            "torch": self.circumstance.get("versions", {}).get("torch"),
            "driver": gpu.get("driver"),
            # Before schema 3 the threads were those that the recipe asks for.
            "threads": self.measuring.get("threads", self.circumstance.get("threads")),
            **{key: self.measuring.get(key) for key in ("dtype", "attention_backend", "batch_sizes", "deterministic")},
        }

    def to_json(self) -> str:
        """One JSON object, with the schema and the id."""
        content = {"schema": SCHEMA, "id": self.id, **asdict(self)}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Reads a record back.

        Raises:
            ValueError: if it is no record, of a newer schema, or its id does not belong to its question.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
            raise ValueError("not a record")
        if content["schema"] > SCHEMA:
            raise ValueError(f"schema {content['schema']} is newer than this program's {SCHEMA}")
        known = {f.name for f in fields(cls)}
        unknown = content.keys() - known - {"schema", "id"}
        if unknown:
            raise ValueError(f"unknown fields {sorted(unknown)}")
        if not isinstance(content.get("question"), dict):
            raise ValueError("a record without a question")
        try:
            record = cls(**{key: value for key, value in content.items() if key in known})
            record.task, record.method, record.seed  # noqa: B018 - a question without these is no question
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a record: {error}") from error
        if record.id != content.get("id"):
            raise ValueError("the id does not belong to the question: the file was edited")
        return record

"""What every number of a record means: one table. Imports neither torch nor numpy."""

import math
from dataclasses import dataclass
from typing import Any, Literal

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


LEARNED: dict[str, Metric] = {
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
    "macs_unpadded": Metric("MAC/input", "lower", "Closed form of macs_model without padding."),
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
}
"""What training and testing give: the same on every machine, but for rounding."""

TIMED: dict[str, Metric] = {
    "train_s": Metric("s", "lower", "Time of all training steps, multiplied out by tokens from a window of some."),
    "train_aa_ratio": Metric("ratio", "none", "Every other pass of that window over the rest: the noise (A/A)."),
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
"""What depends on the machine."""

METRICS = LEARNED | TIMED
"""Every key that a trial's record may carry. FLOPs are 2 x MACs."""

OF_THE_LAYER: dict[str, Metric] = {
    "active_share": Metric("fraction", "none", "Mean k / H over the inputs of a measured batch."),
    "output_errors": Metric(
        "ratio", "lower", "Largest difference from masked in float32 over its largest output.", ("execution",)
    ),
    "gradient_errors": Metric(
        "ratio", "lower", "The same of the gradients of the input and of each weight.", ("execution", "gradient")
    ),
    "peak_bytes": Metric("bytes", "lower", "Peak memory of each call above the input and the layer.", ("call",)),
}
"""What measurements of the layer itself add; the axes are in their questions."""


def check_metrics(values: dict[str, Any], known: dict[str, Metric]) -> None:
    """Refuses what a part of a record must not hold.

    Args:
        values: by key; a number, lists for a metric with axes, or None where it does not exist.
        known: what it may hold.

    Raises:
        ValueError: for an unknown key, a value of another shape, or one that is no finite number.
    """
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"unknown metric {key!r}")
        if value is not None:
            _check(key, value, known[key].axes)


def check_samples(samples: dict[str, list[float]]) -> None:
    """Refuses times that are none.

    Raises:
        ValueError: if one is negative or not finite; names the call.
    """
    for name, values in samples.items():
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"a time of {name!r} is negative or not a finite number")


def check_history(history: list[dict[str, float]]) -> None:
    """Refuses a history with a number that is none.

    Raises:
        ValueError: if there is one; names it.
    """
    for entry in history:
        for key, value in entry.items():
            if not math.isfinite(value):
                raise ValueError(f"{key} of the history is {value}")


def _check(key: str, value: Any, axes: tuple[str, ...]) -> None:
    if isinstance(value, list) is not bool(axes):
        raise ValueError(f"metric {key!r} is {f'a list per {axes[0]}' if axes else 'not a list'}")
    if axes:
        for part in value:
            _check(key, part, axes[1:])
    elif not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"metric {key!r} is not a finite number: {value!r}")

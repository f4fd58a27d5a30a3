"""The same search of the peak learning rate for every method, judged on the validation split alone."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suites.definitions.suite import Suite
from suites.records.record import Record, question_id
from suites.records.store import write
from suites.sweep.planning import Options, make_plan
from suites.sweep.trial import Trial

TUNING_SEED = 1_000_003
"""No suite uses it: no weights or batches of a search come back in what it is for."""

WIDEST = 4.0
"""The largest factor; the smallest is its inverse."""

Factors = Mapping[str, Mapping[str, float]]
"""By task, then by the method's label."""


@dataclass(frozen=True)
class Choice:
    """What a search says of one method on one task.

    Attributes:
        task: name of the task.
        method: the method's label.
        accuracies: validation accuracy by factor, in the order of the factors; None where the training failed.
    """

    task: str
    method: str
    accuracies: Mapping[float, float | None]

    @property
    def factor(self) -> float:
        """The one with the best accuracy, of several the nearest to 1; 1 if all failed."""
        reached = {factor: accuracy for factor, accuracy in self.accuracies.items() if accuracy is not None}
        return max(reached, key=lambda factor: (reached[factor], -round(abs(math.log(factor)), 9)), default=1.0)

    @property
    def failed(self) -> bool:
        return all(accuracy is None for accuracy in self.accuracies.values())

    @property
    def at_end(self) -> bool:
        """Whether a better factor may lie outside the range."""
        ends = (min(self.accuracies), max(self.accuracies))
        return len(self.accuracies) > 1 and not self.failed and self.factor in ends


def search_points(num: int) -> list[float]:
    """Factors on the recipe's peak rate, equally spaced in their logarithm; 1 is one of them.

    An even number of them goes one step less far up.
    """
    half = num // 2
    return [WIDEST ** (index / half) for index in range(-half, num - half)] if half else [1.0]


def tuning_trials(suite: Suite, options: Options, points: Sequence[float]) -> list[Trial]:
    """The trials of a search: every task and method at every point, with ``TUNING_SEED``.

    Raises:
        ValueError: as ``make_plan``.
    """
    plan = make_plan(suite, replace(options, seeds=[TUNING_SEED]))
    return [replace(trial, lr_scale=factor, tuning=True) for trial in plan for factor in points]


def choices(trials: Sequence[Trial], records: Mapping[str, Record]) -> list[Choice]:
    """What a search says, from its trials and the records by their ids; by task and method, as the trials are."""
    found: dict[tuple[str, str], dict[float, float | None]] = {}
    for trial in trials:
        record = records[question_id(trial.question())]
        accuracies = found.setdefault((trial.task.name, trial.method.label), {})
        accuracies[trial.lr_scale] = record.metrics.get("validation_accuracy")
    return [Choice(task, method, accuracies) for (task, method), accuracies in found.items()]


def write_factors(file: Path, suite: str, points: Sequence[float], chosen: Iterable[Choice]) -> None:
    """Writes what is chosen, in one step.

    Raises:
        OSError: if that cannot be done.
    """
    factors: dict[str, dict[str, float]] = {}
    accuracies: dict[str, dict[str, list[float | None]]] = {}
    for choice in chosen:
        factors.setdefault(choice.task, {})[choice.method] = choice.factor
        accuracies.setdefault(choice.task, {})[choice.method] = [choice.accuracies[point] for point in points]
    content = {"suite": suite, "seed": TUNING_SEED, "points": points, "factors": factors, "accuracies": accuracies}
    write(file, f"{json.dumps(content, indent=1)}\n".encode())


def read_factors(file: Path) -> tuple[str, Factors]:
    """The suite and the factors that ``write_factors`` wrote.

    Raises:
        ValueError: if the file cannot be read, or it did not write that.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ValueError(f"--tuned {file}: {error.strerror}; python -m suites tune writes such a file") from error
    try:
        content = json.loads(text)
        for factor in (factor for of_task in content["factors"].values() for factor in of_task.values()):
            if type(factor) not in (int, float) or not 0 < factor < math.inf:
                raise ValueError(f"{factor!r} is no factor")
        return str(content["suite"]), content["factors"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} was not written by python -m suites tune: {error}") from error


def with_factors(trials: Sequence[Trial], factors: Factors) -> tuple[list[Trial], list[str]]:
    """The trials with their factors, and the tasks and methods that have none: these keep 1."""
    scaled, unknown = [], []
    for trial in trials:
        of_task = factors.get(trial.task.name)
        method = trial.method.label
        if of_task is None:
            unknown.append(trial.task.name)
        elif method not in of_task:
            unknown.append(f"{trial.task.name}, {method}")
        scaled.append(replace(trial, lr_scale=(of_task or {}).get(method, 1.0)))
    return scaled, list(dict.fromkeys(unknown))

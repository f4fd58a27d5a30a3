"""One trial: a question, before anything is done about it."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from budgetformer.method import Method
from suites.data.manifest import manifest_of
from suites.definitions.suite import Sizes, TaskUse
from suites.records.record import PROTOCOL, question_id


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run and all that is measured on it.

    Attributes:
        task: which, and how it is trained.
        sizes: of the encoder.
        method: with its parameters.
        seed: of all random streams.
        device: ``cpu`` or ``cuda``.
        execution: how the attention is asked to run at inference.
        deterministic: train with torch's deterministic algorithms alone.
        source: hash of the file of a method from outside this project, as it was when the trial was planned.
        lr_scale: a factor on the recipe's peak learning rate.
        tuning: only the validation accuracy is wanted, to choose ``lr_scale``; the test split is not looked at.
    """

    task: TaskUse
    sizes: Sizes
    method: Method
    seed: int
    device: str
    execution: str
    deterministic: bool
    source: str | None = None
    lr_scale: float = 1.0
    tuning: bool = False

    @property
    def label(self) -> str:
        """How tables call what is tried: the method's label, with a factor on its rate."""
        if self.lr_scale == 1:
            return self.method.label
        name, bracket, params = self.method.label.partition("(")
        rate = f"lr x{self.lr_scale:.3g}"
        return f"{name}({params[:-1]}, {rate})" if bracket else f"{name}({rate})"

    @property
    def title(self) -> str:
        return f"{self.task.name}, {self.label}, seed {self.seed}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The code that can move its numbers, with all that it imports."""
        return ("suites.sweep.stages", *dict.fromkeys(each.__module__ for each in type(self.method).__mro__))

    @property
    def id(self) -> str:
        return question_id(self.question())

    def question(self) -> dict[str, Any]:
        """All that determines the result; its hash is the trial's id.

        ``source``, ``lr_scale`` and ``tuning`` are in it only where they say something, so that a trial without them
        has the id that it had before they were known.
        """
        data = manifest_of(self.task.name, self.task.train_limit, self.task.test_limit)
        task = asdict(self.task)
        recipe = task.pop("recipe")
        method: dict[str, Any] = {"name": self.method.name, "label": self.label, "place": self.method.place}
        method["params"] = json.loads(json.dumps(self.method.params, allow_nan=False))  # as they come back from a file
        if self.source is not None:
            method["source"] = self.source
        if self.lr_scale != 1:
            method["lr_scale"] = self.lr_scale
        return {
            "protocol": PROTOCOL,
            "task": task | {"fingerprint": data.fingerprint, "rows": data.rows},
            "encoder": asdict(self.sizes),
            "recipe": recipe,
            "method": method,
            "seed": self.seed,
            "device": self.device,
            "execution": self.execution,
            "deterministic": self.deterministic,
        } | ({"tuning": True} if self.tuning else {})

"""From a suite to its trials, and what of them is done already."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import torch

from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gated_layer import Execution
from budgetformer.gates import check_gates
from budgetformer.method import Method
from budgetformer.surgery import check_execution
from suites.definitions.registry import find_method
from suites.definitions.sources import fingerprint, source_of
from suites.definitions.suite import Sizes, Suite
from suites.records.record import Record, question_id
from suites.records.text import in_one_line
from suites.sweep.trial import Trial

Rerun = Literal["never", "failed", "stale", "always"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user asks of a run, beside the suite.

    Attributes:
        methods: names; empty is the suite's own and the plug-ins'. A method that is not in the suite runs with its
            defaults.
        plugins: classes of known methods that run beside the suite's own.
        tasks: names of the suite's tasks; empty is all.
        seeds: in place of the suite's; empty keeps those.
        device: ``cpu`` or ``cuda``.
        execution: how the attention runs at inference.
        deterministic: train with torch's deterministic algorithms alone.
    """

    methods: Sequence[str] = ()
    plugins: Sequence[type[Method]] = ()
    tasks: Sequence[str] = ()
    seeds: Sequence[int] = ()
    device: str = "cpu"
    execution: str = Execution.AUTO
    deterministic: bool = False


def make_plan(suite: Suite, options: Options) -> list[Trial]:
    """The trials of a suite: by task, then seed, then method.

    Raises:
        ValueError: for an unknown task or method, a bad seed, an execution that a method cannot have, or parameters
            that do not fit the suite's encoder.
    """
    check_execution(options.execution)
    tasks = {task.name: task for task in suite.tasks}
    unknown = [name for name in options.tasks if name not in tasks]
    if unknown:
        raise ValueError(f"suite {suite.name} has no task {unknown[0]!r}. It has: {', '.join(tasks)}")
    negative = [seed for seed in options.seeds if seed < 0]
    if negative:
        raise ValueError(f"a seed must not be negative, not {negative[0]}")
    seeds = list(dict.fromkeys(options.seeds or suite.seeds))
    methods = _methods(suite, options)
    for method in methods:
        _check(method, suite.sizes, options.execution)
    return [
        Trial(
            task=task,
            sizes=suite.sizes,
            method=method,
            seed=seed,
            device=options.device,
            execution=options.execution,
            deterministic=options.deterministic,
            source=source_of(method),
        )
        for task in tasks.values()
        if not options.tasks or task.name in options.tasks
        for seed in seeds
        for method in methods
    ]


class Job(Protocol):
    """Something that is run once and leaves one record: a trial, or a measurement of the layer itself."""

    @property
    def title(self) -> str:
        """What people call it."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The code that can move its numbers, with all that it imports."""

    def question(self) -> dict[str, Any]:
        """All that determines the result; its hash is the id."""


def circumstance_of(job: Job, circumstance: dict[str, Any]) -> dict[str, Any]:
    """A circumstance with the fingerprint of the code that a job's numbers depend on."""
    return circumstance | {"code_fingerprint": fingerprint(job.modules)}


def todo(job: Job, known: dict[str, Record], rerun: Rerun, circumstance: dict[str, Any]) -> bool:
    """Whether a job is to be run, given the records that are there.

    ``never`` runs what has no record, ``failed`` also what failed, ``stale`` also what other source code or versions
    made, and ``always`` everything.
    """
    record = known.get(question_id(job.question()))
    if record is None or rerun == "always":
        return True
    if record.status == "failed":
        return rerun != "never"
    return rerun == "stale" and is_stale(record, circumstance_of(job, circumstance))


def is_stale(record: Record, circumstance: dict[str, Any]) -> bool:
    """Whether a record was made by other code, by other versions of what it builds on, or by another kernel.

    What was measured again elsewhere does not count: to train again would be no cure for it.
    """
    return any(record.circumstance.get(key) != circumstance[key] for key in ("code_fingerprint", "versions", "kernel"))


def _methods(suite: Suite, options: Options) -> tuple[Method, ...]:
    if not options.methods:
        return (*suite.methods, *(method() for method in options.plugins))
    chosen: list[Method] = []
    for name in dict.fromkeys(options.methods):
        of_suite = [method for method in suite.methods if name in (method.name, method.label)]
        chosen += of_suite or [find_method(name)()]
    return tuple(chosen)


def _check(method: Method, sizes: Sizes, execution: str) -> None:
    """Lets a method show that it fits the encoder and the execution, before hours of other trials have run."""
    spec = EncoderSpec(vocab_size=2, num_classes=2, max_length=2, **asdict(sizes))
    tokens_BT, mask_BT = torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)
    name = method.label
    try:
        json.dumps(method.params, allow_nan=False)
        model = Encoder(spec, method.gates(spec, torch.Generator().manual_seed(0)))
        for each in (model, method.for_inference(model)):
            check_gates(each(tokens_BT, mask_BT).gates_BLH)
    except (Exception, SystemExit) as error:
        raise ValueError(f"method {name} cannot be run: {_say(error)}") from error
    try:
        method.for_inference(model, execution)(tokens_BT, mask_BT)
    except (Exception, SystemExit) as error:
        raise ValueError(f"--execution {execution} is not for {name}: {_say(error)}") from error


def _say(error: BaseException) -> str:
    return in_one_line(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")

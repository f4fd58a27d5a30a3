"""A measurement of the layer itself: a job of the sweep's engine, whose record has a kind of its own."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch

from suites.measuring.circumstance import allowed_cores, attention_backend, deterministic_flags
from suites.measuring.company import Company
from suites.measuring.sharing import Share
from suites.measuring.timing import ratio
from suites.records.record import PROTOCOL, Learned, Record, Timed
from suites.records.store import Entry


class Answer(NamedTuple):
    """What a measurement found."""

    timed: Timed
    learned: Learned = Learned()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Something that is measured once. Its fields, and its kind, are the question; but for ``rounds``, how precisely.

    Attributes:
        device: where, as torch names it.
    """

    kind: ClassVar[str]
    elsewhere: ClassVar[bool] = False
    """Whether the work is done in a process of its own, which this one would take for somebody else's."""

    device: str

    @property
    def title(self) -> str:
        """What people call it."""
        raise NotImplementedError

    @property
    def modules(self) -> tuple[str, ...]:
        """The code that can move its numbers, with all that it imports."""
        return (type(self).__module__,)

    def question(self) -> dict[str, Any]:
        """All that determines the answer, but for the machine; as it comes back from a file."""
        question: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        question.pop("rounds", None)
        return {"protocol": PROTOCOL, "kind": self.kind} | question

    def measure(self) -> Answer:
        """Does it, in this process.

        Raises:
            Exception: whatever goes wrong.
        """
        raise NotImplementedError


def run_measurement(job: Measurement, circumstance: dict[str, Any], share: Share) -> Entry:
    """Does a measurement, alone on the machine, on as many threads as it has cores.

    Args:
        job: what is measured.
        circumstance: for the record.
        share: of the machine.

    Raises:
        Exception: whatever goes wrong; the engine makes a failed record of it.
    """
    torch.set_num_threads(max(1, int(allowed_cores())))
    torch.set_float32_matmul_precision("highest")  # torch's default, which NVIDIA's containers change to TF32
    with share.alone(), Company(job.device) as company:
        timed, learned = job.measure()
    conditions = {
        "threads": torch.get_num_threads(),
        "attention_backend": attention_backend(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "rounds": getattr(job, "rounds", None),
    }
    record = Record(
        question=job.question(),
        status="done",
        learned=learned,
        timed=replace(timed, measuring=conditions | timed.measuring | ({} if job.elsewhere else company.found)),
        circumstance=circumstance | {"threads": torch.get_num_threads(), "deterministic_flags": deterministic_flags()},
    )
    return Entry(record)


def headline(record: Record) -> str:
    """The ratios worth telling while the rest is still being measured."""
    samples = record.timed.timings
    pairs = [
        pair for pair in (("auto", "full"), ("auto", "bound"), ("no attention", "full")) if set(pair) <= samples.keys()
    ]
    told = [f"{ours} / {theirs} {ratio(samples[ours], samples[theirs]):.2f}" for ours, theirs in pairs]
    return ", ".join(told) or "done"

"""What skipping heads saves in whole encoders, on real test inputs."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from baselines.full_mha import FullMHA
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.method import Method
from budgetformer.selection import whole_heads
from suites.data.encoded import EncodedTask
from suites.data.manifest import manifest_of
from suites.data.tokenizing import encode_use
from suites.definitions.suite import TaskUse
from suites.executions.measurement import Answer, Measurement
from suites.measuring.latency import BATCH_SIZE, inference_call, spread_batches
from suites.measuring.timing import Call, interleave
from suites.records.record import Timed
from suites.training.model import build_model
from suites.training.seeding import Streams

NUM_BATCHES = 3
"""Real batches, of short, middling and long inputs."""
SECONDS = 30.0
"""About the longest that the rounds of one measurement take."""


@dataclass(frozen=True, kw_only=True)
class OfEncoders(Measurement):
    """A measurement of whole encoders of one size.

    Attributes:
        task: whose inputs are run.
        width: D.
        num_heads: H.
        num_layers: L.
        rounds: samples of each call, or fewer where they would take long.
    """

    task: TaskUse
    width: int
    num_heads: int
    num_layers: int
    rounds: int

    @property
    def title(self) -> str:
        return f"{self.kind} on {self.task.name}, D = {self.width}"

    def question(self) -> dict[str, Any]:
        task = self.task
        data = manifest_of(task.name, task.train_limit, task.test_limit)
        described = {"name": task.name, "max_length": task.max_length, "vocab_size": task.vocab_size}
        described |= {"fingerprint": data.fingerprint}
        return super().question() | {"task": described}

    def spec(self, data: EncodedTask) -> EncoderSpec:
        """The sizes."""
        return EncoderSpec(
            vocab_size=data.vocab_size,
            num_classes=data.num_classes,
            max_length=self.task.max_length,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
        )

    def interleaved(self, timed: dict[str, Call]) -> dict[str, list[float]]:
        """Times calls that each walk over ``NUM_BATCHES`` batches.

        Returns:
            Seconds for all batches together, by name, a number per round.
        """
        start = time.perf_counter()
        for call in timed.values():
            for _ in range(NUM_BATCHES):  # a length that is new to the machine costs more
                call()
        affordable = int(SECONDS / (time.perf_counter() - start))
        rounds = max(2, min(self.rounds, affordable))
        samples = interleave(timed, device=self.device, rounds=NUM_BATCHES * rounds, warmup_s=0)
        return {
            name: [sum(values[i : i + NUM_BATCHES]) for i in range(0, len(values), NUM_BATCHES)]
            for name, values in samples.items()
        }


@dataclass(frozen=True, kw_only=True)
class EncoderTimes(OfEncoders):
    """Times of encoders whose inputs use some of the heads.

    By Amdahl's law the most that can be saved is ``(1 - k / H)`` of the attention's share of the time, which is what
    the encoder without attention saves. Timed are ``full``, ``full again``, ``no attention``, and for each budget s
    ``heads s`` (random-k, which chooses as it runs) and ``given s`` (the same heads, chosen beforehand).

    Attributes:
        budgets: each s.
    """

    kind: ClassVar[str] = "encoder"

    budgets: tuple[float, ...] = (0.25, 0.5)

    def question(self) -> dict[str, Any]:
        return super().question() | {"shares": [whole_heads(s, self.num_heads) / self.num_heads for s in self.budgets]}

    def measure(self) -> Answer:
        data = encode_use(self.task)
        spec = self.spec(data)

        def model(method: Method) -> Encoder:
            return method.for_inference(build_model(spec, method, Streams(self.task.name, 0), self.device))

        models = {"full": model(FullMHA()), "no attention": model(NoAttention())}
        models["full again"] = models["full"]
        models |= {f"heads {s}": model(RandomK(s=s)) for s in self.budgets}
        batches = spread_batches(data.test, BATCH_SIZE, NUM_BATCHES, self.device)
        timed = {name: inference_call(each, batches) for name, each in models.items()}
        for s in self.budgets:
            with torch.inference_mode():
                chosen = [models[f"heads {s}"](*batch).gates_BLH for batch in batches]
            given = [(*batch, gates_BLH) for batch, gates_BLH in zip(batches, chosen, strict=True)]
            timed[f"given {s}"] = inference_call(models[f"heads {s}"], given)
        return Answer(Timed(timings=self.interleaved(timed), measuring={"dtype": "float32"}))

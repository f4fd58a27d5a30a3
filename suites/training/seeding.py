"""Random streams, derived from (task, seed, stream) and never from the method.

A method that draws more numbers than another moves only its own streams, ``gate-init`` and ``gate``: both see the same
batches, the same initial shared weights and the same dropout.
"""

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Streams:
    """The streams of one trial.

    Attributes:
        task: name of the task.
        seed: the trial's seed, >= 0.
    """

    task: str
    seed: int

    def number(self, stream: str) -> int:
        """The 63-bit seed of a stream: ``init``, ``data``, ``gate-init``, ``gate``, ``dropout`` or ``controls``."""
        digest = hashlib.sha256(f"{self.task}/{self.seed}/{stream}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(self, stream: str) -> torch.Generator:
        """A new CPU generator at the start of a stream."""
        return torch.Generator().manual_seed(self.number(stream))

    def seed_dropout(self, step: int) -> None:
        """Seeds torch's global generator, the only one that dropout knows, for one training step."""
        torch.manual_seed(self.number("dropout") + step)

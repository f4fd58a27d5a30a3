"""k random heads per input: the control for every choice of heads that claims to know the input."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn

from budgetformer.checks import check_interval
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import RandomHeads
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method
from budgetformer.selection import new_salt


@dataclass(frozen=True, kw_only=True)
class RandomK(Method):
    """k heads drawn uniformly for each input and layer, anew at each training step, fixed by the tokens at inference.

    Attributes:
        s: the fraction of heads, in [0, 1]; k is s * H, rounded to the nearest whole number.

    Raises:
        ValueError: if s is outside [0, 1].
    """

    name: ClassVar[str] = "random-k"
    place: ClassVar[int] = 30

    s: float = 0.25

    def __post_init__(self) -> None:
        check_interval(self, "[0, 1]", "s")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        return nn.ModuleList(RandomHeads(spec.num_heads, self.s, generator) for _ in range(spec.num_layers))

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        salt = new_salt(generator)
        for gate in model.gates:
            cast("RandomHeads", gate).step_salt.copy_(salt)

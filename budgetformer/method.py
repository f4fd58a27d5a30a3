"""The contract of a method: a choice of heads per input and layer, as a difference from full attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.gated_layer import Execution
from budgetformer.gates import AllHeads
from budgetformer.importance import LabelledBatch
from budgetformer.surgery import compact


@dataclass(frozen=True, kw_only=True)
class Method:
    """Full attention, and the hooks with which a method differs from it.

    The fields of a subclass are its parameters: they are stored with every result, so they must survive JSON. A method
    object holds no state; whatever changes during training lives in parameters and buffers of the model.

    The harness calls ``gates`` once, ``on_step`` and ``extra_losses`` at every training step, and ``for_inference`` to
    evaluate. It owns the loop, the clock and the counting.
    """

    name: ClassVar[str]
    place: ClassVar[int] = 1000
    """Its row in a table, and with it its colour: small numbers come first; of equal ones, by name."""

    @property
    def params(self) -> dict[str, Any]:
        """The fields, as plain values."""
        return dataclasses.asdict(self)

    @property
    def label(self) -> str:
        """How tables call it: its name, and the parameters that are not at their defaults."""
        defaults = type(self)().params
        changed = [f"{key}={value}" for key, value in self.params.items() if value != defaults[key]]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        """One gate module per layer, ``(x_BTD, mask_BT, key_B) -> Gates`` (see ``budgetformer.gates``).

        Args:
            spec: the encoder for which the gates are.
            generator: source of random numbers that belongs to the gates alone.

        Raises:
            ValueError: if the parameters do not fit the encoder.
        """
        return nn.ModuleList(AllHeads() for _ in range(spec.num_layers))

    def param_groups(self, model: Encoder) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser; a group may set its own ``lr_scale`` (a factor) or ``weight_decay``."""
        return [{"params": list(model.parameters())}]

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        """Changes the model before a training step: moves schedules, renews noise, prunes.

        Args:
            model: the model in training.
            progress: the share of the steps that is done, in [0, 1]; the hook is called once more with 1 after the last
                step, so that schedules end where they should and nothing is left undone.
            generator: the gates' stream of random numbers.
            calibration: training batches, for importance scores; made only if they are looked at.
        """

    def extra_losses(self, model: Encoder, output: EncoderOutput, progress: float) -> dict[str, Tensor]:
        """Named scalar terms, already weighted, that are added to the task's loss."""
        return {}

    def for_inference(self, model: Encoder, execution: str = Execution.AUTO) -> Encoder:
        """The model that is evaluated, counted and timed; ``model`` itself is left as it was.

        Raises:
            ValueError: if the model cannot be run in the way asked for.
        """
        return compact(model, execution)


def split_parameters(model: Encoder) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that all methods share, and those of the gates."""
    gates = {id(parameter): parameter for gate in model.gates for parameter in gate.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in gates], list(gates.values())


def gates_apart(model: Encoder, lr_scale: float) -> list[dict[str, Any]]:
    """Parameter groups that train the gates at another rate, and without weight decay.

    Args:
        model: the model.
        lr_scale: factor on the learning rate of the gates' parameters.
    """
    shared, gates = split_parameters(model)
    return [{"params": shared}, {"params": gates, "lr_scale": lr_scale, "weight_decay": 0.0}]

"""Are the executions right on this device? Outputs and gradients against those of ``masked`` in float32.

Shapes: B batch, T tokens, D width, H heads.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from budgetformer.execution import count_executions, masked
from budgetformer.gated_layer import Execution
from suites.executions.layers import Cell, Shape, prepare
from suites.executions.measurement import Answer, Measurement
from suites.records.record import Timed

TOLERANCES = {"bfloat16": 2e-2, "float32": 1e-4}
"""The largest error, by dtype: the largest difference relative to the largest value."""

GRADIENTS = Cell(Shape(16, 29, 64, 4), 0.5, "random")


class WrongResultError(AssertionError):
    """An execution does not give what ``masked`` gives."""


@dataclass(frozen=True, kw_only=True)
class OutputErrors(Measurement):
    """Errors of a cell's outputs, of the same weights and inputs; that of ``masked`` is what the dtype alone costs.

    Attributes:
        cell: the point of the grid.
        dtype: of the layer and its input.
        executions: what is compared, in the order of the metric.
    """

    kind: ClassVar[str] = "outputs"

    cell: Cell
    dtype: str
    executions: tuple[str, ...] = (Execution.AUTO, Execution.GATHERED, Execution.MASKED)

    @property
    def title(self) -> str:
        return f"outputs of {self.cell.title}, {self.dtype}"

    def measure(self) -> Answer:
        """Compares.

        Raises:
            WrongResultError: if an error is above the tolerance, or no number.
        """
        layer, x_BTD, gates_BH, share, _ = prepare(self.cell, self.device, getattr(torch, self.dtype))
        exact = copy.deepcopy(layer).float()
        with torch.inference_mode():
            expected = masked(exact, x_BTD.float(), gates_BH.float(), None)
            with count_executions() as ran:
                layer(x_BTD, gates_BH)
            errors = [_error(layer(x_BTD, gates_BH, execution=name), expected) for name in self.executions]
        _check(dict(zip(self.executions, errors, strict=True)), TOLERANCES[self.dtype])
        metrics = {"active_share": share, "output_errors": errors}
        return Answer(Timed(metrics=metrics, measuring={"dtype": self.dtype, "ran": "+".join(ran)}))


@dataclass(frozen=True, kw_only=True)
class GradientErrors(Measurement):
    """Errors of the gradients of a padded input and of all weights, in float32.

    Attributes:
        executions: what is compared, in the order of the metric.
        gradients: of what, in the order of the metric.
    """

    kind: ClassVar[str] = "gradients"

    executions: tuple[str, ...] = (Execution.AUTO, Execution.GATHERED)
    gradients: tuple[str, ...] = ("x", "qkv.weight", "qkv.bias", "out.weight", "out.bias")

    @property
    def title(self) -> str:
        return f"gradients of {GRADIENTS.title}"

    def measure(self) -> Answer:
        """Compares.

        Raises:
            WrongResultError: if an error is above the tolerance, or no number.
        """
        layer, x_BTD, gates_BH, *_ = prepare(GRADIENTS, self.device)
        layer.requires_grad_(True)
        batch, tokens, *_ = GRADIENTS.shape
        lengths_B1 = torch.arange(tokens - batch, tokens, device=self.device)[:, None]
        mask_BT = torch.arange(tokens, device=self.device) < lengths_B1

        def gradients(execution: str) -> tuple[Tensor, ...]:
            inputs = {"x": x_BTD.clone().requires_grad_(), **dict(layer.named_parameters())}
            y_BTD = layer(inputs["x"], gates_BH, mask_BT, execution)
            return torch.autograd.grad(y_BTD.square().sum(), [inputs[name] for name in self.gradients])

        expected = gradients(Execution.MASKED)
        errors = [list(map(_error, gradients(execution), expected)) for execution in self.executions]
        for execution, of_execution in zip(self.executions, errors, strict=True):
            named = {f"{execution} {name}": error for name, error in zip(self.gradients, of_execution, strict=True)}
            _check(named, TOLERANCES["float32"])
        return Answer(Timed(metrics={"gradient_errors": errors}, measuring={"dtype": "float32"}))


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _check(errors: dict[str, float], tolerance: float) -> None:
    # "Not at most", so that what is no number is wrong too.
    wrong = [f"{name} is wrong by {error:.2g}" for name, error in errors.items() if not error <= tolerance]
    if wrong:
        raise WrongResultError(f"{'; '.join(wrong)}; {tolerance:g} of the largest value is allowed")

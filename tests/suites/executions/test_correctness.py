import math
from typing import Any

import pytest
from torch import Tensor

from budgetformer.execution import EXECUTIONS, masked
from suites.executions.correctness import GradientErrors, OutputErrors, WrongResultError
from suites.executions.layers import Cell, Shape

CELL = Cell(Shape(4, 8, 16, 2), 0.5, "random")


def outputs(dtype: str = "float32") -> OutputErrors:
    return OutputErrors(cell=CELL, dtype=dtype, device="cpu")


def test_errors_are_those_of_each_execution() -> None:
    timed, _ = outputs().measure()
    errors = dict(zip(outputs().question()["executions"], timed.metrics["output_errors"], strict=True))
    assert errors.keys() == {"auto", "gathered", "masked"}
    assert errors["masked"] == 0
    assert max(errors.values()) < 1e-5
    rounded, _ = outputs("bfloat16").measure()
    assert min(rounded.metrics["output_errors"]) > 1e-4  # what the dtype alone costs


def test_gradients_are_compared_one_by_one() -> None:
    timed, _ = GradientErrors(device="cpu").measure()
    question = GradientErrors(device="cpu").question()
    errors = timed.metrics["gradient_errors"]
    assert (len(errors), {len(row) for row in errors}) == (len(question["executions"]), {len(question["gradients"])})
    assert max(map(max, errors)) < 1e-5


@pytest.mark.parametrize("wrong", [1.0, math.nan])
def test_a_wrong_execution_is_named(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Tensor:
        return masked(*arguments) * (1 + wrong)

    monkeypatch.setitem(EXECUTIONS, "gathered", broken)
    with pytest.raises(WrongResultError, match=r"^gathered is wrong by (1|nan); 0.0001 of the largest value is"):
        outputs().measure()
    with pytest.raises(WrongResultError, match=r"^gathered x is wrong by .*; gathered qkv.weight is wrong by "):
        GradientErrors(device="cpu").measure()

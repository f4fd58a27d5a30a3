"""What a search of learning rates found, from the file of ``python -m suites tune``."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from reports.tables.cells import Cell, Column, Failed, Number, Spec, Table, Text, make_table


class Found(NamedTuple):
    """One method on one task: validation accuracy at each factor, None where the training failed; and the choice."""

    task: str
    method: str
    accuracies: Sequence[float | None]
    factor: float


def tuning_table(file: Path) -> Table:
    """A row per task and method: validation accuracy in % at each factor on the recipe's peak learning rate.

    Raises:
        ValueError: if the file is none of these.
        OSError: if it cannot be read.
    """
    try:
        content = json.loads(file.read_bytes())
        points = [float(point) for point in content["points"]]
        rows = [
            Found(task, method, accuracies, content["factors"][task][method])
            for task, of_task in content["accuracies"].items()
            for method, accuracies in of_task.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} was not written by python -m suites tune: {error!r}") from error

    def cell(row: Found, index: int) -> Cell:
        accuracy = row.accuracies[index]
        return Failed() if accuracy is None else Number(100 * accuracy, None, 1, 2)

    columns = [Column(f"accuracy_percent_x{point:.3g}", f"x{point:.3g}", ("all",)) for point in points]
    spec: Spec[Found] = (
        (Column("task", "task", ("all",), "text"), lambda row: Text(row.task)),
        (Column("method", "method", ("all",), "text"), lambda row: Text(row.method)),
        *((column, partial(cell, index=index)) for index, column in enumerate(columns)),
        (Column("factor", "chosen", ("all",), "text"), lambda row: Text(f"x{row.factor:.3g}")),
    )
    note = "Validation accuracy in %, by factor on the recipe's peak learning rate."
    return make_table("Learning rates", spec, rows, (note,))

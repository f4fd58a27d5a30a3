"""The CUDA check: are the executions right on this device, what do they save there, and does a model train?

``python -m suites.executions.cuda --device cuda --out DIR`` needs torch, numpy and this checkout alone.
``--device cpu`` runs the same code, by the wall clock in place of CUDA events.

Shapes: B batch, T tokens, D width, H heads.
"""

import argparse
import copy
import json
import math
import platform
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from baselines.full_mha import FullMHA
from budgetformer.adaptive import BudgetFormer
from budgetformer.encoder import EncoderSpec
from budgetformer.execution import count_executions, masked
from budgetformer.method import Method
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.data.lookup_task import VALUES, num_queries, read_lookup
from suites.definitions.catalog import LOOKUP
from suites.definitions.sources import fingerprint
from suites.executions.grid import CUDA_SHAPES, Cell, Shape, cells, measure, prepare
from suites.measuring.circumstance import commit, gpu
from suites.measuring.timing import Call, interleave
from suites.records.store import write
from suites.training.evaluate import evaluate
from suites.training.loop import train
from suites.training.model import build_model
from suites.training.seeding import Streams

DONE, FAILED, BAD_REQUEST = 0, 1, 2

TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""The largest error of an output, by dtype: the largest difference relative to the largest value."""
TELLING = (0.25, 0.5)
"""The shares of heads that are measured first."""
CHECKED = ("auto", "gathered", "masked")
GRADIENTS = Cell(Shape(16, 29, 64, 4), 0.5, "random")
WARMUP_S = 0.05
SAY_EVERY_S = 5.0
NUM_EVALUATED = 1200

Row = dict[str, Any]


class Extent(NamedTuple):
    """How much is run.

    Attributes:
        cells: of the grid; each is run in every dtype.
        rounds: samples of each call.
        train_rows: inputs to train on.
        epochs: passes over them.
    """

    cells: list[Cell]
    rounds: int
    train_rows: int
    epochs: int


FULL = Extent(cells(CUDA_SHAPES), rounds=15, train_rows=14_400, epochs=LOOKUP.recipe.epochs)
QUICK = Extent(cells([Shape(8, 32, 64, 4)]), rounds=3, train_rows=240, epochs=4)


class Job(NamedTuple):
    """A cell in a dtype."""

    cell: Cell
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{_sizes(self.cell.shape)} {_name(self.dtype)} s={self.cell.s} {self.cell.kind}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and returns its exit code: 0 all is right, 1 something is wrong, 2 bad request."""
    options = _parser().parse_args(arguments)
    try:
        check_device(options.device)
        check_folder(options.out)
    except ValueError as error:
        print(f"suites.executions.cuda: error: {error}", file=sys.stderr)
        return BAD_REQUEST
    report: Row = {"header": header(options.device), "gradients": {}, "training": [], "cells": []}
    report |= {"failed": [], "tracebacks": []}
    try:
        run(report, options.device, QUICK if options.quick else FULL, time.monotonic() + 60 * options.minutes)
    except KeyboardInterrupt:
        report["failed"].append("stopped before its end")
    finally:
        write(options.out / "gpu.json", (json.dumps(report, indent=1) + "\n").encode())
        text = to_markdown(report)
        write(options.out / "gpu.md", text.encode())
    print(text)
    for failure in report["failed"]:
        print(f"suites.executions.cuda: {failure}", file=sys.stderr)
    return FAILED if report["failed"] else DONE


def _parser() -> argparse.ArgumentParser:
    # Without a usage line an error is one line.
    parser = argparse.ArgumentParser(
        prog="suites.executions.cuda",
        usage=argparse.SUPPRESS,
        description="Checks and times the executions on a CUDA device, and trains there; writes JSON and a table.",
        allow_abbrev=False,
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="default: cuda")
    parser.add_argument(
        "--out", type=Path, default=Path("results/gpu"), metavar="DIR", help="for gpu.json and gpu.md; results/gpu"
    )
    parser.add_argument("--minutes", type=_minutes, default=7.0, metavar="M", help="for all of it (default: 7)")
    parser.add_argument("--quick", action="store_true", help="one small shape and a shorter training, in a minute")
    return parser


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")


def check_device(device: str) -> None:
    """Refuses a device that does not work.

    Raises:
        ValueError: if so; says what torch says about it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error that follows says the same
            torch.ones(1, device=device).sum().item()
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {device}: torch {torch.__version__} cannot use it ({reason})") from error


def check_folder(folder: Path) -> None:
    """Makes a folder unless it is there, and refuses one that cannot be written: before the work, not after it.

    Raises:
        ValueError: if so.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}") from error


def header(device: str) -> Row:
    """What the numbers were made with, as plain values; None where something does not exist."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "code_fingerprint": fingerprint(("suites.executions.cuda",)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "device": device,
        "gpu": gpu() if device == "cuda" else None,
    }


def run(report: Row, device: str, extent: Extent, deadline: float) -> None:
    """Runs every part and fills the report as it goes, so that one that is stopped holds what was found.

    The grid is checked first and timed last, so that its timing takes what the rest has left of the time.

    Args:
        report: to be filled.
        device: where.
        extent: how much.
        deadline: when to stop, on the monotonic clock.
    """
    torch.set_float32_matmul_precision("highest")  # torch's default, which NVIDIA's containers change to TF32
    torch.set_num_threads(LOOKUP.recipe.threads)
    jobs = telling_first(extent.cells)
    rows = [asdict(cell) | {"shape": cell.shape._asdict(), "dtype": _name(dtype)} for cell, dtype in jobs]
    work = list(zip(jobs, rows, strict=True))
    failed = report["failed"]
    report["cells"] = rows
    with _noting("gradients", report):
        report["gradients"] = gradient_errors(device)
        failed += _wrong("gradients", report["gradients"], TOLERANCES[torch.float32])
    for job, row in until(deadline, "checking", work):
        with _noting(str(job), report):
            row.update(output_errors(job, device))
            failed += _wrong(str(job), row["errors"], TOLERANCES[job.dtype])
    data = lookup_task(extent.train_rows)
    for method in (FullMHA(), BudgetFormer()):
        with _noting(f"training {method.name}", report):
            trained = train_one(method, data, device, extent.epochs)
            report["training"].append(trained)
            if not math.inf > trained["loss_before"] > trained["loss_after"]:
                failed.append(f"training {method.name}: the loss has not fallen")
    for job, row in until(deadline, "timing", work):
        with _noting(str(job), report):
            row.update(time_cell(job, device, extent.rounds))
    checked = sum("errors" in row for row in rows)
    if checked < len(rows):
        failed.append(f"only {checked} of {len(rows)} cells were checked; --minutes gives it more time")


def telling_first(chosen: Sequence[Cell]) -> list[Job]:
    """The cells in every dtype, in the order in which they are worth having: budgets of interest, then large shapes."""
    jobs = [Job(cell, dtype) for cell in chosen for dtype in TOLERANCES]
    return sorted(jobs, key=lambda job: (job.cell.s not in TELLING, -math.prod(job.cell.shape[:3])))


class Progress:
    """Says on standard error, every few seconds, how far a part is and how long it will still take at most.

    Args:
        part: its name.
        deadline: when it stops, on the monotonic clock.
    """

    def __init__(self, part: str, deadline: float = math.inf) -> None:
        self.part = part
        self.deadline = deadline
        self.start = self.said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done and now >= self.said + SAY_EVERY_S:
            left = min((now - self.start) / done * (total - done), self.deadline - now)
            print(f"{self.part}: {done} of {total}, {max(left, 0):.0f} s left", file=sys.stderr, flush=True)
            self.said = now


def until(deadline: float, part: str, work: Sequence[tuple[Job, Row]]) -> Iterator[tuple[Job, Row]]:
    """What is to be done, up to a deadline on the monotonic clock."""
    progress = Progress(part, deadline)
    for done, each in enumerate(work):
        progress(done, len(work))
        if time.monotonic() >= deadline:
            return
        yield each


@contextmanager
def _noting(what: str, report: Row) -> Iterator[None]:
    """Notes an error, such as of a kernel or of memory that is missing: the rest is still worth having."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0]
        report["failed"].append(f"{what}: {type(error).__name__}: {reason}")
        report["tracebacks"].append(traceback.format_exc())


def _wrong(what: str, errors: Mapping[str, float], tolerance: float) -> list[str]:
    return [
        f"{what}: {name} is wrong, its error is {error:.2g}, above {tolerance:g}"
        for name, error in errors.items()
        if not error <= tolerance  # nor may it be no number
    ]


def output_errors(job: Job, device: str) -> Row:
    """Compares the outputs of a cell with those of ``masked`` in float32, of the same weights and inputs.

    Returns:
        ``share`` (mean k / H), ``ran`` (what ``auto`` chose), and the ``errors`` by execution: the largest difference,
        relative to the largest output. That of ``masked`` is what the dtype alone costs.
    """
    layer, x_BTD, gates_BH, share, _ = prepare(job.cell, device, job.dtype)
    exact = copy.deepcopy(layer).float()
    with torch.inference_mode():
        expected = masked(exact, x_BTD.float(), gates_BH.float(), None)
        with count_executions() as ran:
            layer(x_BTD, gates_BH)
        found = {name: layer(x_BTD, gates_BH, execution=name) for name in CHECKED}
        errors = {name: _error(y_BTD, expected) for name, y_BTD in found.items()}
    return {"share": share, "ran": "+".join(ran), "errors": errors}


def gradient_errors(device: str) -> dict[str, float]:
    """The errors of the gradients of a padded input and of all weights, against those of ``masked``, in float32."""
    layer, x_BTD, gates_BH, *_ = prepare(GRADIENTS, device)
    layer.requires_grad_(True)
    batch, tokens, *_ = GRADIENTS.shape
    mask_BT = torch.arange(tokens, device=device) < torch.arange(tokens - batch, tokens, device=device)[:, None]

    def gradients(execution: str) -> dict[str, Tensor]:
        wanted = {"x": x_BTD.clone().requires_grad_(), **dict(layer.named_parameters())}
        y_BTD = layer(wanted["x"], gates_BH, mask_BT, execution)
        return dict(zip(wanted, torch.autograd.grad(y_BTD.square().sum(), list(wanted.values())), strict=True))

    expected = gradients("masked")
    return {
        f"{execution} {name}": _error(gradient, expected[name])
        for execution in ("auto", "gathered")
        for name, gradient in gradients(execution).items()
    }


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).abs().max() / expected.abs().max())


def time_cell(job: Job, device: str, rounds: int) -> Row:
    """Times a cell, by CUDA events where there are any; see ``suites.executions.grid.measure``."""
    clock = by_events if device == "cuda" else interleave

    def timer(calls: Mapping[str, Call]) -> dict[str, list[float]]:
        return clock(calls, device=device, rounds=rounds, warmup_s=WARMUP_S)

    return measure(job.cell, device=device, dtype=job.dtype, timer=timer)


def by_events(calls: Mapping[str, Call], *, device: str, rounds: int, warmup_s: float) -> dict[str, list[float]]:
    """As ``interleave``, which orders the calls and waits before each of them, but timed by CUDA events.

    A sample begins on an idle device and ends with its last kernel: what launching takes is in it where the device
    waits for it, and what telling Python of the end takes is not.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}

    def timed(call: Call, into: list[float]) -> Call:
        def run() -> None:
            start, end = _event(), _event()
            start.record()
            call()
            end.record()
            end.synchronize()
            into.append(start.elapsed_time(end) / 1000)

        return run

    made = {name: timed(call, samples[name]) for name, call in calls.items()}
    interleave(made, device=device, rounds=rounds, warmup_s=warmup_s)
    return {name: values[-rounds:] for name, values in samples.items()}  # those before are of the warm-up


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch leaves it untyped


def lookup_task(train_rows: int) -> EncodedTask:
    """The task ``lookup``, each word a token: 0 is padding and 1 is [CLS]."""
    labels, texts, _ = zip(*read_lookup(), strict=True)
    words = sorted({word for text in texts for word in text.split()})
    number = {word: index for index, word in enumerate(words, start=2)}

    def split(rows: range) -> EncodedSplit:
        return EncodedSplit(
            [np.array([1, *(number[word] for word in texts[row].split())]) for row in rows],
            np.array([labels[row] for row in rows]),
            np.array(rows),
            np.array([num_queries(texts[row]) for row in rows]),
        )

    validation, test = len(texts) - 2 * NUM_EVALUATED, len(texts) - NUM_EVALUATED
    return EncodedTask(
        split(range(train_rows)),
        split(range(validation, test)),
        split(range(test, len(texts))),
        vocab_size=len(words) + 2,
        num_classes=len(VALUES),
    )


def train_one(method: Method, data: EncodedTask, device: str, epochs: int) -> Row:
    """Trains a method on ``lookup`` by its recipe.

    Returns:
        ``method``; ``loss_before`` and ``loss_after``, means over the training split of the model that would be run;
        its ``accuracy`` on the test split; ``seconds_per_step`` (median); what ``auto`` ``ran`` in evaluation, in calls
        of a layer; and the ``history`` of ``suites.training.loop.train``.

    Raises:
        RuntimeError: if training diverges.
    """
    recipe = replace(LOOKUP.recipe, epochs=epochs)
    spec = EncoderSpec(
        vocab_size=data.vocab_size,
        num_classes=data.num_classes,
        max_length=LOOKUP.max_length,
        dropout=recipe.dropout,
        token_dropout=recipe.token_dropout,
        embedding_std=recipe.embedding_std,
    )
    streams = Streams(LOOKUP.name, 0)
    model = build_model(spec, method, streams, device)
    progress = Progress(f"training {method.name}")
    ends: list[float] = []

    def on_step(step: int, num_steps: int) -> None:
        ends.append(time.perf_counter())  # the loss was read, so the device has finished the step
        progress(step, num_steps)

    before = evaluate(method.for_inference(model), data.train, device)
    history = train(model, method, data, recipe=recipe, streams=streams, device=device, on_step=on_step)
    trained = method.for_inference(model)
    after = evaluate(trained, data.train, device)
    with count_executions() as ran:
        accuracy = evaluate(trained, data.test, device).accuracy
    return {
        "method": method.name,
        "loss_before": float(before.arrays["loss"].mean()),
        "loss_after": float(after.arrays["loss"].mean()),
        "accuracy": accuracy,
        "seconds_per_step": statistics.median(end - start for start, end in pairwise(ends)),
        "ran": dict(ran),
        "history": history,
    }


def to_markdown(report: Row) -> str:
    """The report as tables."""
    made, rows = report["header"], report["cells"]
    card = made["gpu"] or {"names": ["no GPU"], "capabilities": ["--"], "cuda": None, "driver": None}
    timed = [row for row in rows if "samples" in row]
    chosen = [row["ran"] == _faster(row) for row in timed if row.get("ran") in ("gathered", "masked")]
    lines = [
        "# CUDA check",
        "",
        f"torch {made['torch']}, CUDA {card['cuda']}, driver {card['driver']}, {card['names'][0]} "
        f"(capability {card['capabilities'][0]}), device {made['device']}, commit {made['commit']}, {made['started']}",
        "",
        f"- Checked: {sum('errors' in row for row in rows)} of {len(rows)} cells; timed: {len(timed)} of {len(rows)}.",
        f"- `auto` ran the faster one of gathered and masked in {sum(chosen)} of {len(chosen)} cells.",
        f"- Largest error of a gradient: {_number('{:.1e}', _largest(report['gradients'].values()))}.",
        *(f"- **Failed: {failure}**" for failure in report["failed"]),
        "",
        *_table([_training_row(trained) for trained in report["training"]]),
        "",
        *_table([_cell_row(row) for row in rows]),
        "",
        "Ratios of times are medians over rounds; bound: a layer that physically has the mean number of heads. Error: "
        "the larger one of `auto` and `gathered`, against `masked` in float32. Loss: on the training split.",
        "",
    ]
    return "\n".join(lines)


def _training_row(trained: Row) -> dict[str, str]:
    return {
        "method": trained["method"],
        "loss before": f"{trained['loss_before']:.4f}",
        "loss after": f"{trained['loss_after']:.4f}",
        "test accuracy, %": f"{100 * trained['accuracy']:.2f}",
        "ms per step": f"{1e3 * trained['seconds_per_step']:.2f}",
        "auto ran": ", ".join(trained["ran"]),
    }


def _cell_row(row: Row) -> dict[str, str]:
    errors, ratios, seconds = (row.get(part, {}) for part in ("errors", "ratios", "seconds"))
    return {
        "B x T x D x H": _sizes(row["shape"].values()),
        "dtype": row["dtype"],
        "s": f"{row['s']}",
        "sets": row["kind"],
        "heads, share": _number("{:.3f}", row.get("share")),
        "full, ms": _number("{:.3f}", 1e3 * seconds["full"] if seconds else None),
        "auto / full": _number("{:.3f}", ratios.get("auto / full")),
        "auto / bound": _number("{:.3f}", ratios.get("auto / bound")),
        "error": _number("{:.1e}", _largest([errors["auto"], errors["gathered"]] if errors else [])),
        "auto ran": row.get("ran", "--"),
        "gathered / masked": _number("{:.3f}", ratios.get("gathered / masked")),
        "faster": _faster(row) if ratios else "--",
    }


def _faster(row: Row) -> str:
    return "gathered" if row["ratios"]["gathered / masked"] < 1 else "masked"


def _largest(errors: Iterable[float]) -> float | None:
    """The largest number, or the one that is none."""
    return max(errors, key=lambda error: (math.isnan(error), error), default=None)


def _number(form: str, value: float | None) -> str:
    return "--" if value is None else form.format(value)


def _table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Lines of a Markdown table; none without rows."""
    if not rows:
        return []
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows))]


def _sizes(shape: Any) -> str:
    return "x".join(map(str, shape))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(main())

"""The command line of the harness: ``python -m suites``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from suites.plan import Options

# Everything that imports torch is imported by the command that needs it, so that --help and a typing error are quick.
# ruff: noqa: PLC0415

DONE, FAILED, BAD_REQUEST = 0, 1, 2
MOST_SEEDS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad request."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, OSError) as error:
        print(f"suites: error: {error}", file=sys.stderr)
        return BAD_REQUEST
    except BrokenExecutor:
        print("suites: a worker was killed, perhaps for want of memory; --jobs 1 needs less", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("suites: stopped; the same command goes on with what is missing", file=sys.stderr)
        return FAILED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse prints its usage too."""
        self.exit(BAD_REQUEST, f"suites: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m suites", description="Runs the bench's suites.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, help_text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        added.set_defaults(command=function)
        return added

    command("list", _list, "Lists the suites, tasks and methods.")
    plan = command("plan", _plan, "Shows the trials of a suite, and which have a result already.")
    run = command("run", _run, "Runs a suite; what has a result already is not run again.")
    for each in (plan, run):
        each.add_argument("suite", metavar="SUITE", help="name of a suite; see: python -m suites list")
        each.add_argument("--results", type=Path, metavar="DIR", help="results folder (default: results/SUITE)")
        each.add_argument("--method", action="append", default=[], metavar="NAME", help="only this method; repeatable")
        each.add_argument("--task", action="append", default=[], metavar="NAME", help="only this task; repeatable")
        each.add_argument("--seeds", type=_seeds, default=[], metavar="N|a,b,c", help="number of seeds, or a list")
        each.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default: cuda if there")
        each.add_argument("--execution", default="auto", metavar="NAME", help="auto, masked, sliced or gathered")
        each.add_argument("--deterministic", action="store_true", help="train with deterministic algorithms alone")
        each.add_argument(
            "--rerun",
            default="failed",
            choices=["never", "failed", "stale", "always"],
            help="run again: nothing, what failed (default), also what other source code made, or everything",
        )
    run.add_argument(
        "--jobs", type=_jobs, metavar="N", help="trials at a time (default: what the allowed cores can take)"
    )
    run.add_argument("--report", action="store_true", help="end with the tables and figures of the results folder")
    data = command("data", _data, "Describes a task: rows, classes, lengths, licence, examples.")
    data.add_argument("task", metavar="TASK", help="name of a task; see: python -m suites list")
    command("environment", _environment, "Prints what a record keeps of this machine and this code.")
    return parser


def _seeds(text: str) -> list[int]:
    """``3`` is the seeds 0, 1, 2; ``4,7`` is those two."""
    try:
        numbers = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor a list such as 0,1,2") from None
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"a seed must not be negative, not {min(numbers)}")
    if "," in text:
        return numbers
    if not 0 < numbers[0] <= MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text} is a number of seeds; for that seed alone write --seeds {text},")
    return list(range(numbers[0]))


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of jobs; give 1 or more")
    return int(text)


def _list(_: argparse.Namespace) -> int:
    from suites.definitions import SUITES
    from suites.registry import known_methods
    from suites.tasks import TASKS

    print("suites:")
    for suite in (make() for make in SUITES.values()):
        print(f"  {suite.name:16} {suite.summary}")
    print("tasks:")
    for task in TASKS.values():
        print(f"  {task.name:16} {len(task.labels)} classes; {task.licence}")
    print("methods:")
    for name, method in known_methods().items():
        print(f"  {name:16} {(method.__doc__ or '').strip().splitlines()[0]}")
    return DONE


def _request(options: argparse.Namespace) -> Options:
    import torch

    from suites.plan import Options

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return Options(
        methods=options.method,
        tasks=options.task,
        seeds=options.seeds,
        device=device,
        execution=options.execution,
        deterministic=options.deterministic,
    )


def _plan(options: argparse.Namespace) -> int:
    from suites.definitions import find_suite
    from suites.environment import describe
    from suites.plan import is_stale, make_plan
    from suites.record import question_id
    from suites.store import Store

    suite = find_suite(options.suite)
    trials = make_plan(suite, _request(options))
    contents = Store(_results(options), create=False).load()
    circumstance = describe(trials[0].device)
    counts = dict.fromkeys(("missing", "done", "stale", "failed"), 0)
    for trial in trials:
        record = contents.records.get(question_id(trial.question()))
        status: str = "missing" if record is None else record.status
        if record is not None and status == "done" and is_stale(record, circumstance):
            status = "stale"
        counts[status] += 1
        print(f"{status:8} {trial.title}")
    print(f"{len(trials)} trials: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return DONE


def _run(options: argparse.Namespace) -> int:
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, when CUDA starts
    from suites.definitions import find_suite
    from suites.engine import default_jobs, run
    from suites.plan import make_plan
    from suites.store import Store

    suite = find_suite(options.suite)
    trials = make_plan(suite, _request(options))
    for trial in trials:
        trial.question()  # reads the texts: if they are missing, no folder is made
    results = _results(options)
    store = Store(results)
    for path, reason in store.load().bad.items():
        print(f"suites: passed over {path}: {reason}", file=sys.stderr)
    print(f"{suite.name}: {len(trials)} trials; results in {results}", file=sys.stderr)
    outcome = run(trials, store, options.rerun, options.jobs or default_jobs(trials))
    print(f"{outcome.ran} trials run, {outcome.reused} had a result already", file=sys.stderr)
    if outcome.stale:
        print(
            f"{outcome.stale} results are of other code or versions; --rerun stale makes them anew",
            file=sys.stderr,
        )
    for failure in outcome.failed:
        print(f"failed: {failure}", file=sys.stderr)
    if options.report:
        # Another process: the harness does not import what reads its records.
        report = subprocess.run([sys.executable, "-m", "reports", "all", str(results)], check=False)
        if report.returncode:
            return report.returncode
    return FAILED if outcome.failed else DONE


def _results(options: argparse.Namespace) -> Path:
    folder: Path = options.results or Path("results") / options.suite
    return folder


def _data(options: argparse.Namespace) -> int:
    import numpy as np

    from suites.data import load_splits

    splits = load_splits(options.task)
    print(f"{splits.task.name}: {', '.join(f'{count} {name}' for name, count in splits.rows.items())} rows")
    print(f"licence: {splits.task.licence}\ntexts: {splits.task.package}\nfingerprint: {splits.fingerprint}")
    for name, part in (("train", splits.train), ("validation", splits.validation), ("test", splits.test)):
        counts = np.bincount(part[:]["label"])
        words = np.array([len(text.split()) for text in part[:]["text"]])
        shares = ", ".join(f"{label} {count}" for label, count in zip(splits.task.labels, counts, strict=True))
        p5, p50, p95 = np.percentile(words, [5, 50, 95])
        print(f"{name}: {shares}; majority {counts.max() / counts.sum():.3f}; words {p5:.0f}/{p50:.0f}/{p95:.0f}")
    print("(words: 5th, 50th and 95th percentile)")
    for row in splits.train.select(range(3)):
        print(f"  [{splits.task.labels[row['label']]}] {row['text'][:100]}")
    return DONE


def _environment(_: argparse.Namespace) -> int:
    import torch

    from suites.environment import describe

    print(json.dumps(describe("cuda" if torch.cuda.is_available() else "cpu"), indent=1))
    return DONE


if __name__ == "__main__":
    sys.exit(main())

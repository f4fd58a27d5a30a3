"""The command line of the harness: ``python -m suites``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from suites.measuring.energy import Electricity
    from suites.records.store import Store
    from suites.sweep.engine import Outcome
    from suites.sweep.plan import Options, Trial

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

    listing = command("list", _list, "Lists the suites, tasks and methods.")
    plan = command("plan", _plan, "Shows the trials of a suite, and which have a result already.")
    run = command("run", _run, "Runs a suite; what has a result already is not run again.")
    tune = command("tune", _tune, "Searches a peak learning rate for every method of a suite, the same way for all.")
    for each in (listing, plan, run, tune):
        each.add_argument(
            "--plugin", action="append", default=[], type=Path, metavar="FILE.py", help="your methods; repeatable"
        )
    for each in (plan, run, tune):
        each.add_argument("suite", metavar="SUITE", help="name of a suite; see: python -m suites list")
        each.add_argument("--results", type=Path, metavar="DIR", help="results folder (default: results/SUITE)")
        each.add_argument("--method", action="append", default=[], metavar="NAME", help="only this method; repeatable")
        each.add_argument("--task", action="append", default=[], metavar="NAME", help="only this task; repeatable")
        each.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default: cuda if there")
        each.add_argument(
            "--rerun",
            default="failed",
            choices=["never", "failed", "stale", "always"],
            help="run again: nothing, what failed (default), also what other source code made, or everything",
        )
    for each in (plan, run):
        each.add_argument("--seeds", type=_seeds, default=[], metavar="N|a,b,c", help="number of seeds, or a list")
        each.add_argument(
            "--execution", default="auto", metavar="NAME", help="auto, masked, gathered, compiled or sliced"
        )
        each.add_argument("--deterministic", action="store_true", help="train with deterministic algorithms alone")
        each.add_argument("--tuned", type=Path, metavar="FILE", help="use the learning rates that tune wrote there")
    for each in (run, tune):
        each.add_argument(
            "--jobs",
            type=_number_of("jobs"),
            metavar="N",
            help="trials at a time (default: what the allowed cores can take)",
        )
    tune.set_defaults(seeds=[], execution="auto", deterministic=False, electricity=None)
    tune.add_argument(
        "--trials", type=_number_of("trials"), default=5, metavar="N", help="rates to try for each method (default: 5)"
    )
    run.add_argument("--report", action="store_true", help="end with the tables and figures of the results folder")
    electricity = run.add_mutually_exclusive_group()
    for option, kind, metavar, help_text in (
        ("--country", _of_country, "ISO3", "CO2 by a country's mean electricity, such as DEU (default: the world's)"),
        ("--intensity", _of_intensity, "G_PER_KWH", "CO2 by this carbon intensity of your electricity, in g/kWh"),
    ):
        electricity.add_argument(option, dest="electricity", type=kind, metavar=metavar, help=help_text)
    execution = command("execution", _execution, "Measures what skipping heads saves: layers, encoders, peers, memory.")
    execution.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default: cuda if there")
    execution.add_argument("--rounds", type=_number_of("rounds"), default=9, metavar="N", help="per call (default: 9)")
    execution.add_argument(
        "--part", action="append", choices=["grid", "encoders", "peers", "memory"], help="only this part; repeatable"
    )
    execution.add_argument("--quick", action="store_true", help="a corner of the grid: a few minutes")
    execution.add_argument(
        "--results", type=Path, default=Path("results/execution"), metavar="DIR", help="default: results/execution"
    )
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


def _number_of(what: str) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {what}; give 1 or more")
        return int(text)

    return number


def _of_country(text: str) -> Electricity:
    from suites.measuring.energy import electricity_of

    try:
        return electricity_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _of_intensity(text: str) -> Electricity:
    from suites.measuring.energy import Electricity

    try:
        return Electricity(float(text), "stated with --intensity")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no carbon intensity; give g/kWh, 0 or more") from None


def _list(options: argparse.Namespace) -> int:
    from suites.data.tasks import TASKS
    from suites.definitions.catalog import SUITES
    from suites.definitions.registry import known_methods, load_plugin

    for file in options.plugin:
        load_plugin(file)
    print("suites:")
    for suite in (make() for make in SUITES.values()):
        print(f"  {suite.name:16} {suite.summary}")
    print("tasks:")
    for task in TASKS.values():
        print(f"  {task.name:16} {len(task.labels)} classes; {task.licence}")
    print("methods:")
    for name, method in known_methods().items():
        summary, *_ = (method.__doc__ or "").strip().split("\n")
        print(f"  {name:16} {summary}")
    return DONE


def _device(options: argparse.Namespace) -> str:
    import torch

    device: str = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return device


def _request(options: argparse.Namespace) -> Options:
    from suites.definitions.registry import load_plugin
    from suites.sweep.plan import Options

    return Options(
        methods=options.method,
        plugins=list(dict.fromkeys(method for file in options.plugin for method in load_plugin(file))),
        tasks=options.task,
        seeds=options.seeds,
        device=_device(options),
        execution=options.execution,
        deterministic=options.deterministic,
    )


def _trials(options: argparse.Namespace) -> list[Trial]:
    """What ``plan`` shows and ``run`` runs."""
    from suites.definitions.catalog import find_suite
    from suites.sweep.plan import make_plan
    from suites.sweep.tune import read_factors, with_factors

    trials = make_plan(find_suite(options.suite), _request(options))
    if options.tuned is None:
        return trials
    suite, factors = read_factors(options.tuned)
    if suite != options.suite:
        raise ValueError(
            f"--tuned {options.tuned} is of suite {suite}; python -m suites tune {options.suite} makes one"
        )
    trials, unknown = with_factors(trials, factors)
    for name in unknown:
        print(f"suites: {options.tuned} has no factor for {name}; kept at 1", file=sys.stderr)
    return trials


def _plan(options: argparse.Namespace) -> int:
    from suites.measuring.environment import describe
    from suites.records.record import question_id
    from suites.records.store import Store
    from suites.sweep.plan import is_stale

    trials = _trials(options)
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
    results = _results(options)
    outcome, _ = _execute(options, _trials(options), results)
    if options.report:
        # Another process: the harness does not import what reads its records.
        report = subprocess.run([sys.executable, "-m", "reports", "all", str(results)], check=False)
        if report.returncode:
            return report.returncode
    return FAILED if outcome.failed else DONE


def _tune(options: argparse.Namespace) -> int:
    from suites.definitions.catalog import find_suite
    from suites.sweep.tune import choices, search_points, to_table, tuning_trials, write_factors

    points = search_points(options.trials)
    trials = tuning_trials(find_suite(options.suite), _request(options), points)
    results = _results(options)
    _, store = _execute(options, trials, results / "tuning")
    chosen = choices(trials, store.load().records)
    print("Validation accuracy in %, by factor on the recipe's peak learning rate:\n")
    print(to_table(chosen))
    tuned = results / "tuned.json"
    write_factors(tuned, options.suite, points, chosen)
    print(f"\n{tuned}")
    at_end = [f"{choice.task}, {choice.method} (x{choice.factor:.3g})" for choice in chosen if choice.at_end]
    if at_end:
        print(f"suites: best at an end of the range, which may be too small: {'; '.join(at_end)}", file=sys.stderr)
    failed = [f"{choice.task}, {choice.method}" for choice in chosen if choice.failed]
    if failed:
        print(f"suites: all points failed, the factor stays 1: {'; '.join(failed)}", file=sys.stderr)
    return FAILED if failed else DONE


def _execute(options: argparse.Namespace, trials: Sequence[Trial], folder: Path) -> tuple[Outcome, Store]:
    """Runs what is missing of some trials in a results folder, and says how it went."""
    from suites.measuring.energy import WORLD
    from suites.records.store import Store
    from suites.sweep.engine import default_jobs, run

    for trial in trials:
        trial.question()  # reads the texts: if they are missing, no folder is made
    store = Store(folder)
    for path, reason in store.load().bad.items():
        print(f"suites: passed over {path}: {reason}", file=sys.stderr)
    print(f"{options.suite}: {len(trials)} trials; results in {folder}", file=sys.stderr)
    jobs = options.jobs or default_jobs(trials)
    outcome = run(trials, store, options.rerun, jobs, options.electricity or WORLD)
    print(f"{outcome.ran} trials run, {outcome.reused} had a result already", file=sys.stderr)
    if outcome.stale:
        print(
            f"{outcome.stale} results are of other code or versions; --rerun stale makes them anew",
            file=sys.stderr,
        )
    for failure in outcome.failed:
        print(f"failed: {failure}", file=sys.stderr)
    return outcome, store


def _results(options: argparse.Namespace) -> Path:
    folder: Path = options.results or Path("results") / options.suite
    return folder


def _data(options: argparse.Namespace) -> int:
    import numpy as np

    from suites.data.splits import load_splits

    splits = load_splits(options.task)
    print(f"{splits.task.name}: {', '.join(f'{count} {name}' for name, count in splits.rows.items())} rows")
    print(f"licence: {splits.task.licence}\ntexts: {splits.task.package or 'generated'}")
    print(f"fingerprint: {splits.fingerprint}")
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


def _execution(options: argparse.Namespace) -> int:
    from suites.executions.encoders import PARTS, headline, parts_to_measure
    from suites.measuring.environment import describe, package_version
    from suites.measuring.sharing import Share
    from suites.records.store import write
    from suites.sweep.progress import Progress

    device = _device(options)
    circumstance = describe(device)
    # Not among the versions of every record: it is a peer's, and changes no result of a trial.
    circumstance["versions"]["transformers"] = package_version("transformers")
    print(f"kernel: {circumstance['kernel']}; results in {options.results}", file=sys.stderr)
    options.results.mkdir(parents=True, exist_ok=True)  # before the work, so that it is not lost for want of a folder
    content: dict[str, Any] = {"circumstance": circumstance, "rounds": options.rounds, **{part: [] for part in PARTS}}
    wanted = options.part or PARTS
    parts = [part for part in parts_to_measure(device, options.rounds, options.quick) if part[0] in wanted]
    with Progress(len(parts)) as progress:
        for part, title, function in parts:
            with Share().alone():
                rows = function()
            progress.end(title, "; ".join(map(headline, rows)))
            content[part] += rows  # written each time: what was measured before an interruption is not lost
            write(options.results / "execution.json", (json.dumps(content, indent=1) + "\n").encode())
    # Another process: the harness does not import what reads its records.
    command = [sys.executable, "-m", "reports", "execution", str(options.results)]
    return subprocess.run(command, check=False).returncode


def _environment(_: argparse.Namespace) -> int:
    import torch

    from suites.measuring.environment import describe

    print(json.dumps(describe("cuda" if torch.cuda.is_available() else "cpu"), indent=1))
    return DONE


if __name__ == "__main__":
    sys.exit(main())

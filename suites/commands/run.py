"""``python -m suites run``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from suites.commands.arguments import DONE, FAILED, Command, add_choice, add_jobs, add_question, results_of
from suites.commands.plan import trials_of

if TYPE_CHECKING:
    from suites.measuring.energy import Electricity
    from suites.records.store import Store
    from suites.sweep.engine import Do, Outcome
    from suites.sweep.trial import Trial

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is run, and how."""
    add_choice(parser)
    add_question(parser)
    add_jobs(parser)
    parser.add_argument(
        "--keep-models", action="store_true", help="keep the trained weights beside each record, for --remeasure"
    )
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="train nothing: measure time, energy and memory of the kept weights again, and nothing else",
    )
    parser.add_argument("--report", action="store_true", help="end with the tables and figures of the results folder")
    electricity = parser.add_mutually_exclusive_group()
    for option, kind, metavar, help_text in (
        ("--country", _of_country, "ISO3", "CO2 by a country's mean electricity, such as DEU (default: the world's)"),
        ("--intensity", _of_intensity, "G_PER_KWH", "CO2 by this carbon intensity of your electricity, in g/kWh"),
    ):
        electricity.add_argument(option, dest="electricity", type=kind, metavar=metavar, help=help_text)


def run(options: argparse.Namespace) -> int:
    """Runs what is missing of a suite, and reports if that is asked for."""
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, when CUDA starts
    from suites.measuring.energy import WORLD
    from suites.sweep.stages import run_trial

    results = results_of(options)
    trials = trials_of(options)
    electricity = options.electricity or WORLD
    if options.remeasure:
        outcome = remeasure(options, trials, results, electricity)
    else:
        do = partial(run_trial, electricity=electricity, keep_weights=options.keep_models)
        outcome, _ = execute(options, trials, results, do)
    if options.report:
        code = report("all", results)
        if code:
            return code
    return FAILED if outcome.failed else DONE


def execute(options: argparse.Namespace, trials: Sequence[Trial], folder: Path, do: Do) -> tuple[Outcome, Store]:
    """Does what is missing of some trials in a results folder, and says how it went."""
    from suites.data.manifest import check_manifest
    from suites.records.store import Store
    from suites.sweep import engine

    store = Store(folder, create=False)  # made when what is missing is known, and can be run
    for path, reason in store.load().bad.items():
        print(f"suites: passed over {path}: {reason}", file=sys.stderr)

    def prepare(missing: Sequence[Trial]) -> None:
        for task in {trial.task for trial in missing}:
            check_manifest(task)
        store.make()
        print(f"{options.suite}: {len(trials)} trials; results in {folder}", file=sys.stderr)

    outcome = engine.run(
        trials,
        do,
        store,
        device=trials[0].device,
        rerun=options.rerun,
        workers=options.jobs or engine.default_workers(trials),
        watch_idle=not trials[0].tuning,
        prepare=prepare,
    )
    print(f"{outcome.ran} trials run, {outcome.reused} had a result already", file=sys.stderr)
    say_what_is_wrong(outcome)
    return outcome, store


def remeasure(options: argparse.Namespace, trials: Sequence[Trial], folder: Path, electricity: Electricity) -> Outcome:
    """Measures the kept models of some trials again.

    Raises:
        ValueError: if no trial has one.
    """
    from suites.records.store import Store
    from suites.sweep import engine
    from suites.sweep.stages import measure_again

    if options.keep_models or options.jobs or options.rerun != "failed":
        raise ValueError(
            "--remeasure goes through all kept weights, one by one, without --keep-models, --jobs or --rerun"
        )
    store = Store(folder, create=False)
    records = store.load().records
    kept = [trial for trial in trials if (old := records.get(trial.id)) and old.learned.weights]
    if not kept:
        raise ValueError(
            f"--remeasure: {folder} has no trained weights of these trials; run --keep-models --rerun always keeps some"
        )
    print(f"{options.suite}: weights kept of {len(kept)} of {len(trials)} trials in {folder}", file=sys.stderr)
    do = partial(measure_again, electricity=electricity, store=store)
    outcome = engine.run(kept, do, store, device=kept[0].device, rerun="always")
    print(f"{outcome.ran} trials measured again", file=sys.stderr)
    say_what_is_wrong(outcome)
    return outcome


def say_what_is_wrong(outcome: Outcome) -> None:
    """Tells of what failed, of what others are at, and of what is there but of other code."""
    if outcome.taken:
        print(
            f"suites: {outcome.taken} are being run by another command in the same folder, which will store them",
            file=sys.stderr,
        )
    if outcome.stale:
        print(
            f"{outcome.stale} results are of other code or versions; --rerun stale makes them anew",
            file=sys.stderr,
        )
    for failure in outcome.failed:
        print(f"failed: {failure}", file=sys.stderr)


def report(command: str, folder: Path) -> int:
    """Runs a command of ``python -m reports`` and returns its exit code."""
    # Another process: the harness does not import what reads its records.
    return subprocess.run([sys.executable, "-m", "reports", command, str(folder)], check=False).returncode


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


COMMAND = Command("run", "Runs a suite; what has a result already is not run again.", add_arguments, run)

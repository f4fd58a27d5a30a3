"""``python -m suites run``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suites.commands.arguments import DONE, FAILED, Command, add_choice, add_jobs, add_question, results_of
from suites.commands.plan import trials_of

if TYPE_CHECKING:
    from suites.measuring.energy import Electricity
    from suites.records.store import Store
    from suites.sweep.engine import Outcome
    from suites.sweep.planning import Trial

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is run, and how."""
    add_choice(parser)
    add_question(parser)
    add_jobs(parser)
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
    results = results_of(options)
    outcome, _ = execute(options, trials_of(options), results, options.electricity)
    if options.report:
        code = report("all", results)
        if code:
            return code
    return FAILED if outcome.failed else DONE


def execute(
    options: argparse.Namespace, trials: Sequence[Trial], folder: Path, electricity: Electricity | None = None
) -> tuple[Outcome, Store]:
    """Runs what is missing of some trials in a results folder, and says how it went."""
    from suites.measuring.energy import WORLD
    from suites.records.store import Store
    from suites.sweep import engine

    for trial in trials:
        trial.question()  # reads the texts: if they are missing, no folder is made
    store = Store(folder)
    for path, reason in store.load().bad.items():
        print(f"suites: passed over {path}: {reason}", file=sys.stderr)
    print(f"{options.suite}: {len(trials)} trials; results in {folder}", file=sys.stderr)
    jobs = options.jobs or engine.default_jobs(trials)
    outcome = engine.run(trials, store, options.rerun, jobs, electricity or WORLD)
    print(f"{outcome.ran} trials run, {outcome.reused} had a result already", file=sys.stderr)
    if outcome.stale:
        print(
            f"{outcome.stale} results are of other code or versions; --rerun stale makes them anew",
            file=sys.stderr,
        )
    for failure in outcome.failed:
        print(f"failed: {failure}", file=sys.stderr)
    return outcome, store


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

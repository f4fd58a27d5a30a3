"""``python -m suites plan``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from suites.commands.arguments import DONE, Command, add_choice, add_question, request_of, results_of

if TYPE_CHECKING:
    from suites.sweep.trial import Trial

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is planned."""
    add_choice(parser)
    add_question(parser)


def trials_of(options: argparse.Namespace) -> list[Trial]:
    """What ``plan`` shows and ``run`` runs.

    Raises:
        ValueError: for a suite, method, task or option that cannot be had.
    """
    from suites.definitions.catalog import find_suite
    from suites.sweep.planning import make_plan
    from suites.sweep.tuning import read_factors, with_factors

    trials = make_plan(find_suite(options.suite), request_of(options))
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


def run(options: argparse.Namespace) -> int:
    """Prints a line per trial, and how many there are of each kind."""
    from suites.measuring.circumstance import describe
    from suites.records.record import question_id
    from suites.records.store import Store
    from suites.sweep.planning import circumstance_of, is_stale

    trials = trials_of(options)
    contents = Store(results_of(options), create=False).load()
    circumstance = describe(trials[0].device)
    counts = dict.fromkeys(("missing", "done", "stale", "failed"), 0)
    for trial in trials:
        record = contents.records.get(question_id(trial.question()))
        status: str = "missing" if record is None else record.status
        if record is not None and status == "done" and is_stale(record, circumstance_of(trial, circumstance)):
            status = "stale"
        counts[status] += 1
        print(f"{status:8} {trial.title}")
    print(f"{len(trials)} trials: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return DONE


COMMAND = Command("plan", "Shows the trials of a suite, and which have a result already.", add_arguments, run)

"""``python -m suites tune``."""

import argparse
import sys
from functools import partial

from suites.commands.arguments import DONE, FAILED, Command, add_choice, add_jobs, number_of, request_of, results_of
from suites.commands.run import execute, report

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is searched, and how finely."""
    add_choice(parser)
    add_jobs(parser)
    parser.add_argument(
        "--trials", type=number_of("trials"), default=5, metavar="N", help="rates to try for each method (default: 5)"
    )
    parser.set_defaults(seeds=[], execution="auto", deterministic=False)


def run(options: argparse.Namespace) -> int:
    """Searches, prints what was found, and writes what is chosen."""
    from suites.definitions.catalog import find_suite
    from suites.measuring.energy import WORLD
    from suites.sweep.stages import run_trial
    from suites.sweep.tuning import choices, search_points, tuning_trials, write_factors

    points = search_points(options.trials)
    trials = tuning_trials(find_suite(options.suite), request_of(options), points)
    results = results_of(options)
    _, store = execute(options, trials, results / "tuning", partial(run_trial, electricity=WORLD))
    chosen = choices(trials, store.load().records)
    write_factors(results / "tuned.json", options.suite, points, chosen)
    code = report("tuning", results)
    at_end = [f"{choice.task}, {choice.method} (x{choice.factor:.3g})" for choice in chosen if choice.at_end]
    if at_end:
        print(f"suites: best at an end of the range, which may be too small: {'; '.join(at_end)}", file=sys.stderr)
    failed = [f"{choice.task}, {choice.method}" for choice in chosen if choice.failed]
    if failed:
        print(f"suites: all points failed, the factor stays 1: {'; '.join(failed)}", file=sys.stderr)
    return code or (FAILED if failed else DONE)


COMMAND = Command(
    "tune", "Searches a peak learning rate for every method of a suite, the same way for all.", add_arguments, run
)

"""``python -m suites execution``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suites.commands.arguments import DONE, FAILED, Command, add_device, add_rerun, device_of, folder, number_of
from suites.commands.run import report, say_what_is_wrong

if TYPE_CHECKING:
    from suites.executions.measurement import Measurement

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which part, where, and how often."""
    add_device(parser)
    add_rerun(parser)
    parser.add_argument("--rounds", type=number_of("rounds"), default=9, metavar="N", help="per call (default: 9)")
    parser.add_argument(
        "--part", action="append", choices=["grid", "encoders", "peers", "memory"], help="only this part; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a corner of the grid: a few minutes")
    parser.add_argument(
        "--results", type=folder, default=Path("results/execution"), metavar="DIR", help="default: results/execution"
    )


def run(options: argparse.Namespace) -> int:
    """Measures some parts and reports."""
    from suites.executions.parts import PARTS, execution_jobs

    device = device_of(options)
    jobs = execution_jobs(options.part or PARTS, device=device, rounds=options.rounds, quick=options.quick)
    return measure_all(jobs, options, device)


def measure_all(
    jobs: Sequence[Measurement],
    options: argparse.Namespace,
    device: str,
    *,
    minutes: float = math.inf,
    may_be_left: int = 0,
) -> int:
    """Does some measurements, each alone on the machine, and reports; returns the exit code.

    Args:
        jobs: what is measured.
        options: the results folder, and which records to make anew.
        device: where.
        minutes: no measurement is begun after that.
        may_be_left: so many of the last ones may be left without that being a failure.
    """
    from suites.executions.measurement import headline, run_measurement
    from suites.records.store import Store
    from suites.sweep import engine

    store = Store(options.results, create=False)

    def prepare(_missing: Sequence[Measurement]) -> None:
        store.make()
        print(f"{len(jobs)} measurements; results in {options.results}", file=sys.stderr)

    outcome = engine.run(
        jobs,
        run_measurement,
        store,
        device=device,
        rerun=options.rerun,
        watch_idle=False,
        limit_s=60 * minutes,
        say=headline,
        prepare=prepare,
    )
    say_what_is_wrong(outcome)
    if outcome.left:
        print(f"suites: {outcome.left} measurements are left; the same command goes on with them", file=sys.stderr)
    report("execution", options.results)  # where that cannot be made, the records are there all the same
    return FAILED if outcome.failed or outcome.left > may_be_left else DONE


COMMAND = Command(
    "execution", "Measures what skipping heads saves: layers, encoders, peers, memory.", add_arguments, run
)

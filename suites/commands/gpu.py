"""``python -m suites gpu``."""

import argparse
import math
from contextlib import suppress
from pathlib import Path

from suites.commands.arguments import Command, add_rerun, device_of, folder
from suites.commands.executions import measure_all

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, and how long."""
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="default: cuda")
    add_rerun(parser)
    parser.add_argument("--minutes", type=_minutes, default=7.0, metavar="M", help="for all of it (default: 7)")
    parser.add_argument("--quick", action="store_true", help="one small shape and a shorter training, in a minute")
    parser.add_argument(
        "--results", type=folder, default=Path("results/gpu"), metavar="DIR", help="folder (default: results/gpu)"
    )


def run(options: argparse.Namespace) -> int:
    """Checks, trains, times, and reports."""
    from suites.executions.layers import LayerTimes
    from suites.executions.parts import gpu_jobs

    device = device_of(options)
    jobs = gpu_jobs(device=device, quick=options.quick)
    timings = sum(isinstance(job, LayerTimes) for job in jobs)
    return measure_all(jobs, options, device, minutes=options.minutes, may_be_left=timings)


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")


COMMAND = Command(
    "gpu", "Checks and times the executions on a CUDA device, and trains there; reads no texts.", add_arguments, run
)

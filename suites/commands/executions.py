"""``python -m suites execution``."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from suites.commands.arguments import Command, add_device, device_of, number_of
from suites.commands.run import report

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which part, where, and how often."""
    add_device(parser)
    parser.add_argument("--rounds", type=number_of("rounds"), default=9, metavar="N", help="per call (default: 9)")
    parser.add_argument(
        "--part", action="append", choices=["grid", "encoders", "peers", "memory"], help="only this part; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a corner of the grid: a few minutes")
    parser.add_argument(
        "--results", type=Path, default=Path("results/execution"), metavar="DIR", help="default: results/execution"
    )


def run(options: argparse.Namespace) -> int:
    """Measures some parts, each alone on the machine, and reports."""
    from suites.definitions.sources import fingerprint
    from suites.executions.encoders import PARTS, headline, parts_to_measure
    from suites.measuring.circumstance import describe, package_version
    from suites.measuring.sharing import Share
    from suites.records.store import write
    from suites.sweep.progress import Progress

    device = device_of(options)
    circumstance = describe(device) | {"code_fingerprint": fingerprint(("suites.executions.encoders",))}
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
    return report("execution", options.results)


COMMAND = Command(
    "execution", "Measures what skipping heads saves: layers, encoders, peers, memory.", add_arguments, run
)

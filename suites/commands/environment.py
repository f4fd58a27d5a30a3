"""``python -m suites environment``."""

import argparse
import json

from suites.commands.arguments import DONE, Command

# ruff: noqa: PLC0415 - see suites.commands.arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(_: argparse.Namespace) -> int:
    """Prints a circumstance as JSON."""
    import torch

    from suites.definitions.sources import fingerprint
    from suites.measuring.circumstance import describe

    circumstance = describe("cuda" if torch.cuda.is_available() else "cpu")
    circumstance["code_fingerprint"] = fingerprint(("suites.sweep.stages",))
    print(json.dumps(circumstance, indent=1))
    return DONE


COMMAND = Command("environment", "Prints what a record keeps of this machine and this code.", add_arguments, run)

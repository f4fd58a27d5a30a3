"""What a subcommand is, and the arguments that several of them share.

Imports nothing that imports torch, so that ``--help`` and a typing error are quick: a command imports what it needs
when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from suites.records.text import in_one_line

if TYPE_CHECKING:
    from suites.sweep.planning import Options

# ruff: noqa: PLC0415 - see above

DONE, FAILED, BAD_REQUEST = 0, 1, 2
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        name: what the user types.
        summary: one line for ``--help``.
        add_arguments: adds its arguments to a parser.
        run: does it, and returns the exit code: 0 done, 1 something failed, 2 bad request.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """One line, where argparse prints its usage too."""
        self.exit(BAD_REQUEST, f"suites: error: {in_one_line(message)}; see {self.prog} --help\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """What an option is given; ``--option=--`` gives argparse nothing, and it an empty list."""
        values = super()._get_values(action, arg_strings)
        if action.nargs is None and isinstance(values, list) and not values:
            raise argparse.ArgumentError(action, "expected a value, not '--'")
        return values


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """``--plugin``."""
    parser.add_argument(
        "--plugin", action="append", default=[], type=Path, metavar="FILE.py", help="your methods; repeatable"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device``."""
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default: cuda if there")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The suite, and which of its methods and tasks, into which folder."""
    parser.add_argument("suite", metavar="SUITE", help="name of a suite; see: python -m suites list")
    parser.add_argument("--results", type=folder, metavar="DIR", help="results folder (default: results/SUITE)")
    parser.add_argument("--method", action="append", default=[], metavar="NAME", help="only this method; repeatable")
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="only this task; repeatable")
    add_plugins(parser)
    add_device(parser)
    add_rerun(parser)


def add_rerun(parser: argparse.ArgumentParser) -> None:
    """``--rerun``."""
    parser.add_argument(
        "--rerun",
        default="failed",
        choices=["never", "failed", "stale", "always"],
        help="run again: nothing, what failed (default), also what other source code made, or everything",
    )


def add_question(parser: argparse.ArgumentParser) -> None:
    """What else is part of a trial's question: seeds, execution, determinism and tuned rates."""
    parser.add_argument("--seeds", type=seeds, default=[], metavar="N|a,b,c", help="number of seeds, or a list")
    parser.add_argument(
        "--execution",
        default="auto",
        metavar="NAME",
        help="how heads are run at inference (default: auto); a wrong name lists all",
    )
    parser.add_argument("--deterministic", action="store_true", help="train with deterministic algorithms alone")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="use the learning rates that tune wrote there")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """``--jobs``."""
    help_text = "trials at a time (default: what the allowed cores can take)"
    parser.add_argument("--jobs", type=number_of("jobs"), metavar="N", help=help_text)


def folder(text: str) -> Path:
    """A folder, there already or to be made."""
    path = Path(text)
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name is no folder")
    if path.is_symlink() and not path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} is a link to what is not there")
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is there, and no folder")
    return path


def seeds(text: str) -> list[int]:
    """``3`` is the seeds 0, 1, 2; ``4,7`` is those two."""
    try:
        if not text.isascii():
            raise ValueError
        numbers = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor a list such as 0,1,2") from None
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"a seed must not be negative, not {min(numbers)}")
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise argparse.ArgumentTypeError(f"the seed {twice[0]} is there more than once")
    if "," in text:
        return numbers
    if not 0 < numbers[0] <= MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text} is a number of seeds; for that seed alone write --seeds {text},")
    return list(range(numbers[0]))


def number_of(what: str) -> Callable[[str], int]:
    """The type of an argument that counts something, from 1 on."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {what}; give 1 or more")
        return int(text)

    return number


def device_of(options: argparse.Namespace) -> str:
    """The device that is asked for, as torch names it.

    Raises:
        ValueError: if torch does not see it, or cannot use it.
    """
    import torch

    device: str = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu")
    try:
        torch.ones(1, device=device).sum().item()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {device}: torch {torch.__version__} cannot use it ({reason})") from error
    return device


def request_of(options: argparse.Namespace) -> Options:
    """What is asked of a suite.

    Raises:
        ValueError: for a plug-in that cannot be used, or a device that is not there.
    """
    from suites.definitions.registry import load_plugin
    from suites.sweep.planning import Options

    return Options(
        methods=options.method,
        plugins=list(dict.fromkeys(method for file in options.plugin for method in load_plugin(file))),
        tasks=options.task,
        seeds=options.seeds,
        device=device_of(options),
        execution=options.execution,
        deterministic=options.deterministic,
    )


def results_of(options: argparse.Namespace) -> Path:
    """The results folder."""
    folder: Path = options.results or Path("results") / options.suite
    return folder

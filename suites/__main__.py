"""The command line of the harness: ``python -m suites``."""

import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor

from suites.commands import data, environment, executions, gpu, list, plan, run, tune
from suites.commands.arguments import BAD_REQUEST, FAILED, Parser

COMMANDS = [module.COMMAND for module in (list, plan, run, tune, executions, gpu, data, environment)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad request."""
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError) as error:
        print(f"suites: error: {error}", file=sys.stderr)
        return BAD_REQUEST
    except BrokenExecutor:
        print("suites: a worker was killed, perhaps for want of memory; --jobs 1 needs less", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("suites: stopped; the same command goes on with what is missing", file=sys.stderr)
        return FAILED


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="python -m suites", description="Runs the bench's suites.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.summary, description=command.summary, allow_abbrev=False)
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())

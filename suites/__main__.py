"""The command line of the harness: ``python -m suites``."""

import errno
import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor

from suites.commands import data, environment, executions, gpu, list, plan, run, tune
from suites.commands.arguments import BAD_REQUEST, DONE, FAILED, Parser
from suites.records.text import in_one_line
from suites.sweep.stopping import stop_at_once

COMMANDS = [module.COMMAND for module in (list, plan, run, tune, executions, gpu, data, environment)]
FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad request, 128 + n stopped by n."""
    options = make_parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has read enough. Without this, Python complains once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (ValueError, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in FULL
        hint = "; what has a record is kept, and the same command goes on when there is room" if is_full else ""
        print(f"suites: error: {in_one_line(str(error), 1000)}{hint}", file=sys.stderr)
        return FAILED if is_full else BAD_REQUEST
    except BrokenExecutor:
        print("suites: a worker was killed, perhaps for want of memory; --jobs 1 needs less", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as stop:
        print("suites: stopped; the same command goes on with what is missing", file=sys.stderr)
        return 128 + int(getattr(stop, "signal", 2))
    return code


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
    stop_at_once()
    sys.exit(main())

"""The command line of the reports: ``python -m reports``."""

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# What imports pandas or seaborn is imported by the command that needs it, so that --help is quick.
# ruff: noqa: PLC0415

DONE, FAILED, BAD_REQUEST = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 nothing could be reported, 2 bad request."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal can show ≈
    try:
        code = int(options.command(options, options.out or options.results / "report"))
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has read enough; the files are written. Without this, Python complains once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (ValueError, OSError) as error:
        print(f"reports: error: {error}", file=sys.stderr)
        return BAD_REQUEST
    except ImportError as error:
        print(f"reports: error: {error}; the tables need: python -m pip install -e '.[bench]'", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        print("reports: stopped", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reports", description="Reads the records of a results folder.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function, help_text in (
        ("execution", _execution, "Writes the tables and the break-even figure of python -m suites execution, or gpu."),
        ("tables", _tables, "Writes the tables as Markdown, LaTeX and CSV."),
        ("figures", _figures, "Writes accuracy against executed FLOPs as PDF, PNG and SVG."),
        ("tuning", _tuning, "Prints what python -m suites tune found."),
        ("all", _all, "Writes tables and figures, and prints the tables."),
    ):
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        command.set_defaults(command=function)
        command.add_argument("results", type=Path, metavar="RESULTS", help="results folder of a run")
        command.add_argument("--out", type=Path, metavar="DIR", help="where the files go (default: RESULTS/report)")
        if function in (_execution, _tuning):
            continue
        command.add_argument(
            "--allow-mixed",
            action="store_true",
            help="show times and emissions of several machines or protocols in one table, marked as such",
        )
    return parser


def _tables(options: argparse.Namespace, out: Path) -> int:
    from reports.load import load
    from reports.tables.main import main_tables
    from reports.write import write_tables

    frame = load(options.results)
    _print_bad(frame.bad)
    _print_paths(write_tables(main_tables(frame, allow_mixed=options.allow_mixed), out))
    return DONE


def _figures(options: argparse.Namespace, out: Path) -> int:
    from reports.load import load
    from reports.tables.main import main_tables
    from reports.write import write_figures

    frame = load(options.results)
    _print_bad(frame.bad)
    # Accuracies and FLOPs, all that a figure shows, may be of several machines; of two protocols they may not.
    one_protocol = frame.rows["protocol"].nunique() == 1
    paths = write_figures(main_tables(frame, allow_mixed=options.allow_mixed or one_protocol), out)
    _print_paths(paths)
    if not paths:
        print("reports: no trial has an accuracy and a count of FLOPs; nothing to draw", file=sys.stderr)
        return FAILED
    return DONE


def _execution(options: argparse.Namespace, out: Path) -> int:
    from reports.write import write_measured

    text, paths = write_measured(options.results, out)
    print(text)
    _print_paths(paths)
    return DONE


def _tuning(options: argparse.Namespace, _: Path) -> int:
    from reports.render import markdown
    from reports.tables.of_tuning import tuning_table

    file = options.results / "tuned.json"
    print(markdown([tuning_table(file)]))
    print(file)
    return DONE


def _all(options: argparse.Namespace, out: Path) -> int:
    from reports.write import write_all

    text, paths = write_all(options.results, out, options.allow_mixed)
    print(text)
    _print_paths(paths)
    return DONE


def _print_bad(bad: Mapping[Path, str]) -> None:
    for path, reason in bad.items():
        print(f"reports: passed over {path}: {reason}", file=sys.stderr)


def _print_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        print(path)


if __name__ == "__main__":
    sys.exit(main())

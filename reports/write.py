"""Report files of a results folder."""

from collections.abc import Sequence
from pathlib import Path

from reports.load import load
from reports.render import latex_document, markdown, to_csv
from reports.tables import Table, main_tables


def write_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """Writes the tables as Markdown, LaTeX and CSV.

    Raises:
        OSError: if that cannot be done.
    """
    out.mkdir(parents=True, exist_ok=True)
    contents = {"tables.md": markdown(tables), "tables.tex": latex_document(tables), "tables.csv": to_csv(tables)}
    for name, content in contents.items():
        (out / name).write_text(content, encoding="utf-8", newline="\n")
    return [out / name for name in contents]


def write_figures(tables: Sequence[Table], out: Path) -> list[Path]:
    """Writes accuracy against cost as PDF, PNG and SVG; nothing if no trial has both.

    Raises:
        OSError: if they cannot be written.
    """
    # Imported here: it takes seconds, and tables do without.
    from reports.figures import accuracy_versus_cost, has_points, save  # noqa: PLC0415

    if not any(map(has_points, tables)):
        return []
    out.mkdir(parents=True, exist_ok=True)
    return save(accuracy_versus_cost(tables), out / "accuracy_versus_cost")


def write_execution(measured: Path, out: Path) -> tuple[str, list[Path]]:
    """Writes the tables and the figure of what ``python -m suites execution`` measured.

    Args:
        measured: its file.
        out: where the files go; made if need be.

    Returns:
        The tables as Markdown, and the files.

    Raises:
        ValueError: if the file is not one of these.
        OSError: if a file cannot be read or written.
    """
    from reports.execution import break_even, load_execution, tables  # noqa: PLC0415
    from reports.figures import save  # noqa: PLC0415

    found = load_execution(measured)
    text = tables(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "execution.md").write_text(text, encoding="utf-8", newline="\n")
    figures = save(break_even(found), out / "break_even") if found["grid"] else []
    return text, [out / "execution.md", *figures]


def write_all(results: Path, out: Path, allow_mixed: bool = False) -> tuple[str, list[Path]]:
    """Writes all reports of a results folder.

    Args:
        results: the folder.
        out: where the files go; made if need be.
        allow_mixed: see :func:`reports.tables.main_tables`.

    Returns:
        The tables as Markdown, and the files.

    Raises:
        ValueError: if there are no records, or a table would mix machines or protocols and may not.
        OSError: if the files cannot be written.
    """
    tables = main_tables(load(results), allow_mixed=allow_mixed)
    return markdown(tables), write_tables(tables, out) + write_figures(tables, out)

"""Report files of a results folder."""

from collections.abc import Sequence
from pathlib import Path

from reports.load import load
from reports.measured import load_measured
from reports.render import latex_document, markdown, to_csv
from reports.tables.cells import Table
from reports.tables.main import main_tables
from reports.tables.measured_tables import measured_tables


def write_tables(tables: Sequence[Table], out: Path, stem: str = "tables") -> list[Path]:
    """Writes tables as Markdown, LaTeX and CSV.

    Raises:
        OSError: if that cannot be done.
    """
    out.mkdir(parents=True, exist_ok=True)
    contents = {
        f"{stem}.md": markdown(tables),
        f"{stem}.tex": latex_document(tables),
        f"{stem}.csv": to_csv(tables),
    }
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


def write_measured(results: Path, out: Path) -> tuple[str, list[Path]]:
    """Writes the tables and the figures of what was measured of the layer itself.

    Args:
        results: the folder.
        out: where the files go; made if need be.

    Returns:
        The tables as Markdown, and the files.

    Raises:
        ValueError: if there are no such records.
        OSError: if a file cannot be written.
    """
    from reports.break_even import break_even  # noqa: PLC0415
    from reports.figures import save  # noqa: PLC0415

    found, failed = load_measured(results)
    paths = write_tables([table for each in found for table in measured_tables(each, failed)], out, stem="execution")
    for number, each in enumerate(found):
        if times := each.of_kind("layer"):
            paths += save(break_even(times), out / ("break_even" if len(found) == 1 else f"break_even_{number}"))
    return (out / "execution.md").read_text(encoding="utf-8"), paths


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

"""Report files of a results folder."""

from collections.abc import Sequence
from pathlib import Path

from reports.load import Frame, load
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


def write_figures(frame: Frame, out: Path) -> list[Path]:
    """Writes accuracy against cost as PDF, PNG and SVG.

    Raises:
        ValueError: if there is nothing to draw.
        OSError: if it cannot be written.
    """
    # Imported here: it takes seconds, and tables do without.
    from reports.figures import accuracy_versus_cost, save  # noqa: PLC0415

    # Accuracies and FLOPs may be of several machines, and nothing else is drawn.
    figure = accuracy_versus_cost(main_tables(frame, allow_mixed=True))
    out.mkdir(parents=True, exist_ok=True)
    return save(figure, out / "accuracy_versus_cost")


def write_all(results: Path, out: Path, allow_mixed: bool = False) -> tuple[str, list[Path]]:
    """Writes all reports of a results folder; the figure only if a trial has finished.

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
    frame = load(results)
    tables = main_tables(frame, allow_mixed=allow_mixed)
    paths = write_tables(tables, out)
    if (frame.rows["status"] == "done").any():
        paths += write_figures(frame, out)
    return markdown(tables), paths

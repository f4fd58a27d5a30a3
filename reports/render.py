r"""Tables as Markdown, LaTeX and CSV.

LaTeX is plain: ``booktabs`` and l and r columns. Text is escaped here and markup is added after that, so that neither
meets the other.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from reports.tables.cells import Cell, Column, Difference, Failed, Missing, Number, Table, Text

MISSING = "--"


@dataclass(frozen=True)
class _Markup:
    """What one output language writes for the same thing."""

    escape: Callable[[str], str]
    bold: str
    plus_minus: str
    about: str
    minus: str


_LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    # At the start of a row these would be an argument of the \\ before it.
    **{character: f"{{{character}}}" for character in "[]*"},
    "±": r"$\pm$",
    "≈": r"$\approx$",
}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is; line breaks become spaces."""
    return "".join(_LATEX_CHARACTERS.get(character, character) for character in " ".join(text.split()))


def _escape_markdown(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


_MARKDOWN = _Markup(_escape_markdown, "**{}**", "±", "≈", "-")
_LATEX = _Markup(escape_latex, r"\textbf{{{}}}", r"$\pm$", r"$\approx$", "$-$")


def markdown(tables: Sequence[Table]) -> str:
    """A document: the tables, and what is true of all of them once, at the end."""
    shared = [note for note in tables[0].notes if all(note in table.notes for table in tables)] if tables[1:] else []
    parts = []
    for table in tables:
        parts.append(f"## {_escape_markdown(table.title)}")
        parts += [_markdown_grid(part) for part in _panels(table)]
        parts += _markdown_list([note for note in table.notes if note not in shared])
    return "\n\n".join([*parts, *_markdown_list(shared)]) + "\n"


def _panels(table: Table) -> list[Table]:
    """The panels that have rows."""
    return [part for part in map(table.panel, table.panels) if part.rows]


def _markdown_grid(table: Table) -> str:
    rows = [[_shown(cell, _MARKDOWN) for cell in row] for row in table.rows]
    headers = [_escape_markdown(column.header) for column in table.columns]
    align = ["left" if column.kind == "text" else "right" for column in table.columns]
    # Its own idea of what is a number would drop zeros.
    return tabulate(rows, headers, tablefmt="pipe", colalign=align, disable_numparse=True)


def _markdown_list(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {_escape_markdown(note)}" for note in notes)] if notes else []


def latex(table: Table) -> str:
    r"""A ``table`` environment that needs ``booktabs``, and ``\usepackage[T1]{fontenc}`` for < and >."""
    caption = " ".join(map(escape_latex, (f"{table.title}.", *table.notes)))
    grids = "\n\n\\medskip\n".join(map(_latex_grid, _panels(table)))
    return f"\\begin{{table}}[p]\n\\centering\\footnotesize\n\\caption{{{caption}}}\n{grids}\n\\end{{table}}\n"


def latex_document(tables: Sequence[Table]) -> str:
    """A document that compiles alone."""
    preamble = (
        "\\documentclass[a4paper,landscape]{article}\n\\usepackage[T1]{fontenc}\n"
        "\\usepackage[margin=1.5cm]{geometry}\n\\usepackage{booktabs}\n\\begin{document}\n"
    )
    return preamble + "\\clearpage\n".join(map(latex, tables)) + "\\end{document}\n"


def _latex_grid(table: Table) -> str:
    spec = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    head = " & ".join(escape_latex(column.header) for column in table.columns)
    body = [" & ".join(_shown(cell, _LATEX) for cell in row) for row in table.rows]
    lines = [f"\\begin{{tabular}}{{{spec}}}", r"\toprule", rf"{head} \\", r"\midrule"]
    return "\n".join([*lines, *(rf"{row} \\" for row in body), r"\bottomrule", r"\end{tabular}"])


def to_csv(tables: Sequence[Table]) -> str:
    """All tables in one, with every digit; a number has its spread or interval and its n beside it.

    A table with other columns than the one before it begins with a header of its own.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns: tuple[Column, ...] = ()
    for table in tables:
        if table.columns != columns:
            columns = table.columns
            writer.writerow(["table", *(name for column in columns for name in _csv_names(column))])
        for row in table.rows:
            cells = zip(columns, row, strict=True)
            writer.writerow([table.title, *(value for column, cell in cells for value in _csv_values(column, cell))])
    return buffer.getvalue()


def _csv_names(column: Column) -> list[str]:
    suffixes = {"text": ("",), "number": ("", "_std", "_n"), "difference": ("", "_low", "_high", "_n")}
    return [column.key + suffix for suffix in suffixes[column.kind]]


def _csv_values(column: Column, cell: Cell) -> list[str | float | None]:
    match cell:
        case Text(text) if column.kind == "text":
            return [text]
        case Number():
            return [cell.mean, cell.spread, cell.n]
        case Difference():
            return [cell.mean, *(cell.interval or (None, None)), cell.n]
        case _:
            return [None] * len(_csv_names(column))


def _shown(cell: Cell, markup: _Markup) -> str:
    match cell:
        case Text(text):
            return markup.escape(text)
        case Number():
            return _shown_number(cell, markup)
        case Difference():
            return _shown_difference(cell, markup)
        case Failed():
            return "failed"
        case Missing():
            return MISSING


def _shown_number(cell: Number, markup: _Markup) -> str:
    shown = _decimal(cell.mean, cell.digits, markup)
    if cell.spread is not None and round(cell.spread, cell.digits) > 0:
        shown += f" {markup.plus_minus} {_decimal(cell.spread, cell.digits, markup)}"
    shown = markup.bold.format(shown) if cell.best else shown
    return (f"{markup.about} " if cell.estimated else "") + shown + _shown_n(cell)


def _shown_difference(cell: Difference, markup: _Markup) -> str:
    shown = _decimal(cell.mean, cell.digits, markup, plus="+")
    if cell.interval is not None:
        low, high = (_decimal(end, cell.digits, markup, plus="+") for end in cell.interval)
        shown += f" {markup.escape('[')}{low}, {high}{markup.escape(']')}"
    return shown + _shown_n(cell)


def _shown_n(cell: Number | Difference) -> str:
    return f" (n = {cell.n})" if cell.partial else ""


def _decimal(value: float, digits: int, markup: _Markup, plus: str = "") -> str:
    rounded = round(value, digits)
    sign = markup.minus if rounded < 0 else plus if rounded > 0 else ""
    return f"{sign}{abs(rounded):.{digits}f}"

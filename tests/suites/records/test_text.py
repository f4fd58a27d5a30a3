import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.records.record import Record
from suites.records.text import LONGEST, in_one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain words", "plain words"),
        ("two\n  lines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u202ebackwards", "\\u202ebackwards"),
        ("größer als ≈ 1", "größer als ≈ 1"),
        ("x" * 120_000, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_a_line_has_neither_breaks_nor_controls_nor_end(text: str, line: str) -> None:
    assert in_one_line(text) == line


@given(st.text())
def test_any_text_is_printable_in_a_line(text: str) -> None:
    line = in_one_line(text)
    assert line.isprintable()
    assert len(line) <= LONGEST


def test_the_record_keeps_all_of_an_error() -> None:
    error = "RuntimeError: " + "\x1b[2J" * 1000
    record = Record(question={"kind": "fake"}, status="failed", error=error)
    assert Record.from_json(record.to_json()).error == error
    assert len(record.error_line) == LONGEST

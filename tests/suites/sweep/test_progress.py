import pytest

from suites.sweep.progress import Cell, Progress, duration, grown


def test_the_table_has_a_row_per_method_and_a_column_per_task() -> None:
    table = {"full-mha": {"topics": [0.5, 0.6], "tweets": [0.75]}, "random-k": {"tweets": [1.0]}}
    assert [line.split() for line in grown(table)] == [
        [],
        ["topics", "tweets"],
        ["full-mha", "55.00", "(2)", "75.00", "(1)"],
        ["random-k", "100.00", "(1)"],
        [],
    ]
    assert len({len(line) for line in grown(table)[1:-1]}) == 1
    assert grown({}) == []


def test_on_a_terminal_the_table_grows_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(3) as progress:
        progress.end("first", "done", Cell("full-mha", "topics", 0.5))
        progress.end("second", "done", Cell("random-k", "topics", 0.25))
        progress.end("third", "failed")
    shown = capsys.readouterr().err
    assert shown.count("\x1b[4A\x1b[J[2/3] second") == 1  # over the empty lines, the head and one row
    assert shown.count("\x1b[5A\x1b[J[3/3] third") == 1
    assert shown.count("full-mha") == 3


def test_elsewhere_there_is_a_line_per_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.end("first", "done", Cell("full-mha", "topics", 0.5))
    assert capsys.readouterr().err == "[1/1] first: done (0 s left)\n"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text

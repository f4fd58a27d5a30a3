import json
from pathlib import Path
from typing import Any

import pytest

from reports.__main__ import main
from reports.execution import break_even, load_execution, tables


def cell(s: float, batch: int = 64, **ratios: float) -> dict[str, Any]:
    names = ["auto / full", "auto / bound", "full again / full", "full / plain full", "auto / plain full"]
    names += ["auto / plain bound", "plain / plain full", "plain / plain bound"]
    names += ["mixture of heads / plain full", "MultiheadAttention / plain full"]
    return {
        "shape": {"batch": batch, "tokens": 64, "width": 256, "num_heads": 8},
        "s": s,
        "kind": "random",
        "share": s,
        "kernel": True,
        "seconds": {"full": 0.05, "auto": 0.0125, "plain": 0.03, "gathered": 0.02, "masked": 0.06},
        "ratios": dict.fromkeys(names, 1.0) | {name.replace("_", " / "): value for name, value in ratios.items()},
    }


FOUND = {
    "grid": [cell(0.25, auto_full=0.3, auto_bound=1.21), cell(1.0), cell(0.5, batch=1, auto_full=0.9, auto_bound=1.5)],
    "encoders": [
        {
            "task": "bbc-topics",
            "width": width,
            "s": 0.25,
            "share": 0.25,
            "attention_share": 0.4,
            "seconds": {"full": 0.1},
            "ratios": {
                "given / full": 0.73,
                "saved / allowed, with choosing": 0.8,
                "full again / full": 1.002,
                "saved / allowed": allowed,
            },
        }
        for width, allowed in ((128, 0.5), (256, 0.9))
    ],
    "peers": [
        {
            "task": "bbc-topics",
            "width": 256,
            "seconds": {"training: ours": 0.2},
            "ratios": {"training: ours / BertModel": 0.987},
        }
    ],
    "memory": [
        {
            "shape": {"batch": 64, "tokens": 64, "width": 256, "num_heads": 8},
            "s": 0.5,
            "kind": "random",
            "bytes": {"auto": None, "full": None, "plain": 12_000_000, "plain full": 20_000_000},
            "ratios": {"auto / full": None, "auto / plain full": None, "plain / plain full": 0.6},
        }
    ],
    "rounds": 9,
    "circumstance": {
        "kernel": "c++ 12",
        "cpu_model": "a processor",
        "cores": 2,
        "threads": 2,
        "device": "cpu",
        "versions": {"torch": "2.13.0"},
        "code_fingerprint": "0123456789abcdef",
    },
}


def row_of(text: str, start: str) -> list[str]:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    (line,) = [line for line in lines if line.startswith(f"| {start} ")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_the_summary_has_the_mean_over_all_and_the_worst_of_the_batches() -> None:
    text = tables(FOUND)
    # (1.21 * 1 * 1.5) ** (1/3)
    assert row_of(text, "auto / bound, all cells")[1:3] == ["1.220", "1.500"]
    # (1.21 * 1) ** (1/2)
    assert row_of(text, "auto / bound, B >= 8")[1:] == ["1.100", "1.210", "(64, 64, 256, 8), s = 0.25, random"]
    assert row_of(text, "auto / full minus k / H, B >= 8, s <= 0.5")[1:3] == ["--", "0.050"]
    assert row_of(text, "encoders: saved / allowed, D >= 256")[2] == "0.900"
    assert "memory: auto / full" not in text
    assert row_of(text, "plain / the faster of gathered and masked")[2] == "1.500"
    assert row_of(text, "memory: plain / plain full")[2] == "0.600"


def test_every_row_is_printed_with_its_numbers() -> None:
    text = tables(FOUND)
    assert row_of(text, "(64, 64, 256, 8) | 0.25 | random")[4:8] == ["50.0", "12.5", "0.30", "1.21"]
    assert row_of(text, "bbc-topics | 256 | 0.25")[4:] == ["40.0", "0.730", "1.002", "27.0", "30.0", "0.90", "0.80"]
    assert row_of(text, "bbc-topics | 256 | training")[3:] == ["200.0", "ours / BertModel", "0.987"]
    assert "Full attention over itself: 1.000 to 1.002" in text
    assert "a processor, 2 cores, 2 threads" in text


def test_the_figure_has_a_facet_per_shape() -> None:
    figure = break_even(FOUND)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["B, T, D, H = (64, 64, 256, 8)", "B, T, D, H = (1, 64, 256, 8)"]
    (line,) = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("auto")]
    assert list(map(float, line.get_xdata())) == [0.25, 1.0]  # type: ignore[arg-type]
    assert list(map(float, line.get_ydata())) == [0.3, 1.0]  # type: ignore[arg-type]


NUMBERS = json.dumps(dict.fromkeys(("grid", "encoders", "peers", "memory"), 1))


@pytest.mark.parametrize("content", ["", "[]", '{"grid": []}', NUMBERS])
def test_another_file_is_refused_by_name(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "execution.json").write_text(content)
    assert main(["execution", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "execution.json is no file of python -m suites execution" in error


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "execution.json").write_text(json.dumps(FOUND))
    assert load_execution(tmp_path / "execution.json") == FOUND
    assert main(["execution", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "## Summary" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "execution.md",
        *(f"break_even.{kind}" for kind in ("pdf", "png", "svg")),
    }

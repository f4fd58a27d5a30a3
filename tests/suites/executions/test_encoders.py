import json
from pathlib import Path

import pytest

from suites.__main__ import main
from suites.definitions.catalog import find_suite
from suites.executions import encoders as execution
from suites.executions.encoders import measure_encoders, measure_peers
from suites.executions.grid import Shape

BBC, TWEETS = find_suite("smoke").tasks


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "NUM_HEADS", {32: 4, 64: 8})
    monkeypatch.setattr(execution, "SHAPES", (Shape(4, 8, 32, 4), Shape(1, 8, 32, 4)))


@pytest.mark.usefixtures("small")
def test_the_saving_of_an_encoder_is_told_against_what_amdahl_allows() -> None:
    rows = measure_encoders(TWEETS, 64, device="cpu", rounds=2)
    assert [row["s"] for row in rows] == [0.25, 0.5]
    for row in rows:
        ratios = row["ratios"]
        assert row["share"] == row["s"]
        assert row["attention_share"] == 1 - ratios["no attention / full"]
        allowed = row["attention_share"] * (1 - row["share"])
        assert ratios["saved / allowed"] == pytest.approx((1 - ratios["given / full"]) / allowed)
        assert ratios["saved / allowed, with choosing"] == pytest.approx((1 - ratios["heads / full"]) / allowed)


@pytest.mark.usefixtures("small")
def test_peers_are_compared_in_inference_and_training() -> None:
    row = measure_peers(TWEETS, 32, device="cpu", rounds=1)
    kinds = {key.partition(": ")[0] for key in row["ratios"]}
    assert kinds == {"inference", "inference, no padding", "training"}
    assert {"training: ours / TransformerEncoder", "inference: ours / ours again"} <= row["ratios"].keys()
    assert all(ratio > 0 for ratio in row["ratios"].values())


@pytest.mark.integration
@pytest.mark.usefixtures("small")
def test_the_command_writes_a_file_and_prints_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execution, "find_suite", lambda _: find_suite("smoke"))
    assert main(["execution", "--quick", "--rounds", "1", "--results", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "execution.json").read_text())
    assert [len(found[part]) for part in ("grid", "encoders", "peers", "memory")] == [10, 2, 1, 2]
    printed = capfd.readouterr()
    assert "| (4, 8, 32, 4) |" in printed.out
    assert "[1/" in printed.err
    assert (tmp_path / "report" / "break_even.png").stat().st_size > 10_000


def test_no_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["execution", "--rounds", "0"])
    assert stop.value.code == 2
    assert "'0' is no number of rounds" in capsys.readouterr().err

from pathlib import Path

import pytest

from reports.load import load
from suites.records.metrics import METRICS
from tests.reports.records import record, stored


def test_a_row_per_record_with_every_metric(tmp_path: Path) -> None:
    rows = load(stored(tmp_path, record(seed=0, s_mean=None), record(seed=1, error="boom"))).rows.set_index("seed")
    assert set(METRICS) <= set(rows.columns)
    assert rows.loc[0, "accuracy"] == 0.9
    assert rows["s_mean"].isna().all()
    assert rows.loc[0, "s_mean_per_layer"] == [0.25, 0.75]
    assert list(rows.loc[1, ["status", "error", "task", "method", "machine_id", "protocol", "num_heads"]]) == [
        *("failed", "boom", "topics", "full-mha", "m1", "1", 8)
    ]
    assert rows["group"].nunique() == rows["setting"].nunique() == 1


def test_bad_files_are_named_and_passed_over(tmp_path: Path) -> None:
    stored(tmp_path, record())
    (tmp_path / "trials" / "bad.json").write_text("{")
    frame = load(tmp_path)
    assert len(frame.rows) == 1
    assert [path.name for path in frame.bad] == ["bad.json"]


def test_a_folder_without_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no records in .*; run a suite first: python -m suites run quick"):
        load(tmp_path / "nowhere")
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="1 unreadable files and no records"):
        load(tmp_path)

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.records.record import METRICS, Record, question_id
from suites.records.store import Store


def make_question(seed: int = 0) -> dict[str, Any]:
    return {"task": {"name": "t"}, "method": {"label": "m"}, "seed": seed}


def make_record(seed: int = 0) -> Record:
    return Record(
        question=make_question(seed),
        status="done",
        metrics={"accuracy": 0.5, "s_mean": None, "heads_executed_per_layer": [0.5, 1.0]},
        history=[{"epoch": 1.0, "train_loss": 0.7}],
        timings={"latency_b1_s": [0.1, 0.2]},
    )


def test_a_record_survives_the_file() -> None:
    record = make_record()
    assert Record.from_json(record.to_json()) == record
    assert (record.task, record.method, record.seed) == ("t", "m", 0)


def test_the_id_is_the_question_whatever_the_order_of_its_keys() -> None:
    question = make_question()
    assert question_id(question) == question_id(dict(reversed(question.items())))
    assert question_id(question) != question_id(make_question(1))


@pytest.mark.parametrize(
    "metrics",
    [
        {"accurracy": 0.5},
        {"accuracy": float("nan")},
        {"accuracy": "0.5"},
        {"accuracy": [0.5]},
        {"heads_executed_per_layer": 0.5},
    ],
)
def test_a_metric_that_is_unknown_or_no_number_is_refused(metrics: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="metric"):
        Record(question=make_question(), status="done", metrics=metrics)


def test_an_edited_question_is_found_out() -> None:
    content = json.loads(make_record().to_json())
    content["question"]["seed"] = 1
    with pytest.raises(ValueError, match="edited"):
        Record.from_json(json.dumps(content))


def test_a_newer_schema_is_refused_by_name() -> None:
    content = json.loads(make_record().to_json()) | {"schema": 99}
    with pytest.raises(ValueError, match="schema 99 is newer"):
        Record.from_json(json.dumps(content))


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["question", "schema", "task", "status"]), inner),
)


@given(st.text() | json_values.map(json.dumps))
def test_what_is_no_record_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Record.from_json(text)


def test_every_metric_says_what_it_is() -> None:
    for key, metric in METRICS.items():
        assert metric.unit, key
        assert metric.meaning.endswith("."), key
        assert key.endswith("_s") == (metric.unit in ("s", "input/s")), key
        assert key.endswith("_kwh") == (metric.unit == "kWh"), key


def test_the_store_returns_what_it_was_given(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = make_record()
    store.save(record, {"k": np.arange(6, dtype=np.uint8).reshape(3, 2)})
    assert store.load().records == {record.id: record}
    assert store.arrays(record.id)["k"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert store.arrays("none") == {}
    assert sorted(path.suffix for path in store.trials.iterdir()) == [".json", ".npz"]


def test_a_torn_file_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good, torn = (store.save(make_record(seed)) for seed in (0, 1))
    torn.write_bytes(torn.read_bytes()[:50])
    contents = store.load()
    assert list(contents.records) == [good.stem]
    assert list(contents.bad) == [torn]


def test_a_record_under_another_name_is_no_second_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(make_record())
    copy = path.with_name("copy.json")
    copy.write_bytes(path.read_bytes())
    assert list(store.load().bad) == [copy]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.save(make_record())
    assert list(store.trials.iterdir()) == []


def save_some(folder: Path, first: int) -> None:
    for seed in range(first, first + 5):
        Store(folder).save(make_record(seed), {"k": np.full(1000, seed)})


def test_processes_that_write_at_once_leave_whole_records(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=save_some, args=(tmp_path, first)) for first in (0, 0, 5, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    contents = Store(tmp_path).load()
    assert len(contents.records) == 10
    assert not contents.bad
    for key, record in contents.records.items():
        assert (Store(tmp_path).arrays(key)["k"] == record.seed).all()

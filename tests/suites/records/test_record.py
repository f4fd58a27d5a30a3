import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.records.metrics import LEARNED, METRICS, TIMED
from suites.records.record import SCHEMA, Learned, Record, Timed, question_id
from suites.records.store import Store


def make_question(seed: int = 0) -> dict[str, Any]:
    return {"task": {"name": "t"}, "method": {"label": "m"}, "seed": seed}


def make_record(seed: int = 0, accuracy: float = 0.5) -> Record:
    return Record(
        question=make_question(seed),
        status="done",
        learned=Learned(
            metrics={"accuracy": accuracy, "s_mean": None, "heads_executed_per_layer": [0.5, 1.0]},
            history=[{"epoch": 1.0, "train_loss": 0.7}],
        ),
        timed=Timed(metrics={"train_s": 2.5}, timings={"latency_b1_s": [0.1, 0.2]}),
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
        Learned(metrics=metrics)


def test_a_metric_in_the_wrong_part_is_refused() -> None:
    assert not LEARNED.keys() & TIMED.keys()
    with pytest.raises(ValueError, match="unknown metric 'train_s'"):
        Learned(metrics={"train_s": 1.0})
    with pytest.raises(ValueError, match="unknown metric 'accuracy'"):
        Timed(metrics={"accuracy": 1.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-9])
def test_a_time_that_is_none_is_refused_by_the_name_of_its_call(value: float) -> None:
    with pytest.raises(ValueError, match=r"^a time of 'latency_b1_s' is negative or not a finite number$"):
        Timed(timings={"latency_b1_s": [0.1, value]})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_history_with_a_number_that_is_none_is_refused_by_its_name(value: float) -> None:
    with pytest.raises(ValueError, match=r"^task_loss of the history is (nan|inf)$"):
        Learned(history=[{"epoch": 1.0, "task_loss": value}])


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("question", "seed", 1),
        ("learned", "metrics", {"accuracy": 0.99}),
        ("timed", "timings", {}),
        ("circumstance", "x", 1),
    ],
)
def test_an_edited_record_is_found_out(part: str, key: str, value: object) -> None:
    content = json.loads(make_record().to_json())
    content[part][key] = value
    with pytest.raises(ValueError, match="edited"):
        Record.from_json(json.dumps(content))


SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("*.json"))


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_file_of_every_schema_that_was_ever_written_still_loads(path: Path) -> None:
    record = Record.from_json(path.read_text(encoding="utf-8"))
    assert record.status == "done"
    assert 0 < record.learned.metrics["accuracy"] < 1
    assert record.learned.execution == "gathered"
    assert record.timed.metrics["latency_b32_p50_s"] > 0
    assert len(record.timed.timings["latency_b32_method_s"]) >= 30
    assert record.timed.energy["train"]["intensity_g_per_kwh"] == 475
    assert record.timing_key["machine"] == record.measured_in["machine_id"]
    assert Record.from_json(record.to_json()) == record


def test_there_is_a_file_of_every_schema() -> None:
    assert [json.loads(path.read_text())["schema"] for path in SCHEMAS] == list(range(1, SCHEMA + 1))


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
    record = store.save(make_record(), {"k": np.arange(6, dtype=np.uint8).reshape(3, 2)}, b"weights")
    assert store.load().records == {record.id: record}
    assert store.find(record.id) == record
    assert store.arrays(record)["k"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert store.weights(record) == b"weights"
    assert store.arrays(make_record(1)) == {}
    assert store.weights(make_record(1)) == b""
    assert sorted(path.suffix for path in store.trials.iterdir()) == [".json", ".npz", ".pt"]


def test_files_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store = Store(tmp_path)
        store.save(make_record(), {"k": np.zeros(1)})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in store.trials.iterdir()} == {0o640}


def test_a_record_made_anew_takes_the_place_of_the_old_one_with_all_that_was_beside_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(make_record(), {"k": np.zeros(2)}, b"weights")
    record = store.save(make_record(accuracy=0.75), {"k": np.ones(2)})
    assert store.arrays(record)["k"].tolist() == [1, 1]
    assert store.weights(record) == b""
    assert len(list(store.trials.iterdir())) == 2
    again = store.save(replace(record, timed=Timed()))  # what it names stays
    assert store.arrays(again)["k"].tolist() == [1, 1]


def test_a_save_that_fails_leaves_the_old_record_with_its_own_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    old = store.save(make_record(), {"k": np.zeros(2)})
    whole = Path.replace

    def full_disk(path: Path, target: Path) -> Path:
        if target.suffix == ".json":
            raise OSError(28, "No space left on device")
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.save(make_record(accuracy=0.75), {"k": np.ones(2)})
    monkeypatch.undo()
    assert store.load().records == {old.id: old}
    assert store.arrays(old)["k"].tolist() == [0, 0]


def test_arrays_that_are_not_the_records_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = store.save(make_record(), {"k": np.zeros(2)})
    (beside,) = store.trials.glob("*.npz")
    beside.write_bytes(beside.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not the file that the record was written with"):
        store.arrays(record)
    beside.unlink()
    with pytest.raises(ValueError, match="No such file"):
        store.arrays(record)


def test_a_torn_file_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good, torn = (store.path(store.save(make_record(seed)).id) for seed in (0, 1))
    torn.write_bytes(torn.read_bytes()[:50])
    contents = store.load()
    assert list(contents.records) == [good.stem]
    assert list(contents.bad) == [torn]


def test_a_record_under_another_name_is_no_second_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path(store.save(make_record()).id)
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


def test_a_claim_is_one_persons_until_it_ends(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path), Store(tmp_path)
    with ours.claim("trial") as first, theirs.claim("trial") as second, theirs.claim("other") as third:
        assert (first, second, third) == (True, False, True)
    with theirs.claim("trial") as later:
        assert later
    assert list(ours.trials.iterdir()) == []


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*\.json'"):
        Store(tmp_path).save(make_record())


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
    for record in contents.records.values():
        assert (Store(tmp_path).arrays(record)["k"] == record.seed).all()

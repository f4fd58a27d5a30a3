"""What is kept of the data, so that planning reads none."""

import json
from pathlib import Path

import pytest

from suites.data import manifest, splits
from suites.data.manifest import Manifest, check_manifest, manifest_of
from suites.definitions.catalog import find_suite

BBC, _ = find_suite("smoke").tasks


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    manifest_of.cache_clear()
    return tmp_path


def of(limit: int | None = None) -> Manifest:
    manifest_of.cache_clear()
    return manifest_of("lookup", limit)


def test_the_data_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = of()
    assert first == Manifest(
        splits.load_splits("lookup").fingerprint, {"train": 11902, "validation": 1701, "test": 3401}
    )

    def read(*_: object) -> None:
        raise AssertionError("it reads")

    monkeypatch.setattr(splits, "load_splits", read)
    assert of() == first
    with pytest.raises(AssertionError, match="it reads"):
        of(100)  # another question


def test_other_code_or_versions_make_it_anew(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    of()
    monkeypatch.setattr(manifest, "fingerprint", lambda _: "other")
    of()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9")
    of()
    assert len(list((cache / "budgetformer").glob("manifest-lookup-*.json"))) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fingerprint": 1}'])
def test_a_file_that_is_torn_is_made_anew(content: str, cache: Path) -> None:
    first = of()
    (file,) = (cache / "budgetformer").glob("manifest-*.json")
    file.write_text(content)
    assert of() == first
    assert json.loads(file.read_text())["fingerprint"] == first.fingerprint


def test_a_file_that_lies_is_found_out(cache: Path) -> None:
    check_manifest(BBC)
    (file,) = (cache / "budgetformer").glob("manifest-bbc-topics-*.json")
    file.write_text(json.dumps({"fingerprint": "f" * 16, "rows": {"train": 1}}))
    manifest_of.cache_clear()
    with pytest.raises(ValueError, match=r"^what is kept of the texts of bbc-topics is not true of them; empty "):
        check_manifest(BBC)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "write", full)
    assert of() == of()

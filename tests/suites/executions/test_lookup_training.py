import numpy as np
import pytest

from suites.executions import lookup_training
from suites.executions.lookup_training import METHODS, LookupTraining, NotTrainedError, word_by_word


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_training, "NUM_EVALUATED", 120)


def test_lookup_is_encoded_word_by_word() -> None:
    data = word_by_word(240)
    assert (data.vocab_size, data.num_classes) == (2 + 12 + 12 * 4, 4)
    splits = (data.train, data.validation, data.test)
    assert [len(split) for split in splits] == [240, 120, 120]
    assert len(set(np.concatenate([split.ids for split in splits]))) == 480
    for split in splits:
        assert np.bincount(split.labels).tolist() == [len(split) / 4] * 4
        assert {tokens[0] for tokens in split.tokens} == {1}
        assert min(tokens[1:].min() for tokens in split.tokens) == 2
        assert split.difficulty is not None
        assert (split.lengths == 1 + 12 + split.difficulty).all()


@pytest.mark.parametrize("method", METHODS)
def test_training_is_real(method: str) -> None:
    timed, learned = LookupTraining(method=method, train_rows=120, epochs=4, device="cpu").measure()
    before, after = learned.history
    assert (before["epoch"], after["epoch"]) == (0, 4)
    assert after["loss"] < before["loss"] < 2
    assert 0 <= learned.metrics["accuracy"] <= 1
    assert len(timed.timings["step"]) == 4 * 4 - 1
    assert learned.ran


def test_a_loss_that_does_not_fall_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_training, "train", lambda *_, **__: None)
    with pytest.raises(NotTrainedError, match=r"^the loss has not fallen: 1\.\d+ before, 1\.\d+ after$"):
        LookupTraining(method="full-mha", train_rows=120, epochs=1, device="cpu").measure()

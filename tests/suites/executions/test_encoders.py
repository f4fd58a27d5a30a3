import pytest

from suites.definitions.catalog import find_suite
from suites.executions.encoders import EncoderTimes, OfEncoders
from suites.executions.peers import PeerTimes

BBC, TWEETS = find_suite("smoke").tasks


def make(kind: type[OfEncoders]) -> OfEncoders:
    return kind(task=TWEETS, width=64, num_heads=8, num_layers=4, rounds=2, device="cpu")


def test_encoders_are_timed_with_heads_chosen_beforehand_and_inside() -> None:
    timed, _ = make(EncoderTimes).measure()
    assert timed.timings.keys() == {
        *("full", "full again", "no attention"),
        *("heads 0.25", "heads 0.5", "given 0.25", "given 0.5"),
    }
    assert all(len(samples) == 2 and min(samples) > 0 for samples in timed.timings.values())


def test_the_question_names_the_inputs_and_the_shares_that_run() -> None:
    question = make(EncoderTimes).question()
    assert question["task"].keys() == {"name", "max_length", "vocab_size", "fingerprint"}
    assert (question["kind"], question["budgets"], question["shares"]) == ("encoder", [0.25, 0.5], [0.25, 0.5])
    twelve = EncoderTimes(task=BBC, width=60, num_heads=6, num_layers=1, rounds=2, device="cpu").question()
    assert twelve["shares"] == [2 / 6, 3 / 6]  # a quarter of 6 heads are 2


def test_peers_are_compared_in_inference_and_training() -> None:
    timed, _ = make(PeerTimes).measure()
    work, peers = (set(parts) for parts in zip(*(name.split(": ") for name in timed.timings), strict=True))
    assert work == {"inference", "inference, no padding", "training"}
    assert {"ours", "ours again", "TransformerEncoder", "TransformerEncoder, fast path"} <= peers
    assert {"inference: ours without the kernel", "training: ours again"} <= timed.timings.keys()
    assert all(min(samples) > 0 for samples in timed.timings.values())
    assert "transformers" in timed.measuring


@pytest.mark.parametrize("kind", [EncoderTimes, PeerTimes])
def test_other_inputs_are_another_question(kind: type[OfEncoders]) -> None:
    ours = make(kind)
    theirs = kind(task=BBC, width=64, num_heads=8, num_layers=4, rounds=2, device="cpu")
    assert ours.question() != theirs.question()
    assert ours.title.endswith("on tweet-sentiment, D = 64")

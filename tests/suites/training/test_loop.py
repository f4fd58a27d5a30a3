import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from baselines.full_mha import FullMHA
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.method import Method
from suites.data.batching import batches, collate, evaluation_order, padded_lengths, training_order
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.measuring.usage import by_difficulty, head_use, quality
from suites.training.evaluate import Evaluation, NotFiniteError, evaluate
from suites.training.loop import TrainingDivergedError, train
from suites.training.model import build_model
from suites.training.seeding import Streams


def make_split(num_inputs: int, seed: int) -> EncodedSplit:
    """Inputs whose first token names their class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_inputs) % 2
    tokens = [np.array([2 + label, *rng.integers(4, 20, rng.integers(0, 9))], dtype=np.int64) for label in labels]
    return EncodedSplit(tokens, labels.astype(np.int64), np.arange(num_inputs))


@pytest.fixture
def data() -> EncodedTask:
    return EncodedTask(make_split(96, 0), make_split(20, 1), make_split(40, 2), vocab_size=20, num_classes=2)


SPEC = EncoderSpec(vocab_size=20, num_classes=2, max_length=10, width=16, num_layers=1, num_heads=4)


def run(data: EncodedTask, method: Method, recipe: Recipe) -> tuple[Any, list[dict[str, float]]]:
    streams = Streams("test", 0)
    model = build_model(SPEC, method, streams)
    return model, train(model, method, data, recipe=recipe, streams=streams, on_step=lambda *_: None)


def test_an_epoch_sees_every_input_once_in_batches_of_like_length(data: EncodedTask) -> None:
    order = training_order(data.train, 8, torch.Generator().manual_seed(0))
    assert sorted(np.concatenate(order).tolist()) == list(range(96))
    spread = [np.ptp(data.train.lengths[rows]) for rows in order]
    assert np.mean(spread) < 2 < np.ptp(data.train.lengths)


def test_the_order_is_a_function_of_the_generator_alone(data: EncodedTask) -> None:
    def order(seed: int) -> list[int]:
        batches = training_order(data.train, 8, torch.Generator().manual_seed(seed))
        return [int(row) for rows in batches for row in rows]

    first, again, other = order(0), order(0), order(1)
    assert first == again != other


def test_a_batch_is_padded_to_its_longest_input(data: EncodedTask) -> None:
    rows = np.array([3, 5, 8])
    batch = collate(data.train, rows)
    assert batch.tokens_BT.shape[1] == data.train.lengths[rows].max()
    assert batch.mask_BT.sum(dim=1).tolist() == data.train.lengths[rows].tolist()
    assert (batch.tokens_BT == 0).eq(~batch.mask_BT).all()
    assert batch.labels_B.tolist() == data.train.labels[rows].tolist()


def test_padded_lengths_are_those_of_the_batches(data: EncodedTask) -> None:
    order = evaluation_order(data.test, 8)
    padded_N = padded_lengths(data.test, order)
    assert sum(batch.tokens_BT.numel() for batch in batches(data.test, order)) == padded_N.sum()
    assert (padded_N >= data.test.lengths).all()


def test_training_learns_and_reports_each_epoch(data: EncodedTask) -> None:
    model, history = run(data, FullMHA(), Recipe(lr=1e-2, epochs=6, batch_size=8))
    assert [entry["epoch"] for entry in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["train_loss"] < history[0]["train_loss"] / 2
    assert history[-1]["validation_accuracy"] == 1
    assert evaluate(FullMHA().for_inference(model), data.test).accuracy == 1


def test_the_same_seed_gives_the_same_history(data: EncodedTask) -> None:
    recipe = Recipe(epochs=2, batch_size=8)
    assert run(data, FullMHA(), recipe)[1] == run(data, FullMHA(), recipe)[1]


def test_the_test_split_is_not_read_in_training(data: EncodedTask) -> None:
    unreadable = EncodedSplit([], data.test.labels, data.test.ids)
    sealed = EncodedTask(data.train, data.validation, unreadable, data.vocab_size, data.num_classes)
    recipe = Recipe(epochs=1, batch_size=8)
    assert run(sealed, FullMHA(), recipe)[1] == run(data, FullMHA(), recipe)[1]


def test_a_loss_that_is_no_number_ends_training(data: EncodedTask) -> None:
    with pytest.raises(TrainingDivergedError, match=r"^the task loss is nan at step \d$"):
        run(data, FullMHA(), Recipe(lr=1e38, epochs=2, batch_size=8))


@dataclass(frozen=True, kw_only=True)
class Odd(Method):
    """Goes wrong in one way or another."""

    name: ClassVar[str] = "odd"
    loss: float = 0.0
    breaks_at_the_end: bool = False

    def extra_losses(self, model: Encoder, output: EncoderOutput, progress: float) -> dict[str, Tensor]:
        return {"odd": output.logits_BC.new_tensor(self.loss)}

    def on_step(self, model: Encoder, progress: float, *_: object) -> None:
        if self.breaks_at_the_end and progress == 1:
            torch.nn.init.constant_(model.classifier.weight, math.nan)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_term_of_the_loss_that_is_no_number_is_named_at_once(loss: float, data: EncodedTask) -> None:
    with pytest.raises(TrainingDivergedError, match=r"^the odd loss is (nan|inf) at step 1$"):
        run(data, Odd(loss=loss), Recipe(epochs=2, batch_size=8))


def test_weights_that_break_in_the_very_last_step_do_not_pass(data: EncodedTask) -> None:
    with pytest.raises(NotFiniteError, match=r"^the loss of input \d+ is nan$"):
        run(data, Odd(breaks_at_the_end=True), Recipe(epochs=1, batch_size=8))


def test_the_rate_rises_then_falls_to_zero() -> None:
    recipe = Recipe(warmup=0.1)
    assert [recipe.lr_factor(p) for p in (0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0},
        {"epochs": 0},
        {"batch_size": -1},
        {"threads": 0},
        {"warmup": 1.0},
        {"epochs": 1.5},
        {"dropout": 1.0},
        {"token_dropout": -0.1},
        {"embedding_std": 0.0},
    ],
)
def test_a_recipe_refuses_what_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_streams_differ_by_task_seed_and_name_alone() -> None:
    numbers = {
        Streams(task, seed).number(stream) for task in "ab" for seed in (0, 1) for stream in ("init", "data", "gate")
    }
    assert len(numbers) == 12
    assert Streams("a", 0).number("init") == Streams("a", 0).number("init") >= 0


def test_evaluation_is_in_the_order_of_the_split(data: EncodedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FullMHA().for_inference(build_model(SPEC, FullMHA(), Streams("test", 0)))
    monkeypatch.setattr("suites.training.evaluate.EVALUATION_BATCH_SIZE", 7)
    whole = evaluate(model, data.test).arrays
    assert whole["label"].tolist() == data.test.labels.tolist()
    one = collate(data.test, np.array([11]))
    logits_BC = model(one.tokens_BT, one.mask_BT).logits_BC
    assert int(logits_BC.argmax()) == whole["prediction"][11]
    loss = torch.nn.functional.cross_entropy(logits_BC, one.labels_B)
    assert float(loss) == pytest.approx(whole["loss"][11], abs=1e-5)


def test_means_are_over_inputs_not_over_batches() -> None:
    # Ten inputs in batches of four: eight with 8 heads and two with 2. The mean of the batches' means is 6.
    k = [8] * 8 + [2] * 2
    active_NLH = np.arange(8) < np.array(k)[:, None, None]
    arrays: dict[str, Any] = {"gates": active_NLH / 2, "s": np.array(k)[:, None] / 8, "label": np.arange(10) % 2}
    use = head_use(arrays)
    assert use["heads_executed"] * 8 == pytest.approx(6.8)
    assert use["s_mean"] * 8 == pytest.approx(6.8)
    assert use["heads_executed_per_layer"] == pytest.approx([0.85])


def test_head_use_without_a_budget_and_with_empty_layers() -> None:
    active_NLH = np.zeros((4, 2, 8), dtype=bool)
    active_NLH[:, 0, :2] = True
    active_NLH[3, 0, 1] = False
    use = head_use({"gates": active_NLH.astype(np.float32), "label": np.array([0, 0, 1, 1])})
    assert use["s_mean"] is None
    assert use["s_mean_per_layer"] is None
    assert use["heads_executed_per_layer"] == [0.21875, 0]
    assert use["heads_executed_per_class"][0] == [0.25, 0]
    assert use["heads_executed_per_class"][1] == [0.1875, 0]
    assert use["use_per_head"] == [[1, 0.75, *[0] * 6], [0] * 8]
    assert (use["no_head_share"], use["one_head_share"]) == (0.5, 0.125)


def test_what_harder_inputs_get() -> None:
    gates_NLH = np.zeros((4, 1, 4), dtype=np.float32)
    for i, k in enumerate((1, 2, 4, 4)):
        gates_NLH[i, 0, :k] = 0.5
    arrays = {"label": np.zeros(4), "prediction": np.array([0, 1, 0, 0]), "gates": gates_NLH}
    found = by_difficulty(arrays | {"difficulty": np.array([1, 1, 3, 3])})
    assert found == {"accuracy_per_difficulty": [0.5, 1.0], "heads_executed_per_difficulty": [0.375, 1.0]}
    assert set(by_difficulty(arrays).values()) == {None}


def test_quality_counts() -> None:
    arrays = {
        "label": np.array([0, 0, 0, 1]),
        "prediction": np.array([0, 1, 0, 1]),
        "loss": np.array([0.5, 1.5, 0.0, 2.0], dtype=np.float32),
    }
    assert quality(arrays) == {"accuracy": 0.75, "test_loss": 1.0, "majority_rate": 0.75}
    assert Evaluation(arrays).accuracy == 0.75

"""A difference between two methods is theirs: same weights, same batches, same dropout."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from baselines.budgeted_gates import BudgetedGates
from baselines.full_mha import FullMHA
from baselines.l0_gates import L0Gates
from baselines.layer_drop import LayerDrop
from baselines.mixture_of_heads import MixtureOfHeads
from baselines.random_k import RandomK
from baselines.random_subset import RandomSubset
from baselines.static_pruning import StaticPruning
from baselines.subset_pruning import SubsetPruning
from budgetformer.adaptive import BudgetFormer
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method
from suites.data.encoded import EncodedSplit, EncodedTask
from suites.definitions.recipe import Recipe
from suites.definitions.registry import METHODS
from suites.training.loop import train
from suites.training.model import build_model
from suites.training.seeding import Streams

SPEC = EncoderSpec(
    vocab_size=20, num_classes=2, max_length=10, width=16, num_layers=2, num_heads=4, dropout=0.2, token_dropout=0.1
)
RECIPE = Recipe(lr=1e-2, epochs=2, batch_size=8)


def make_split(num_inputs: int, seed: int) -> EncodedSplit:
    rng = np.random.default_rng(seed)
    labels = (np.arange(num_inputs) % 2).astype(np.int64)
    tokens = [np.array([2 + label, *rng.integers(4, 20, rng.integers(0, 9))], dtype=np.int64) for label in labels]
    return EncodedSplit(tokens, labels, np.arange(num_inputs))


DATA = EncodedTask(make_split(44, 0), make_split(12, 1), make_split(12, 2), vocab_size=20, num_classes=2)


def train_once(method: Method, seed: int = 0) -> tuple[Encoder, list[dict[str, float]], list[Any]]:
    """The model, its history, and the token batches that it was trained on."""
    streams = Streams("same", seed)
    model = build_model(SPEC, method, streams)
    seen: list[Any] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            seen.append([tensor.tolist() for tensor in inputs])

    handle = model.register_forward_pre_hook(record)
    history = train(model, method, DATA, recipe=RECIPE, streams=streams, on_step=lambda *_: None)
    handle.remove()
    return model, history, seen


@dataclass(frozen=True, kw_only=True)
class Spendthrift(Method):
    """Full attention that wastes random numbers, its own and everybody's."""

    name: ClassVar[str] = "spendthrift"

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        torch.rand(7)
        torch.rand(7, generator=generator)
        return super().gates(spec, generator)

    def on_step(
        self, model: Encoder, progress: float, generator: torch.Generator, calibration: Iterable[LabelledBatch]
    ) -> None:
        torch.rand(7)
        torch.rand(7, generator=generator)
        list(calibration)


@pytest.fixture(scope="module")
def full() -> tuple[Encoder, list[dict[str, float]], list[Any]]:
    return train_once(FullMHA())


@pytest.mark.parametrize("method", [method() for method in METHODS.values()], ids=attrgetter("label"))
def test_every_method_is_trained_on_the_same_batches(method: Method, full: tuple[Any, Any, list[Any]]) -> None:
    seen = train_once(method)[2]
    assert len(seen) == 12
    assert seen == full[2]


def test_another_seed_has_another_order(full: tuple[Any, Any, list[Any]]) -> None:
    assert train_once(FullMHA(), seed=1)[2] != full[2]


@pytest.mark.parametrize(
    "method",
    [
        Spendthrift(),
        RandomK(s=1.0),
        StaticPruning(s=1.0),
        RandomSubset(s=1.0),
        LayerDrop(s=1.0),
        L0Gates(s=1.0, penalty=0.0, start_log_alpha=10.0),
        SubsetPruning(s=1.0),
        SubsetPruning(s=1.0, scope="layer"),
        BudgetedGates(s=1.0, training_budgets="requested"),
        MixtureOfHeads(s=1.0, weights="unit", balance_weight=0.0),
        BudgetFormer(gate="straight-through", reweighting="unit", fixed_s=1.0, learned_relevance=False),
    ],
    ids=attrgetter("label"),
)
def test_methods_that_keep_all_heads_train_as_full_attention_does(
    method: Method, full: tuple[Encoder, list[dict[str, float]], Any]
) -> None:
    model, history, _ = train_once(method)
    for entry, expected in zip(history, full[1], strict=True):
        assert entry["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-5)
        assert entry["validation_accuracy"] == expected["validation_accuracy"]
    ours, theirs = dict(model.named_parameters()), dict(full[0].named_parameters())
    for name, parameter in theirs.items():
        if name.endswith("qkv.bias"):
            continue  # a key's bias has no gradient but rounding, which Adam blows up
        torch.testing.assert_close(ours[name], parameter, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", [method() for method in METHODS.values()], ids=attrgetter("label"))
def test_the_same_seed_trains_the_same_model(method: Method) -> None:
    (first, history, _), (second, again, _) = train_once(method), train_once(method)
    assert history == again
    assert all(torch.equal(first.state_dict()[name], value) for name, value in second.state_dict().items())


@pytest.mark.parametrize(("s", "kept"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_a_pruned_model_has_exactly_k_heads_and_says_the_fraction_asked_for(s: float, kept: int) -> None:
    method = StaticPruning(s=s)
    final = method.for_inference(train_once(method)[0])
    output = final(torch.tensor([[2, 5, 7]]), torch.ones(1, 3, dtype=torch.bool))
    assert (output.gates_BLH > 0).sum(dim=2).tolist() == [[kept, kept]]
    assert [len(layer.attention.heads) for layer in final.layers] == [kept, kept]
    assert output.s_BL is not None
    assert output.s_BL.tolist() == [[s, s]]


@pytest.mark.parametrize("prune_at", [0.0, 0.5, 0.9, 0.99])
def test_a_trained_model_is_pruned_whenever_pruning_is_due(prune_at: float) -> None:
    method = StaticPruning(s=0.5, prune_at=prune_at, prune_until=0.99)
    final = method.for_inference(train_once(method)[0])
    output = final(torch.tensor([[2, 5, 7]]), torch.ones(1, 3, dtype=torch.bool))
    assert (output.gates_BLH > 0).sum(dim=2).tolist() == [[2, 2]]

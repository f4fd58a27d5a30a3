"""Random subsets and dropped layers: which heads, and how many."""

import pytest
import torch

from baselines.layer_drop import LayerDrop
from baselines.random_subset import RandomSubset
from budgetformer.encoder import Encoder, EncoderSpec

SPEC = EncoderSpec(vocab_size=20, num_classes=3, max_length=6, width=16, num_layers=4, num_heads=8)


def kept(method: RandomSubset | LayerDrop, seed: int = 0) -> list[tuple[int, ...]]:
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator().manual_seed(seed)))
    return [layer.attention.heads for layer in method.for_inference(model).layers]


def test_a_random_subset_is_one_of_its_seed() -> None:
    sets = kept(RandomSubset(s=0.5))
    assert [len(heads) for heads in sets] == [4] * 4
    assert len(set(sets)) > 1
    assert kept(RandomSubset(s=0.5)) == sets
    assert kept(RandomSubset(s=0.5), seed=1) != sets


def test_every_head_is_as_likely_to_be_kept() -> None:
    counts = torch.zeros(8)
    for seed in range(500):
        for gate in RandomSubset(s=0.25).gates(SPEC, torch.Generator().manual_seed(seed)):
            counts += gate.get_buffer("gates_H")
    # 2,000 sets of 2 of 8: 500 each, standard deviation 19
    assert ((counts - 500).abs() < 80).all()


@pytest.mark.parametrize(
    ("s", "layers"),
    [(0.0, []), (0.1, [0]), (0.25, [0]), (0.5, [0, 2]), (0.75, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_evenly_spaced_layers_are_kept(s: float, layers: list[int]) -> None:
    assert [layer for layer, heads in enumerate(kept(LayerDrop(s=s))) if len(heads) == 8] == layers


@pytest.mark.parametrize(("drop", "rate"), [(None, 0.25), (0.6, 0.6), (0.0, 0.0), (1.0, 1.0)])
def test_layers_are_dropped_at_their_rate_in_training_alone(drop: float | None, rate: float) -> None:
    method = LayerDrop(s=0.75, drop=drop)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator())).train()
    generator = torch.Generator().manual_seed(0)
    dropped = []
    for _ in range(500):
        method.on_step(model, 0.5, generator, [])
        dropped.append([float(gate.get_buffer("dropped")) for gate in model.gates])
    assert float(torch.tensor(dropped).mean()) == pytest.approx(rate, abs=0.04)
    output = model(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
    assert (1 - output.gates_BLH[0]).tolist() == [[drop_layer] * 8 for drop_layer in dropped[-1]]
    assert [len(layer.attention.heads) for layer in method.for_inference(model).layers] == [8, 8, 8, 0]


@pytest.mark.parametrize("method", [RandomSubset, LayerDrop])
def test_a_fraction_outside_its_range_is_refused(method: type[RandomSubset] | type[LayerDrop]) -> None:
    with pytest.raises(ValueError, match=r"s must be in \[0, 1\], not 1.5"):
        method(s=1.5)

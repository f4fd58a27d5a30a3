import math

import pytest
import torch

from budgetformer.execution import masked
from suites.executions import layers
from suites.executions.layers import (
    CUDA_SHAPES,
    KINDS,
    SHARES,
    Cell,
    Kind,
    LayerTimes,
    Shape,
    calls,
    cells,
    head_sets,
    prepare,
)
from suites.measuring.timing import events, wall
from suites.records.record import PROTOCOL, Learned

SMALL = Shape(400, 3, 24, 6)


def draw(kind: Kind, s: float, shape: Shape = SMALL) -> torch.Tensor:
    return head_sets(Cell(shape, s, kind), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("s", SHARES)
def test_the_share_of_active_heads_is_s_and_differs_between_inputs(kind: Kind, s: float) -> None:
    active_BH = draw(kind, s)
    standard_error = math.sqrt(s * (1 - s) / active_BH.numel())
    assert abs(active_BH.float().mean() - s) <= 4 * standard_error
    assert len(set(active_BH.sum(dim=1).tolist())) > 2 or s == 1


def test_nested_sets_are_prefixes_of_one_order() -> None:
    sets = {tuple(row) for row in draw("nested", 0.5).tolist()}
    assert len(sets) == 7  # one for each number of heads
    for small in sets:
        for large in sets:
            if sum(small) <= sum(large):
                assert all(inside or not active for active, inside in zip(small, large, strict=True))


def test_random_sets_use_heads_alike_and_skewed_ones_do_not() -> None:
    random_H, skewed_H = (draw(kind, 0.25).float().mean(dim=0) for kind in ("random", "skewed"))
    assert random_H.max() / random_H.min() < 1.5
    assert skewed_H.max() / skewed_H.min() > 2.5


def test_the_grid_has_every_shape_share_and_kind_once() -> None:
    grid = cells()
    assert len(set(grid)) == len(grid) == 6 * (4 * 3 + 1)
    assert len(cells(CUDA_SHAPES)) == 8 * 13


@pytest.mark.parametrize("s", [0.1, 0.5, 1.0])
def test_the_pruned_layers_have_the_mean_number_of_heads(s: float) -> None:
    bench = prepare(Cell(Shape(5, 3, 24, 6), s, "random"))
    mean_k = sum(len(layer.heads) * weight for layer, weight in bench.pruned)
    assert mean_k / 6 == pytest.approx(bench.share)
    assert sum(weight for _, weight in bench.pruned) == pytest.approx(1)
    assert bench.share == (bench.gates_BH > 0).float().mean()


def test_calls_compute_what_their_names_say() -> None:
    cell = Cell(Shape(5, 3, 24, 6), 0.5, "random")
    bench = prepare(cell)
    made = calls(cell, bench)
    expected = masked(bench.layer, bench.x_BTD, bench.gates_BH, None)
    torch.testing.assert_close(made["auto"](), expected)
    torch.testing.assert_close(made["plain"](), expected)
    for name in ("full", "full again", "plain full"):
        torch.testing.assert_close(made[name](), masked(bench.layer, bench.x_BTD, None, None))
    for index, (layer, _) in enumerate(bench.pruned):
        assert made[f"pruned {index}"]().shape == (5, 3, 24)
        torch.testing.assert_close(made[f"plain pruned {index}"](), made[f"pruned {index}"]())
        assert len(layer.heads) < 6


def job(device: str = "cpu") -> LayerTimes:
    return LayerTimes(cell=Cell(Shape(5, 3, 24, 6), 0.5, "random"), rounds=3, device=device)


def test_a_measurement_has_samples_of_every_call_and_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"pruned 0": 1.0, "pruned 1": 2.0, "plain pruned 0": 2.0, "plain pruned 1": 4.0}
    clocks = []

    def timer(made: dict[str, object], *, rounds: int, clock: object, **_: object) -> dict[str, list[float]]:
        clocks.append(clock)
        return {name: [seconds.get(name, 9.0)] * rounds for name in made}

    monkeypatch.setattr(layers, "interleave", timer)
    timed, learned = job().measure()
    share = timed.metrics["active_share"]
    above = share * 6 - math.floor(share * 6)
    assert timed.timings["bound"] == pytest.approx([1 + above] * 3)
    assert timed.timings["plain bound"] == pytest.approx([2 + 2 * above] * 3)
    assert {"auto", "full", "full again", "plain", "plain full", "gathered", "masked"} <= timed.timings.keys()
    assert timed.measuring["ran"] in ("compiled", "gathered", "masked")
    assert (timed.measuring["clock"], clocks) == ("wall", [wall])
    assert learned == Learned()
    with monkeypatch.context() as on_cuda:
        on_cuda.setattr(layers, "prepare", lambda cell, _, dtype: prepare(cell, "cpu", dtype))
        assert job("cuda").measure().timed.measuring["clock"] == "events"
    assert clocks == [wall, events]


def test_the_question_is_what_determines_the_answer() -> None:
    assert job().question() == {
        "protocol": PROTOCOL,
        "kind": "layer",
        "device": "cpu",
        "cell": {"shape": [5, 3, 24, 6], "s": 0.5, "kind": "random"},
        "dtype": "float32",
    }
    assert job().title == "times of layer 5x3x24x6, s = 0.5, random, float32"

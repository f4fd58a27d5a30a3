import math

import pytest
import torch

from budgetformer.execution import masked
from suites.executions.grid import (
    CUDA_SHAPES,
    KINDS,
    SHARES,
    Cell,
    Kind,
    Shape,
    calls,
    cells,
    check,
    head_sets,
    measure,
    prepare,
)

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
    assert check(bench) < 1e-5


def test_a_measurement_has_every_ratio_and_they_fit_the_samples() -> None:
    cell = Cell(Shape(5, 3, 24, 6), 0.5, "random")
    seconds = {"auto": 2.0, "full": 4.0, "full again": 4.0, "plain full": 5.0, "plain": 3.0}
    seconds |= {"gathered": 3.0, "masked": 6.0, "mixture of heads": 6.0, "MultiheadAttention": 5.0}
    seconds |= {"pruned 0": 1.0, "pruned 1": 2.0, "plain pruned 0": 2.0, "plain pruned 1": 4.0}
    row = measure(cell, timer=lambda made: {name: [seconds[name]] * 3 for name in made})
    above = row["share"] * 6 - math.floor(row["share"] * 6)
    assert row["ratios"]["auto / full"] == 0.5
    assert row["ratios"]["auto / bound"] == pytest.approx(2 / (1 + above))
    assert row["ratios"]["plain / plain bound"] == pytest.approx(3 / (2 + 2 * above))
    assert row["ratios"]["full / plain full"] == 0.8
    assert row["shape"] == {"batch": 5, "tokens": 3, "width": 24, "num_heads": 6}

import pytest

from suites.records import formulas


def test_the_layer_of_a_known_report() -> None:
    # One layer of width 128 with 8 heads, F = 512, 32 tokens.
    assert formulas.attention_block_macs(32, 128, 8, 16) == 2_359_296
    assert formulas.attention_block_macs(32, 128, 4, 16) == 1_179_648
    assert formulas.attention_block_macs(32, 128, 8, 16) + formulas.ffn_macs(32, 128, 512) == 6_553_600
    assert formulas.attention_block_macs(32, 128, 4, 16) + formulas.ffn_macs(32, 128, 512) == 5_373_952


def test_twice_the_tokens_is_four_times_the_core_and_twice_the_rest() -> None:
    assert formulas.attention_core_macs(64, 8, 16) == 4 * formulas.attention_core_macs(32, 8, 16)
    assert formulas.projection_macs(64, 128, 8, 16) == 2 * formulas.projection_macs(32, 128, 8, 16)
    assert formulas.ffn_macs(64, 128, 512) == 2 * formulas.ffn_macs(32, 128, 512)


def test_the_model_is_the_sum_of_its_parts() -> None:
    layers = sum(formulas.attention_block_macs(32, 128, k, 16) + formulas.ffn_macs(32, 128, 512) for k in (8, 0, 3))
    macs = formulas.model_macs(32, width=128, ffn_width=512, heads=[8, 0, 3], head_width=16, num_classes=4, gate_macs=9)
    assert macs == layers + 128 * 4 + 9


def test_a_mean_number_of_heads_gives_the_mean_count() -> None:
    one, eight = (formulas.attention_block_macs(32, 128, k, 16) for k in (1, 8))
    assert formulas.attention_block_macs(32, 128, 4.5, 16) == (one + eight) / 2


@pytest.mark.parametrize(
    ("tokens", "s", "percent"),
    [(64, 0.085, 3.27), (64, 0.212, 2.76), (64, 0.364, 2.15), (512, 0.601, 9.93), (512, 0.198, 20.00)],
)
def test_the_papers_convention_gives_the_papers_cuts(tokens: int, s: float, percent: float) -> None:
    assert round(100 * formulas.paper_flops_cut(tokens, 768, 8, s), 2) == percent


def test_gates_that_save_nothing_cost_something() -> None:
    assert formulas.paper_flops_cut(64, 768, 8, 1.0) < 0


@pytest.mark.parametrize(
    ("inputs", "s", "full_g", "budgetformer_g"), [(25_000, 0.601, 0.54, 0.48), (50_000, 0.198, 1.075, 0.859)]
)
def test_the_papers_rule_gives_the_papers_emissions(
    inputs: int, s: float, full_g: float, budgetformer_g: float
) -> None:
    """IMDB and Yelp Full: 512 tokens, 4 layers, over the test set."""
    full, ours = (formulas.paper_co2_g(inputs * formulas.paper_flops(512, 768, 8, 4, each)) for each in (None, s))
    assert full == pytest.approx(full_g, abs=0.005)
    assert ours == pytest.approx(budgetformer_g, abs=0.006)


def test_one_head_less_is_the_per_head_formula_less() -> None:
    eight, seven = (formulas.attention_block_macs(32, 128, k, 16) for k in (8, 7))
    assert eight - seven == 4 * 32 * 128 * 16 + 2 * 32**2 * 16


@pytest.mark.parametrize("s", [-0.1, 1.1])
def test_a_fraction_outside_its_range_is_refused(s: float) -> None:
    with pytest.raises(ValueError, match="s must be"):
        formulas.paper_flops_cut(64, 768, 8, s)

"""The controls that take a choice per input away, against hand-made gates."""

import numpy as np
import pytest

from suites.measuring.controls import CONTROLS, control_gates

# Three inputs choose heads 0 and 1, one input head 2, one all four.
GATES_N1H = np.array([[0.5, 1, 0, 0], [1.5, 1, 0, 0], [1, 4, 0, 0], [0, 0, 2, 0], [1, 1, 1, 1]], dtype=np.float32)[
    :, None
]
RELEVANCE_N1H = np.array(
    [[0.4, 0.3, 0.1, 0.2], [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1], [0.3, 0.2, 0.4, 0.1], [0.1, 0.2, 0.3, 0.4]],
    dtype=np.float32,
)[:, None]


@pytest.fixture
def controls() -> dict[str, np.ndarray]:
    return control_gates(GATES_N1H, RELEVANCE_N1H, np.random.default_rng(0))


def test_all_controls_keep_the_shape_and_the_type(controls: dict[str, np.ndarray]) -> None:
    assert tuple(controls) == CONTROLS
    for gates_N1H in controls.values():
        assert gates_N1H.shape == (5, 1, 4)
        assert gates_N1H.dtype == np.float32


def test_no_input_keeps_its_own_gates_and_each_is_used_once() -> None:
    gates_NLH = np.arange(1, 101, dtype=np.float32).reshape(50, 1, 2)
    for seed in range(20):
        shuffled = control_gates(gates_NLH, None, np.random.default_rng(seed))["shuffled"]
        assert (shuffled != gates_NLH).all()
        assert sorted(shuffled.ravel()) == sorted(gates_NLH.ravel())
        assert (shuffled[:, 0, 1] - shuffled[:, 0, 0] == 1).all()  # an input's gates stay together


def test_the_modal_set_is_the_most_frequent_with_its_mean_weights(controls: dict[str, np.ndarray]) -> None:
    assert controls["modal_set"].tolist() == [[[1, 2, 0, 0]]] * 5


def test_random_heads_keep_each_inputs_weights_and_move_the_heads(controls: dict[str, np.ndarray]) -> None:
    random = controls["random_heads"]
    assert np.sort(random, axis=2).tolist() == np.sort(GATES_N1H, axis=2).tolist()
    assert (random != GATES_N1H).any()


def test_mean_k_keeps_the_best_heads_by_relevance_and_the_same_number_for_all(controls: dict[str, np.ndarray]) -> None:
    # k is 2, 2, 2, 1 and 4: 2.2 on average; 11 active gates sum to 15
    weight = pytest.approx(15 / 11)
    mean_k = controls["mean_k"][:, 0].tolist()
    assert mean_k[:3] == GATES_N1H[:3, 0].tolist()
    assert mean_k[3] == [weight, 0, 2, 0]
    assert mean_k[4] == [0, 0, 1, 1]


def test_the_same_number_of_heads_for_all_leaves_out_the_mean() -> None:
    gates_NLH = np.eye(4, dtype=np.float32)[:, None]
    assert tuple(control_gates(gates_NLH, None, np.random.default_rng(0))) == ("shuffled", "modal_set", "random_heads")


def test_a_constant_choice_has_no_controls() -> None:
    assert control_gates(np.ones((5, 2, 4), dtype=np.float32), None, np.random.default_rng(0)) == {}
    assert control_gates(np.ones((1, 2, 4), dtype=np.float32), None, np.random.default_rng(0)) == {}


def test_choices_without_any_head_are_finite() -> None:
    gates_NLH = np.zeros((4, 1, 3), dtype=np.float32)
    gates_NLH[0, 0, 0] = 1
    for gates in control_gates(gates_NLH, None, np.random.default_rng(0)).values():
        assert np.isfinite(gates).all()

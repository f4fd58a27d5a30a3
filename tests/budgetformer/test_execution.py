from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector

from budgetformer import execution as execution_module
from budgetformer.attention import HeadGatedAttention
from budgetformer.execution import EXECUTIONS, Run, _pays, auto, count_executions, find_runs, kernel_fits, plain
from budgetformer.kernel import load_kernel

needs_kernel = pytest.mark.skipif(load_kernel().function is None, reason=load_kernel().description)
COMPILED = pytest.param("compiled", marks=needs_kernel)
FASTER = ["gathered", COMPILED, "auto"]
EVERY = ["masked", *FASTER]
GATES = ["none", "all on", "some", "skewed", "one head", "first head off", "all off", "tiny and huge"]
MASKS = ["none", "right", "left", "holes", "rows of padding"]


class Case(NamedTuple):
    layer: HeadGatedAttention
    x_BTD: Tensor
    gates_BH: Tensor | None
    mask_BT: Tensor | None

    def run(self, execution: str) -> Tensor:
        out_BTD: Tensor = self.layer(self.x_BTD, self.gates_BH, self.mask_BT, execution)
        return out_BTD

    def to(self, dtype: torch.dtype) -> "Case":
        gates_BH = None if self.gates_BH is None else self.gates_BH.to(dtype)
        return Case(self.layer.to(dtype), self.x_BTD.to(dtype), gates_BH, self.mask_BT)


def make_case(
    *,
    batch: int = 5,
    tokens: int = 7,
    width: int = 24,
    num_heads: int = 6,
    head_width: int | None = 4,
    gates: str = "some",
    mask: str = "right",
) -> Case:
    """A frozen layer with an input; gates and masks of a kind."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    layer = HeadGatedAttention(width, num_heads, head_width=head_width).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_((uniform(*parameter.shape) - 0.5) * 3 / width**0.5)
    weights_BH = 0.5 + uniform(batch, num_heads)
    kinds = {
        "all on": weights_BH,
        "some": weights_BH * (uniform(batch, num_heads) < 0.5),
        "skewed": weights_BH
        * (uniform(batch, num_heads) < uniform(batch, 1) * (torch.arange(batch) % 5 != 3)[:, None]),
        "one head": weights_BH * (torch.arange(num_heads) == torch.arange(batch)[:, None] % num_heads),
        "first head off": weights_BH * (torch.arange(num_heads) > 0),
        "all off": weights_BH * 0,
        "tiny and huge": torch.tensor([1e-3, 0.0, 50.0])[torch.arange(batch * num_heads) % 3].view(batch, num_heads),
    }
    length_B1 = (uniform(batch, 1) * tokens).long() + 1
    position_T = torch.arange(tokens)
    masks = {
        "right": position_T < length_B1,
        "left": position_T >= tokens - length_B1,
        "holes": uniform(batch, tokens) < 0.6,
        "rows of padding": (position_T < length_B1) & (torch.arange(batch) % 2 == 1)[:, None],
    }
    return Case(layer, torch.randn(batch, tokens, width, generator=generator), kinds.get(gates), masks.get(mask))


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Up to a share of the largest value."""
    assert expected.isfinite().all()
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


def assert_executions_agree(case: Case, tolerance: float = 1e-5) -> None:
    expected = case.run("masked")
    names = (
        ["gathered", "auto", "compiled"] if kernel_fits(case.layer, case.x_BTD, case.gates_BH) else ["gathered", "auto"]
    )
    for name in names:
        assert_same(case.run(name), expected, tolerance)


@pytest.mark.parametrize("tokens", [1, 3, 15, 16, 17, 64, 65, 100, 200])
def test_executions_agree_at_every_number_of_tokens(tokens: int) -> None:
    assert_executions_agree(make_case(tokens=tokens, mask="holes"))


@pytest.mark.parametrize("head_width", [1, 4, 5, 8, 12, 15, 16, 17, 24, 33])
@pytest.mark.parametrize("width", [1, 16, 33])
def test_executions_agree_at_every_width(width: int, head_width: int) -> None:
    assert_executions_agree(make_case(width=width, num_heads=3, head_width=head_width, tokens=17))


@pytest.mark.parametrize("num_heads", [1, 3, 8, 62, 63, 65, 130])
@pytest.mark.parametrize("batch", [0, 1, 2, 5, 70])
def test_executions_agree_at_every_number_of_inputs_and_heads(batch: int, num_heads: int) -> None:
    assert_executions_agree(make_case(batch=batch, num_heads=num_heads, gates="skewed"))


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("mask", MASKS)
def test_executions_agree_for_every_kind_of_gates_and_mask(gates: str, mask: str) -> None:
    assert_executions_agree(make_case(gates=gates, mask=mask))


@pytest.mark.parametrize("gates", GATES)
def test_executions_agree_without_tokens(gates: str) -> None:
    assert_executions_agree(make_case(tokens=0, gates=gates))


@given(
    batch=st.integers(1, 20),
    tokens=st.integers(1, 70),
    width=st.integers(1, 40),
    num_heads=st.integers(1, 10),
    head_width=st.integers(1, 40),
    gates=st.sampled_from(GATES),
    mask=st.sampled_from(MASKS),
)
@settings(deadline=None, max_examples=60)
def test_executions_agree_at_any_size(
    *, batch: int, tokens: int, width: int, num_heads: int, head_width: int, gates: str, mask: str
) -> None:
    case = make_case(
        batch=batch, tokens=tokens, width=width, num_heads=num_heads, head_width=head_width, gates=gates, mask=mask
    )
    assert_executions_agree(case)


@pytest.mark.parametrize("gates", ["none", "some", "skewed"])
def test_executions_agree_where_the_kernel_takes_the_inputs_in_groups(gates: str) -> None:
    batch, tokens, num_heads, head_width = 40, 80, 12, 32
    assert batch * num_heads * tokens * 3 * head_width > 2 * 2**20  # two groups even if half of the heads are off
    assert_executions_agree(
        make_case(batch=batch, tokens=tokens, width=48, num_heads=num_heads, head_width=head_width, gates=gates)
    )


@pytest.mark.parametrize("execution", EVERY)
def test_where_an_input_uses_no_head_the_output_is_the_bias(execution: str) -> None:
    case = make_case(gates="one head")
    assert case.gates_BH is not None
    case.gates_BH[2] = 0
    assert torch.equal(case.run(execution)[2], case.layer.out.bias.expand(7, 24))


def make_selector(head_width: int = 4) -> HeadGatedAttention:
    """One head: keys and values are the input, the output is its own, queries are the bias, at first 0."""
    layer = HeadGatedAttention(head_width, 1).requires_grad_(False)
    query, key, value = layer.qkv.weight.view(3, head_width, head_width)
    query.zero_()
    key.copy_(torch.eye(head_width))
    value.copy_(torch.eye(head_width))
    layer.out.weight.copy_(torch.eye(head_width))
    layer.qkv.bias.zero_()
    layer.out.bias.zero_()
    return layer


@pytest.mark.parametrize("execution", EVERY)
def test_a_query_of_zeros_gives_the_mean_of_the_real_tokens(execution: str) -> None:
    x_BTD = torch.randn(3, 19, 4, generator=torch.Generator().manual_seed(0))
    mask_BT = torch.arange(19) % 4 > torch.arange(3)[:, None]
    expected = torch.stack([x_TD[mask_T].mean(dim=0) for x_TD, mask_T in zip(x_BTD, mask_BT, strict=True)])
    gates_BH = torch.tensor([[1.0], [0.5], [3.0]])
    found = make_selector()(x_BTD, gates_BH, mask_BT, execution)
    torch.testing.assert_close(found, (gates_BH * expected)[:, None].expand(3, 19, 4))


@pytest.mark.parametrize("execution", EVERY)
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_a_thousand_pick_one_token(sign: int, execution: str) -> None:
    layer = make_selector()
    layer.qkv.bias[0] = sign * 2e3  # a score of +-1000 * x[0], as sqrt(K) is 2
    x_BTD = torch.randn(3, 17, 4, generator=torch.Generator().manual_seed(0))
    x_BTD[:, :, 0] = torch.stack([torch.randperm(17, generator=torch.Generator().manual_seed(i)) for i in range(3)]) - 8
    mask_BT = x_BTD[:, :, 0].abs() < 8  # the two ends are padding
    largest_B = (x_BTD[:, :, 0] * sign).masked_fill(~mask_BT, -9).argmax(dim=1)
    found = layer(x_BTD, None, mask_BT, execution)
    torch.testing.assert_close(found, x_BTD[range(3), largest_B][:, None].expand(3, 17, 4))


def test_executions_agree_on_tensors_that_are_not_contiguous() -> None:
    layer, x_BTD, gates_BH, mask_BT = make_case(gates="all on", mask="holes")
    assert gates_BH is not None
    assert mask_BT is not None
    gates_BH = gates_BH[0] * torch.tensor([1, 0, 1, 0, 0, 1])
    views = Case(
        layer, x_BTD.transpose(0, 1).contiguous().transpose(0, 1), gates_BH.expand(5, 6), mask_BT.t().contiguous().t()
    )
    assert not any(tensor is None or tensor.is_contiguous() for tensor in views[1:])
    expected = Case(layer, x_BTD, gates_BH.repeat(5, 1), mask_BT).run("masked")
    for name in EXECUTIONS if load_kernel().function else ("masked", "gathered", "auto"):
        assert_same(views.run(name), expected)


@pytest.mark.parametrize("execution", FASTER)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.bfloat16])
def test_gates_may_be_of_another_type_than_the_input(dtype: torch.dtype, execution: str) -> None:
    case = make_case()
    assert case.gates_BH is not None
    other = case._replace(gates_BH=(case.gates_BH * 3).to(dtype))
    found = other.run(execution)
    assert found.dtype == torch.float32
    assert_same(found, other.run("masked"))


@pytest.mark.parametrize("execution", FASTER)
def test_an_input_that_is_not_finite_leaves_the_others_alone(execution: str) -> None:
    case = make_case(gates="all on", mask="none")
    expected = case.run(execution)
    case.x_BTD[1, 2, 3] = torch.nan
    case.x_BTD[3, 0, 0] = torch.inf
    found = case.run(execution)
    assert found[[1, 3]].isnan().all()
    assert torch.equal(found[[0, 2, 4]], expected[[0, 2, 4]])


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("execution", ["gathered", "auto"])
def test_in_float64_executions_agree_to_its_precision(execution: str, gates: str) -> None:
    case = make_case(gates=gates).to(torch.float64)
    assert not kernel_fits(case.layer, case.x_BTD, case.gates_BH)
    torch.testing.assert_close(case.run(execution), case.run("masked"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("execution", ["gathered", "auto"])
def test_weights_in_bfloat16_give_its_precision(execution: str) -> None:
    expected, case = make_case().run("masked"), make_case().to(torch.bfloat16)
    assert not kernel_fits(case.layer, case.x_BTD, case.gates_BH)
    assert_same(case.run(execution).float(), expected, 3e-2)


@pytest.mark.parametrize("execution", ["masked", "gathered", "auto"])
@pytest.mark.parametrize("grad", [True, False])
def test_autocast_gives_its_precision(grad: bool, execution: str) -> None:
    case = make_case()
    case.layer.requires_grad_(grad)
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernel_fits(case.layer, case.x_BTD, case.gates_BH)
        found = case.run(execution)
    assert_same(found.detach().float(), make_case().run("masked"), 3e-2)


@pytest.mark.parametrize("execution", EVERY)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_executions_agree_where_nobody_wants_gradients_of_a_layer_that_learns(
    mode: Callable[[], torch.no_grad], execution: str
) -> None:
    expected, case = make_case().run("masked"), make_case()
    case.layer.requires_grad_(True)
    with mode():
        assert_same(case.run(execution), expected)
    assert case.run("masked").requires_grad


@needs_kernel
def test_a_layer_made_in_inference_mode_runs_and_is_never_out_of_date() -> None:
    with torch.inference_mode():
        case = make_case()
        for _ in range(2):
            assert_same(case.run("compiled"), case.run("masked"))
            case.layer.qkv.weight.mul_(2)


def gradients(case: Case, execution: str, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(case.run(execution).square().sum(), leaves, materialize_grads=True)


@pytest.fixture
def gathering_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this ``plain`` gathers wherever a head is skipped."""
    monkeypatch.setattr(execution_module, "_PAIR_FACTOR", 1)
    for name in ("_PER_CALL", "_PER_PAIR", "_PER_ELEMENT"):
        monkeypatch.setattr(execution_module, name, 0)


@pytest.mark.usefixtures("gathering_is_free")
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("execution", ["gathered", "auto"])
def test_gradients_agree_for_inputs_weights_and_active_gates(execution: str, gates: str) -> None:
    case = make_case(gates=gates, mask="rows of padding").to(torch.float64)
    case.layer.requires_grad_(True)
    leaves = [case.x_BTD.requires_grad_(), *case.layer.parameters()]
    if case.gates_BH is not None:
        leaves.append(case.gates_BH.requires_grad_())
    expected, found = gradients(case, "masked", *leaves), gradients(case, execution, *leaves)
    if execution == "gathered" and case.gates_BH is not None:
        # a gate at 0 is a head that is skipped, which says nothing of what it would have done
        active_BH = case.gates_BH > 0
        assert (found[-1][~active_BH] == 0).all()
        expected = (*expected[:-1], expected[-1] * active_BH)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("gathering_is_free")
def test_auto_gathers_for_gates_that_are_given_and_is_masked_for_gates_that_learn() -> None:
    case = make_case()
    case.layer.requires_grad_(True)
    assert case.gates_BH is not None
    with count_executions() as choices:
        case.run("auto")
        case.gates_BH.requires_grad_()
        case.run("auto")
    assert choices == {"gathered": 1, "masked": 1}


def test_a_gate_at_zero_learns_under_auto() -> None:
    case = make_case(gates="first head off")
    assert case.gates_BH is not None
    (grad_BH,) = gradients(case, "auto", case.gates_BH.requires_grad_())
    assert (grad_BH[:, 0] != 0).all()


@pytest.mark.parametrize("execution", ["masked", "gathered", "auto"])
def test_a_head_that_no_input_uses_gives_its_weights_no_gradient(execution: str) -> None:
    case = make_case(gates="first head off")
    case.layer.requires_grad_(True)
    qkv, bias, out = gradients(case, execution, case.layer.qkv.weight, case.layer.qkv.bias, case.layer.out.weight)
    assert (qkv[:12] == 0).all()
    assert (bias[:12] == 0).all()
    assert (out[:, :4] == 0).all()
    assert (qkv[12:].abs().sum(dim=1) > 0).all()
    assert (out[:, 4:] != 0).all()


@pytest.mark.parametrize("execution", ["gathered", "auto"])
def test_a_frozen_layer_passes_gradients_on_to_its_input(execution: str) -> None:
    case = make_case()
    case.x_BTD.requires_grad_()
    assert not kernel_fits(case.layer, case.x_BTD, case.gates_BH)
    (expected,), (found,) = gradients(case, "masked", case.x_BTD), gradients(case, execution, case.x_BTD)
    assert_same(found, expected)


@pytest.mark.usefixtures("gathering_is_free")
@pytest.mark.parametrize("execution", ["masked", "gathered", "auto"])
@pytest.mark.parametrize("off", [[], [0], [0, 1]], ids=["all on", "one off", "all off"])
def test_gradients_are_those_of_differences(execution: str, off: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = HeadGatedAttention(3, 2, head_width=2).double()
    active_BH = torch.ones(2, 2, dtype=torch.float64)
    active_BH[0, off] = 0
    mask_BT = torch.tensor([[True, True, True], [True, False, False]])
    names = [name for name, _ in layer.named_parameters()]

    def run(x_BTD: Tensor, gates_BH: Tensor, *weights: Tensor) -> Tensor:
        inputs = x_BTD, gates_BH * active_BH, mask_BT, execution
        out_BTD: Tensor = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), inputs)
        return out_BTD

    x_BTD = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator).requires_grad_()
    gates_BH = torch.tensor([[0.7, 1.2], [0.4, 0.9]], dtype=torch.float64)
    if execution != "auto":  # which gathers for gates that are given
        gates_BH.requires_grad_()
    assert torch.autograd.gradcheck(run, (x_BTD, gates_BH, *layer.parameters()))


# What torch loads for forward-mode gradients is written for torch.jit.script.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_forward_mode_gradients_are_not_lost_in_the_kernel() -> None:
    case = make_case()

    def tangent(execution: str) -> Tensor:
        def run(x_BTD: Tensor) -> Tensor:
            return case._replace(x_BTD=x_BTD).run(execution)

        with sdpa_kernel(SDPBackend.MATH):  # the only one that has forward-mode gradients on a CPU
            tangent_BTD: Tensor = torch.func.jvp(run, (case.x_BTD,), (case.x_BTD.cos(),))[1]
        return tangent_BTD

    expected = tangent("masked")
    assert expected.abs().max() > 0
    assert_same(tangent("auto"), expected)


def trainable(case: Case) -> Case:
    case.layer.requires_grad_(True)
    return case


def dropping(case: Case) -> Case:
    case.layer.dropout = 0.5
    return case


UNFIT: dict[str, Callable[[Case], Case]] = {
    "float64": lambda case: case.to(torch.float64),
    "weights that learn": trainable,
    "input that learns": lambda case: case._replace(x_BTD=case.x_BTD.requires_grad_()),
    "dropout": dropping,
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_the_kernel_refuses_in_one_line_what_does_not_fit(unfit: Callable[[Case], Case]) -> None:
    case = unfit(make_case())
    with pytest.raises(
        ValueError, match=r"execution compiled needs float32 on a CPU.*\(here: .*\); auto runs"
    ) as error:
        case.run("compiled")
    assert "\n" not in str(error.value)
    with count_executions() as choices:
        assert case.run("auto").isfinite().all()
    assert choices == {"masked": 1}


@needs_kernel
def test_auto_runs_the_kernel_in_evaluation_though_dropout_is_set() -> None:
    case = dropping(make_case())
    case.layer.eval()
    expected = case.run("masked")
    with count_executions() as choices:
        assert_same(case.run("auto"), expected)
    assert choices == {"compiled": 1}


@pytest.mark.parametrize("execution", ["masked", "gathered", "auto"])
def test_dropout_drops_attention_weights_in_training(execution: str) -> None:
    case = dropping(make_case(gates="one head"))
    torch.manual_seed(0)
    first, second = case.run(execution), case.run(execution)
    case.layer.eval()
    assert not torch.equal(first, second)
    assert not torch.equal(first, case.run(execution))


def test_executions_are_counted_as_they_ran_and_by_the_innermost_counter() -> None:
    case = trainable(make_case(gates="none"))
    case.run("auto")
    with count_executions() as outer:
        case.run("auto")
        case.run("masked")
        case.run("gathered")
        with count_executions() as inner:
            assert inner == Counter()
            case.run("auto")
            case.run("auto")
        case.run("auto")
    case.run("auto")
    # full attention has no heads to gather
    assert (outer, inner) == (Counter(masked=4), Counter(masked=2))


def test_a_counter_ends_with_its_block_though_that_fails() -> None:
    case = trainable(make_case())
    with pytest.raises(RuntimeError, match="on purpose"), count_executions() as choices:
        raise RuntimeError("on purpose")
    case.run("auto")
    assert choices == Counter()


SETS = st.integers(0, 12).flatmap(
    lambda num_heads: st.lists(st.lists(st.booleans(), min_size=num_heads, max_size=num_heads), max_size=20).map(
        lambda rows: torch.tensor(rows, dtype=torch.bool).view(len(rows), num_heads)
    )
)
MANY_HEADS = st.integers(0, 2**32).map(
    lambda seed: torch.rand(20, 80, generator=torch.Generator().manual_seed(seed)) < 0.5
)


@given(SETS | MANY_HEADS)
def test_every_active_pair_is_in_exactly_one_run(active_BH: Tensor) -> None:
    order_S, runs = find_runs(active_BH)
    assert sorted(order_S.tolist()) == active_BH.any(dim=1).nonzero().flatten().tolist()
    found = [(i, run.head) for run in runs for i in order_S[run.start : run.stop].tolist()]
    assert len(found) == len(set(found))
    assert set(found) == {(i, head) for i, head in active_BH.nonzero().tolist()}


@given(SETS | MANY_HEADS)
def test_runs_are_maximal_and_numbered_head_by_head(active_BH: Tensor) -> None:
    _, runs = find_runs(active_BH)
    pair = 0
    for run in runs:
        assert run.start < run.stop
        assert run.pair == pair
        pair += run.stop - run.start
    assert pair == active_BH.sum()
    for run, following in pairwise(runs):
        assert run.head < following.head or (run.head == following.head and run.stop < following.start)


@given(st.permutations(range(9)), st.lists(st.integers(0, 9), max_size=30))
def test_nested_sets_need_one_run_for_each_head_in_use(popularity: list[int], sizes: list[int]) -> None:
    active_BH = torch.tensor([[head in popularity[:k] for head in range(9)] for k in sizes], dtype=torch.bool).view(
        -1, 9
    )
    _, runs = find_runs(active_BH)
    assert [run.head for run in runs] == active_BH.any(dim=0).nonzero().flatten().tolist()


def test_nested_sets_may_be_of_as_many_heads_as_a_number_has_bits() -> None:
    sizes_B = torch.randperm(63, generator=torch.Generator().manual_seed(0))
    _, runs = find_runs(torch.arange(62) < sizes_B[:, None])
    assert [run.head for run in runs] == list(range(62))


def test_runs_of_an_example() -> None:
    active_BH = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    order_S, runs = find_runs(active_BH)
    # read as bits of heads 0, 2 and 1: inputs 0 and 3 are 110, which is 4 in Gray code, and input 2 is 101, which is 6
    assert sorted(order_S[:2].tolist()) == [0, 3]
    assert order_S[2:].tolist() == [2]
    assert runs == [Run(0, 0, 3, 0), Run(1, 2, 3, 3), Run(2, 0, 2, 4)]


def pays(batch: int, tokens: int, width: int, num_heads: int, pairs: int) -> bool:
    with torch.device("meta"):
        layer = HeadGatedAttention(width, num_heads)
    gates_BH = (torch.arange(batch * num_heads) < pairs).float().view(batch, num_heads)
    return _pays(layer, torch.empty(1).expand(batch, tokens, width), gates_BH)


SIZES = [(64, 64, 256, 8), (32, 128, 768, 12), (8, 128, 768, 12), (1, 128, 768, 12), (5, 7, 24, 6)]


@pytest.mark.parametrize("size", SIZES)
def test_the_cost_rule_never_prefers_to_skip_fewer_heads(size: tuple[int, int, int, int]) -> None:
    most = size[0] * size[3]
    rule = [pays(*size, pairs) for pairs in sorted({round(most * i / 16) for i in range(17)})]
    assert rule == sorted(rule, reverse=True)


@pytest.mark.parametrize("size", SIZES)
def test_the_cost_rule_computes_all_heads_where_all_are_active(size: tuple[int, int, int, int]) -> None:
    assert not pays(*size, size[0] * size[3])


def test_the_cost_rule_skips_heads_of_large_layers_alone() -> None:
    assert pays(32, 128, 768, 12, 32 * 3)
    assert not pays(1, 7, 24, 6, 0)


@pytest.mark.parametrize(("size", "chosen"), [((8, 64, 256, 8), "gathered"), ((2, 3, 16, 4), "masked")])
def test_plain_runs_what_the_cost_rule_says(size: tuple[int, int, int, int], chosen: str) -> None:
    layer, x_BTD, gates_BH, mask_BT = make_case(
        batch=size[0], tokens=size[1], width=size[2], num_heads=size[3], head_width=None, gates="one head"
    )
    with count_executions() as choices:
        found = plain(layer, x_BTD, gates_BH, mask_BT)
    assert choices == {chosen: 1}
    assert_same(found, layer(x_BTD, gates_BH, mask_BT, "masked"))


def compile_case(case: Case, execution: str, *, fullgraph: bool, backend: str = "eager") -> Tensor:
    torch._dynamo.reset()
    run = torch.compile(lambda *inputs: case.layer(*inputs, execution), fullgraph=fullgraph, backend=backend)
    out_BTD: Tensor = run(*case[1:])
    return out_BTD


def test_masked_compiles_into_one_graph() -> None:
    case = make_case(mask="rows of padding")
    assert_same(compile_case(case, "masked", fullgraph=True), case.run("masked"))


@pytest.mark.parametrize("execution", FASTER)
def test_other_executions_are_a_break_in_the_graph(execution: str) -> None:
    case = make_case()
    assert_same(compile_case(case, execution, fullgraph=False), case.run("masked"))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.compiler\.disable"):
        compile_case(case, execution, fullgraph=True)


@pytest.mark.parametrize("execution", ["auto", "masked"])
def test_a_layer_can_be_exported_for_batches_of_any_size(execution: str) -> None:
    case = make_case()
    layer, x_BTD, gates_BH, _ = case
    assert gates_BH is not None

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x_BTD: Tensor, gates_BH: Tensor) -> Tensor:
            out_BTD: Tensor = layer(x_BTD, gates_BH, None, execution)
            return out_BTD

    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Exported(), (x_BTD, gates_BH), dynamic_shapes={"x_BTD": {0: batch}, "gates_BH": {0: batch}}
    )
    for rows in (len(x_BTD), 2):
        expected = layer(x_BTD[:rows], gates_BH[:rows], None, "masked")
        assert_same(program.module()(x_BTD[:rows], gates_BH[:rows]), expected)


@pytest.mark.parametrize("execution", ["gathered", "compiled"])
def test_what_cannot_be_exported_says_so(execution: str) -> None:
    case = make_case()
    with pytest.raises(ValueError, match=f"^execution {execution} cannot run this layer: it is being exported"):
        torch.export.export(case.layer, (case.x_BTD, case.gates_BH, None, execution))


@pytest.mark.integration
# Inductor itself still uses what this warns of.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
@pytest.mark.parametrize("gates", ["none", "some"])
def test_masked_compiles_to_machine_code_forwards_and_backwards(gates: str) -> None:
    case = trainable(make_case(gates=gates))
    expected, found = case.run("masked"), compile_case(case, "masked", fullgraph=True, backend="inductor")
    assert_same(found.detach(), expected.detach())
    parameters = list(case.layer.parameters())
    theirs, ours = (torch.autograd.grad(out.square().sum(), parameters) for out in (expected, found))
    assert_same(parameters_to_vector(ours), parameters_to_vector(theirs))


def test_auto_is_what_a_layer_runs_unless_told() -> None:
    case = make_case()
    with count_executions() as choices:
        out_BTD = case.layer(*case[1:])
    assert choices.total() == 1
    assert torch.equal(out_BTD, auto(*case))

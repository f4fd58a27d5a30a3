"""The layer as other people's models use it: adapters, hooks, quantised projections, states, transforms, odd gates."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import budgetformer
from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.execution import EXECUTIONS, count_executions
from budgetformer.gates import ConstantGates
from budgetformer.kernel import head_attention
from budgetformer.surgery import compact
from tests.budgetformer.test_kernel import GATES, MASK, D, H, X, draw, make_layer, needs_kernel

NO_GATES = [float("nan"), float("inf"), float("-inf"), -1e-30, -1.0]


@pytest.mark.parametrize("gate", NO_GATES)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("heads", [range(H), [2], []])
def test_gates_that_are_no_weights_are_refused_by_all(gate: float, execution: str, heads: list[int]) -> None:
    layer = make_layer()
    layer.keep(heads)
    gates_BH = GATES.clone()
    gates_BH[3, 1] = gate
    with pytest.raises(ValueError, match=r"^a gate is negative or not a finite number$"):
        layer(X, gates_BH, MASK, execution)


class LowRank(nn.Module):
    """An adapter around a projection, with the names of what it wraps."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.weight, self.bias = base.weight, base.bias
        self.in_features, self.out_features = base.in_features, base.out_features
        self.down = nn.Parameter(draw(2, base.in_features, seed=5) / 4)
        self.up = nn.Parameter(draw(base.out_features, 2, seed=6) / 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.down.t() @ self.up.t()
        return out


def adapted(layer: HeadGatedAttention, name: str) -> None:
    setattr(layer, name, LowRank(getattr(layer, name)))


def hooked(layer: HeadGatedAttention, name: str) -> None:
    getattr(layer, name).register_forward_hook(lambda module, inputs, output: output * 1.5)


def hooked_before(layer: HeadGatedAttention, name: str) -> None:
    getattr(layer, name).register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.5,))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrised(layer: HeadGatedAttention, name: str) -> None:
    parametrize.register_parametrization(getattr(layer, name), "weight", Doubled())


def quantised(layer: HeadGatedAttention, name: str) -> None:
    from_float: Any = torch.ao.nn.quantized.dynamic.Linear.from_float  # torch leaves it untyped
    setattr(layer, name, from_float(prepared(getattr(layer, name))))


def prepared(linear: nn.Linear) -> nn.Linear:
    linear.qconfig = torch.ao.quantization.default_dynamic_qconfig  # type: ignore[assignment]
    return linear


CHANGES = [adapted, hooked, hooked_before, parametrised, quantised]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", ["qkv", "out"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_around_a_projection_is_seen(change: Callable[[HeadGatedAttention, str], None], name: str) -> None:
    layer = make_layer()
    before = layer(X, GATES, MASK)
    change(layer, name)
    with torch.no_grad(), count_executions() as ran:
        found = layer(X, GATES, MASK)
        expected = layer(X, GATES, MASK, "masked")
    assert torch.equal(found, expected)
    assert not torch.allclose(found, before, atol=1e-4)
    assert ran == {"masked": 2}
    for execution in ("gathered", "compiled"):
        with pytest.raises(
            ValueError, match=rf"^execution {execution} cannot run this layer: {name} (is no plain|has a hook)"
        ):
            layer(X, GATES, MASK, execution)
    with pytest.raises(ValueError, match=rf"^heads cannot be removed: {name} "):
        layer.keep([0])


def test_weights_of_several_dtypes_are_not_mixed_in_silence() -> None:
    layer = make_layer()
    layer.out.double()
    for execution in ("gathered", "compiled"):
        with pytest.raises(ValueError, match=r"its weights are of several kinds: .*float32.*float64"):
            layer(X, GATES, MASK, execution)
    with pytest.raises(RuntimeError, match="dtype"):
        layer(X, GATES, MASK)


@pytest.mark.parametrize("fresh", ["full", "other heads", "fewer heads"])
def test_a_state_brings_its_heads_along(fresh: str) -> None:
    saved = make_layer()
    saved.keep([0, 2])
    layer = HeadGatedAttention(D, H).eval().requires_grad_(False)
    layer.keep({"full": range(H), "other heads": [1, 3], "fewer heads": [3]}[fresh])
    layer.load_state_dict(saved.state_dict())
    assert layer.heads == (0, 2)
    assert layer.head_numbers.tolist() == [0, 2]
    assert torch.equal(layer(X, GATES, MASK), saved(X, GATES, MASK))


def test_a_state_from_before_heads_were_numbered_still_loads() -> None:
    saved, layer = make_layer(), HeadGatedAttention(D, H).eval().requires_grad_(False)
    state = saved.state_dict()
    del state["head_numbers"]
    layer.load_state_dict(state)
    assert torch.equal(layer(X, GATES, MASK), saved(X, GATES, MASK))


def test_a_state_of_a_layer_with_more_heads_is_refused() -> None:
    saved = HeadGatedAttention(D, 5)
    saved.keep([1, 4])
    with pytest.raises(ValueError, match=r"a state with the heads \[1, 4\] is not of a layer of 4 heads"):
        HeadGatedAttention(D, H).load_state_dict(saved.state_dict())


def test_gates_that_are_in_the_weights_are_not_applied_again_after_loading() -> None:
    spec = EncoderSpec(vocab_size=9, num_classes=2, max_length=5, width=16, num_layers=1, num_heads=4)

    def model() -> Encoder:
        return Encoder(spec, nn.ModuleList([ConstantGates([0.5, 0.0, 2.0, 1.0])]))

    tokens_BT, mask_BT = torch.arange(10).view(2, 5) % 9, torch.ones(2, 5) > 0
    final = compact(model())
    loaded = model().eval()
    loaded.load_state_dict(final.state_dict())
    assert loaded.layers[0].gates_folded
    found, expected = (each(tokens_BT, mask_BT).logits_BC for each in (loaded, final))
    torch.testing.assert_close(found.detach(), expected)


def test_what_a_layer_without_heads_returns_can_be_written_to() -> None:
    layer = make_layer()
    layer.keep([])
    y_BTD = layer(X, GATES, MASK)
    y_BTD[0, 0] += 1
    assert torch.equal(y_BTD[1], layer.out.bias.expand(len(y_BTD[1]), D))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's attention on a CPU
@pytest.mark.parametrize("gates", [False, True])
def test_vmap_runs_masked_or_says_that_it_does_not(gates: bool) -> None:
    layer = make_layer()
    x_SBTD = X.view(2, 3, *X.shape[1:])
    given = (GATES.view(2, 3, H),) if gates else ()
    found = torch.vmap(layer)(x_SBTD, *given)
    assert torch.allclose(found.flatten(0, 1), layer(X, *([GATES] if gates else []), execution="masked"), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"^execution gathered cannot run this layer: torch\.func transforms its input"
    ):
        torch.vmap(lambda x_BTD: layer(x_BTD, None, None, "gathered"))(x_SBTD)


def test_gradients_by_torch_func_are_those_of_autograd() -> None:
    layer = make_layer()

    def total(x_BTD: Tensor) -> Tensor:
        sum_of_squares: Tensor = layer(x_BTD, GATES).square().sum()
        return sum_of_squares

    x_BTD = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(x_BTD), x_BTD)
    assert torch.allclose(torch.func.grad(total)(X), expected, atol=1e-4)


def packed() -> list[Tensor]:
    return [X, GATES, MASK | ~MASK.any(dim=1, keepdim=True), *make_layer().packed_weights()]


WRONG: dict[str, Callable[[list[Tensor]], object]] = {
    "a wider input": lambda t: t.__setitem__(0, draw(6, 21, D + 1)),
    "a flat input": lambda t: t.__setitem__(0, draw(6, 21)),
    "gates of more inputs": lambda t: t.__setitem__(1, draw(7, H)),
    "gates of fewer heads": lambda t: t.__setitem__(1, draw(6, H - 1)),
    "a mask of fewer tokens": lambda t: t.__setitem__(2, torch.ones(6, 20) > 0),
    "a mask of numbers": lambda t: t.__setitem__(2, torch.ones(6, 21)),
    "weights of fewer heads": lambda t: t.__setitem__(3, t[3][1:]),
    "weights of fewer columns": lambda t: t.__setitem__(3, t[3][:, 1:]),
    "a shorter bias": lambda t: t.__setitem__(4, t[4][:, 1:]),
    "output weights of fewer columns": lambda t: t.__setitem__(5, t[5][:, 1:]),
    "a shorter output bias": lambda t: t.__setitem__(6, t[6][1:]),
    "a double input": lambda t: t.__setitem__(0, t[0].double()),
    "double gates": lambda t: t.__setitem__(1, t[1].double()),
    "half weights": lambda t: t.__setitem__(3, t[3].half()),
    "an input elsewhere": lambda t: t.__setitem__(0, t[0].to("meta")),
    "a mask elsewhere": lambda t: t.__setitem__(2, t[2].to("meta")),
}


@needs_kernel
@pytest.mark.parametrize("what", WRONG)
def test_the_public_operator_refuses_what_it_would_read_out_of_bounds(what: str) -> None:
    tensors = packed()
    WRONG[what](tensors)
    with pytest.raises(ValueError, match=r"shapes?|takes"):
        head_attention(*tensors)


@needs_kernel
def test_the_public_operator_takes_any_strides() -> None:
    tensors = packed()
    expected = torch.ops.budgetformer.head_attention(*tensors)
    strided = [tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for tensor in tensors]
    strided[0] = X.transpose(0, 2).contiguous().transpose(0, 2)
    strided[3] = tensors[3].transpose(0, 3).contiguous().transpose(0, 3)
    assert torch.equal(torch.ops.budgetformer.head_attention(*strided), expected)


SHORT_OF_MEMORY = """
import resource

import torch

from budgetformer import HeadGatedAttention

layer = HeadGatedAttention(64, 4).requires_grad_(False)
torch.set_num_threads(1)
x = torch.randn(1, 400_000, 64)
layer(x[:, :8], execution="compiled")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, -1))
try:
    layer(x, execution="compiled")
except RuntimeError as error:
    print("raised:", str(error)[:200].replace("\\n", " "))
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print("alive", tuple(layer(x[:, :8], execution="compiled").shape))
"""


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_the_kernel_raises_where_memory_is_short() -> None:
    ended = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    raised, alive = ended.stdout.splitlines()
    assert "memory" in raised
    assert alive == "alive (1, 8, 64)"


@pytest.mark.parametrize("name", ["BudgetFormer", "EncoderOutput", "EncoderSpec", "Gates", "Method"])
def test_public_classes_have_types(name: str) -> None:
    assert get_type_hints(getattr(budgetformer, name))

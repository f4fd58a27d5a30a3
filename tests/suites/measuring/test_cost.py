import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.full_mha import FullMHA
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from baselines.static_pruning import StaticPruning
from budgetformer.adaptive import BudgetFormer
from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.gates import Gates
from budgetformer.importance import LabelledBatch
from budgetformer.method import Method
from suites.measuring import cost
from suites.measuring.cost import ExecutedMacs, traced_macs
from suites.records import formulas

SPEC = EncoderSpec(vocab_size=50, num_classes=3, max_length=16, width=32, num_layers=2, num_heads=8, ffn_width=48)
BATCH, TOKENS = 5, 12


def inputs() -> tuple[Tensor, Tensor]:
    tokens_BT = torch.randint(1, 50, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    lengths_B = torch.tensor([12, 1, 7, 3, 12])
    mask_BT = torch.arange(TOKENS) < lengths_B[:, None]
    return tokens_BT * mask_BT, mask_BT


def run_model(method: Method, execution: str = "auto") -> Encoder:
    torch.manual_seed(0)
    model = Encoder(SPEC, method.gates(SPEC, torch.Generator().manual_seed(1)))
    calibration = [LabelledBatch(*inputs(), torch.zeros(BATCH, dtype=torch.long))]
    method.on_step(model, 0.9, torch.Generator().manual_seed(2), calibration)
    return method.for_inference(model, execution)


def closed_form(k: float, gate_macs: float = 0) -> float:
    per_input = formulas.model_macs(
        TOKENS, width=32, ffn_width=48, heads=[k, k], head_width=4, num_classes=3, gate_macs=gate_macs
    )
    return BATCH * per_input


def executed_macs(model: Callable[..., Any], *arguments: Tensor) -> int:
    with torch.inference_mode(), ExecutedMacs() as counter:
        model(*arguments)
    return counter.macs


@pytest.mark.parametrize(
    ("method", "execution", "k"),
    [
        (FullMHA(), "auto", 8),
        (StaticPruning(s=0.25), "masked", 8),  # a mask saves nothing
        (StaticPruning(s=0.25), "auto", 2),
        (RandomK(s=0.25), "masked", 8),
        (NoAttention(), "auto", 0),
    ],
)
def test_both_counters_agree_with_the_closed_form(method: Method, execution: str, k: int) -> None:
    model = run_model(method, execution)
    assert executed_macs(model, *inputs()) == closed_form(k)
    assert traced_macs(model, *inputs()) == closed_form(k)


@pytest.mark.parametrize("execution", ["gathered", "compiled"])
@pytest.mark.parametrize("s", [0.25, 1.0, 0.0])
def test_gathered_heads_are_counted_as_they_ran(s: float, execution: str) -> None:
    assert executed_macs(run_model(RandomK(s=s), execution), *inputs()) == closed_form(8 * s)


@pytest.mark.parametrize("execution", ["gathered", "compiled"])
def test_budgets_that_differ_between_inputs_add_up(execution: str) -> None:
    model = run_model(BudgetFormer(start_budget=0.5), execution)
    for layer in model.layers:
        nn.init.normal_(layer.gate.budget.output.weight, std=20)  # type: ignore[union-attr, arg-type]
    with torch.inference_mode(), ExecutedMacs() as counter:
        output = model(*inputs())
    heads_BL = (output.gates_BLH > 0).sum(dim=2)
    assert len(heads_BL.unique()) > 2
    attention = sum(formulas.attention_block_macs(TOKENS, 32, int(k), 4) for k in heads_BL.flatten())
    assert counter.macs == closed_form(0, GATE_MACS) + attention


# Per layer: budget network D -> D/2 -> 1, relevance network D -> H.
GATE_MACS = 2 * (32 * 16 + 16 + 32 * 8)


def test_the_gates_own_products_are_counted() -> None:
    model = run_model(BudgetFormer(), "masked")
    assert executed_macs(model, *inputs()) == traced_macs(model, *inputs()) == closed_form(8, GATE_MACS)


def test_twice_the_tokens_is_four_times_the_core_and_twice_the_projections() -> None:
    layer = HeadGatedAttention(32, 8)
    short, long = (executed_macs(layer, torch.zeros(1, tokens, 32)) for tokens in (8, 16))
    core, projections = formulas.attention_core_macs(8, 8, 4), formulas.projection_macs(8, 32, 8, 4)
    assert (short, long) == (core + projections, 4 * core + 2 * projections)


class Attention(nn.Module):
    def forward(self, query: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(query, query, query, attn_mask=mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_attention_alone_in_every_grad_mode(grad: Callable[[], Any], masked: bool) -> None:
    mask = torch.ones(1, 1, 1, 64, dtype=torch.bool) if masked else None
    with grad():
        query = torch.zeros(1, 12, 64, 64)
        query.requires_grad_(torch.is_grad_enabled())
        with ExecutedMacs() as counter:
            Attention()(query, mask)
    assert counter.macs == 6_291_456
    assert counter.get_total_flops() == 12_582_912


def test_the_tracers_attention_alone() -> None:
    class OneAttention(Encoder):
        def forward(self, tokens_BT: Tensor, mask_BT: Tensor, gates_BLH: Tensor | None = None) -> Any:
            query = torch.zeros(1, 12, 64, 64)
            return (F.scaled_dot_product_attention(query + tokens_BT[0, 0], query, query), None)

    model = OneAttention(SPEC, FullMHA().gates(SPEC, torch.Generator()))
    assert traced_macs(model, *inputs()) == 6_291_456


def test_one_vector_through_one_layer() -> None:
    with ExecutedMacs() as counter:
        nn.Linear(10, 20, bias=False)(torch.zeros(1, 10))
    assert (counter.macs, counter.get_total_flops()) == (200, 400)


@pytest.mark.parametrize(
    ("product", "macs"),
    [
        (lambda x_BTD: torch.mm(x_BTD[:, 0], torch.zeros(32, 8)), 32 * 8),
        (lambda x_BTD: torch.addmm(torch.zeros(8), x_BTD[:, 0], torch.zeros(32, 8)), 32 * 8),
        (lambda x_BTD: torch.bmm(x_BTD, torch.zeros(BATCH, 32, 8))[:, 0], TOKENS * 32 * 8),
        # The left factor is broadcast over the batch.
        (lambda x_BTD: (torch.zeros(8, 32) @ x_BTD.transpose(1, 2))[:, :, 0], 8 * 32 * TOKENS),
    ],
    ids=["mm", "addmm", "bmm", "matmul"],
)
def test_every_kind_of_product_is_counted(product: Callable[[Tensor], Tensor], macs: int) -> None:
    class Multiplying(nn.Module):
        def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
            return Gates(product(x_BTD).abs())

    model = Encoder(SPEC, nn.ModuleList(Multiplying() for _ in range(2))).eval()
    assert traced_macs(model, *inputs()) == executed_macs(model, *inputs()) == closed_form(8, 2 * macs)


def test_a_route_that_depends_on_the_input_is_not_traced() -> None:
    with pytest.raises(ValueError, match="gathered"):
        traced_macs(run_model(RandomK(s=0.25)), *inputs())


class Unsupported(nn.Module):
    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        return Gates(torch.einsum("btd,btd->b", x_BTD, x_BTD)[:, None].expand(-1, 8))


def test_an_unknown_product_stops_the_tracer() -> None:
    model = Encoder(SPEC, nn.ModuleList(Unsupported() for _ in range(2)))
    with pytest.raises(ValueError, match="aten::einsum"):
        traced_macs(model, *inputs())


@pytest.mark.parametrize(
    ("execution", "operator"),
    [("masked", "aten::scaled_dot_product_attention"), ("compiled", "aten::scaled_dot_product_attention")],
)
def test_a_tracer_without_a_handle_for_attention_stops(
    execution: str, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(cost._TRACED, operator)
    with pytest.raises(ValueError, match=operator):
        traced_macs(run_model(FullMHA(), execution), *inputs())


def test_an_unknown_product_stops_the_counter() -> None:
    native = nn.TransformerEncoderLayer(32, 8, batch_first=True).eval()
    with pytest.raises(ValueError, match="_transformer_encoder_layer_fwd"):
        executed_macs(native, torch.zeros(1, 4, 32))


def test_counting_leaves_the_model_as_it_was_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = Encoder(SPEC, FullMHA().gates(SPEC, torch.Generator()))
    with caplog.at_level(logging.DEBUG):
        traced_macs(model, *inputs())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model._forward_hooks
    assert not caplog.records


@pytest.mark.parametrize("name", ["aten::lgamma", "aten::layer_norm", "aten::softmax", "aten::mul", "aten::scatter_"])
def test_elementwise_operators_are_not_suspected(name: str) -> None:
    assert not cost._MAY_MULTIPLY.search(name)


class LowRank(nn.Module):
    """An adapter of rank 2 around a projection."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.bias = base.bias
        self.out_features = base.out_features
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def test_an_adapter_is_counted_with_what_it_wraps() -> None:
    model = run_model(FullMHA())
    before = executed_macs(model, *inputs())
    for layer in model.layers:
        layer.attention.qkv = LowRank(layer.attention.qkv)  # type: ignore[assignment]
    extra = 2 * BATCH * TOKENS * 2 * (32 + 3 * 32)
    assert executed_macs(model, *inputs()) == before + extra


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantised_projection_is_not_counted_as_nothing() -> None:
    model = run_model(FullMHA())
    linear = model.layers[0].attention.qkv
    linear.qconfig = torch.ao.quantization.default_dynamic_qconfig  # type: ignore[assignment]
    from_float: Any = torch.ao.nn.quantized.dynamic.Linear.from_float  # torch leaves it untyped
    model.layers[0].attention.qkv = from_float(linear)
    with pytest.raises(ValueError, match=r"no formula for quantized\.linear_dynamic, which may contain"):
        executed_macs(model, *inputs())

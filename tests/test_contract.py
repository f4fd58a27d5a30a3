"""What every method must hold to, whatever it does."""

import json
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from torch import Tensor

from baselines.budgeted_gates import BudgetedGates
from baselines.full_mha import FullMHA
from baselines.l0_gates import L0Gates
from baselines.layer_drop import LayerDrop
from baselines.mixture_of_heads import MixtureOfHeads
from baselines.no_attention import NoAttention
from baselines.random_k import RandomK
from baselines.random_subset import RandomSubset
from baselines.static_pruning import StaticPruning
from baselines.subset_pruning import SubsetPruning
from budgetformer.adaptive import BudgetFormer, BudgetFormerST
from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.importance import LabelledBatch
from budgetformer.kernel import load_kernel
from budgetformer.method import Method
from budgetformer.surgery import execution_of
from suites.definitions.registry import METHODS
from suites.training.model import build_model
from suites.training.seeding import Streams

SPEC = EncoderSpec(
    vocab_size=50, num_classes=3, max_length=12, width=32, num_layers=2, num_heads=8, ffn_width=48, dropout=0.0
)
BF = BudgetFormer()
VARIANTS: list[Method] = [
    *(method() for method in METHODS.values()),
    *(RandomK(s=s) for s in (0.0, 0.5, 1.0)),
    *(StaticPruning(s=s) for s in (0.0, 0.5, 1.0)),
    StaticPruning(score="magnitude", scope="global"),
    StaticPruning(score="random", scope="global", min_heads=1),
    *(SubsetPruning(s=s, scope="layer") for s in (0.5, 1.0)),
    *(BudgetedGates(s=s) for s in (0.0, 1.0)),
    BudgetedGates(training_budgets="requested", dense=0.0),
    *(MixtureOfHeads(s=s) for s in (0.0, 0.5, 1.0)),
    *(MixtureOfHeads(weights=weights, s=0.5) for weights in ("renormalised", "unit")),
    *(MixtureOfHeads(shared=shared, s=0.5) for shared in (0.0, 1.0)),
    *(LayerDrop(s=s) for s in (0.0, 1.0)),
    LayerDrop(drop=0.0),
    L0Gates(s=0.5),
    *(replace(BF, gate=gate) for gate in ("s*p", "min(1,s*H*p)", "straight-through")),
    *(replace(BF, reweighting=weight) for weight in ("weighted", "unit")),
    *(replace(BF, rounding=rounding, start_budget=0.3) for rounding in ("ceil", "nearest")),
    replace(BF, start_budget=0.05),
    replace(BF, start_budget=0.05, min_heads=1),
    replace(BF, fixed_s=0.5),
    replace(BF, learned_relevance=False, start_budget=0.5),
    *(replace(BF, summary=summary) for summary in ("max", "first")),
    replace(BF, target_s=0.5),
    replace(BF, detach_summary=True),
    replace(BudgetFormerST(), reweighting="renormalised", target_s=None),
    replace(BF, noise_law="gumbel"),
    replace(BF, noise_law="none"),
    replace(BF, shared_networks=True, start_budget=0.4),
]
PER_INPUT = [method for method in VARIANTS if isinstance(method, RandomK | BudgetFormer | MixtureOfHeads)]
every_method = pytest.mark.parametrize("method", VARIANTS, ids=attrgetter("label"))


def make_batch(lengths: tuple[int, ...] = (12, 5, 9, 1, 7, 3)) -> LabelledBatch:
    tokens_BT = torch.randint(
        1, SPEC.vocab_size, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(5)
    )
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return LabelledBatch(tokens_BT * mask_BT, mask_BT, torch.arange(len(lengths)) % SPEC.num_classes)


BATCH = make_batch()


def make_model(method: Method, seed: int = 0) -> Encoder:
    """A model as it is late in training: pruned, at a low temperature."""
    model = build_model(SPEC, method, Streams("contract", seed))
    with torch.no_grad():  # relevance and budgets that differ between inputs
        for gate in model.gates:
            for parameter in gate.parameters():
                parameter.mul_(3)
    method.on_step(model, 0.9, torch.Generator().manual_seed(1), [BATCH])
    return model


def run(model: Encoder, batch: LabelledBatch = BATCH) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        output = model(batch.tokens_BT, batch.mask_BT)
    return output.logits_BC, output.gates_BLH


@every_method
def test_shapes_and_ranges_in_training_and_at_inference(method: Method) -> None:
    model = make_model(method).train()
    for each in (model, method.for_inference(model)):
        output = each(BATCH.tokens_BT, BATCH.mask_BT)
        assert output.logits_BC.shape == (6, 3)
        assert output.gates_BLH.shape == (6, 2, 8)
        assert output.gates_BLH.isfinite().all()
        assert (output.gates_BLH >= 0).all()
        if output.s_BL is not None:
            assert output.s_BL.shape == (6, 2)
            assert ((output.s_BL >= 0) & (output.s_BL <= 1)).all()
        if output.relevance_BLH is not None:
            torch.testing.assert_close(output.relevance_BLH.sum(dim=-1), torch.ones(6, 2))


@every_method
def test_gradients_reach_every_parameter(method: Method) -> None:
    model = build_model(SPEC, method, Streams("contract", 0)).train()
    method.on_step(model, 0.0, torch.Generator().manual_seed(1), [BATCH])
    output = model(BATCH.tokens_BT, BATCH.mask_BT)
    loss = torch.nn.functional.cross_entropy(output.logits_BC, BATCH.labels_B)
    loss = loss + sum(method.extra_losses(model, output, 0.0).values())
    loss.backward()  # type: ignore[no-untyped-call]
    closed_layers = [layer for layer in range(SPEC.num_layers) if (output.gates_BLH[:, layer] == 0).all()]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # a head that no input uses learns nothing; nor does what stands before a layer whose heads are all off
        closed = any(name.startswith(f"blocks.{layer}.") for layer in closed_layers) and any(
            part in name for part in (".qkv.", ".out.weight", ".gate.", ".attention_norm.")
        )
        if not closed and not name.endswith("qkv.bias"):
            assert parameter.grad.abs().sum() > 0, name


@every_method
def test_parameters_survive_json(method: Method) -> None:
    assert type(method)(**json.loads(json.dumps(method.params))) == method


@every_method
@pytest.mark.parametrize("execution", ["masked", "auto"])
def test_padding_and_company_change_nothing(method: Method, execution: str) -> None:
    final = method.for_inference(make_model(method), execution)
    logits_BC, gates_BLH = run(final)
    for i, length in enumerate(BATCH.mask_BT.sum(dim=1).tolist()):
        alone = LabelledBatch(
            BATCH.tokens_BT[i : i + 1, :length], BATCH.mask_BT[i : i + 1, :length], BATCH.labels_B[:1]
        )
        logits_1C, gates_1LH = run(final, alone)
        torch.testing.assert_close(logits_1C[0], logits_BC[i], atol=1e-5, rtol=1e-5)
        assert (gates_1LH[0] > 0).eq(gates_BLH[i] > 0).all()


@every_method
def test_every_execution_gives_the_same_logits(method: Method) -> None:
    model = make_model(method)
    logits_BC, gates_BLH = run(method.for_inference(model, "masked"))
    others: list[str] = ["auto", "gathered"]
    if load_kernel().function:
        others.append("compiled")
    if method not in PER_INPUT:
        others.append("sliced")
    for execution in others:
        other_BC, other_BLH = run(method.for_inference(model, execution))
        torch.testing.assert_close(other_BC, logits_BC, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other_BLH, gates_BLH)


@pytest.mark.parametrize("method", PER_INPUT, ids=attrgetter("label"))
def test_what_depends_on_the_input_cannot_be_sliced(method: Method) -> None:
    with pytest.raises(ValueError, match="cannot be sliced; use auto"):
        method.for_inference(make_model(method), "sliced")


@every_method
def test_for_inference_leaves_the_model_as_it_was(method: Method) -> None:
    model = make_model(method).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    final = method.for_inference(model)
    with torch.no_grad():
        for parameter in final.parameters():
            parameter.zero_()
    assert model.training
    assert not final.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@every_method
def test_the_same_seed_gives_the_same_model_and_choices(method: Method) -> None:
    first, again, other = (run(method.for_inference(make_model(method, seed))) for seed in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


@every_method
def test_inputs_of_padding_alone_are_finite(method: Method) -> None:
    empty = LabelledBatch(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool), BATCH.labels_B[:2])
    model = make_model(method)
    for execution in ("masked", "auto"):
        assert run(method.for_inference(model, execution), empty)[0].isfinite().all()


@every_method
def test_a_dropped_head_has_no_effect_and_a_kept_one_has(method: Method) -> None:
    final = method.for_inference(make_model(method), "masked")
    logits_BC, gates_BLH = run(final)
    for index, layer in enumerate(final.layers):
        for head in range(SPEC.num_heads):
            rows, columns = slice(head * 12, (head + 1) * 12), slice(head * 4, (head + 1) * 4)  # K = 4
            qkv, out = layer.attention.qkv.weight, layer.attention.out.weight
            saved = qkv[rows].clone(), out[:, columns].clone()
            qkv[rows], out[:, columns] = torch.randn(12, SPEC.width), torch.randn(SPEC.width, 4)
            changed_BC, _ = run(final)
            qkv[rows], out[:, columns] = saved
            gate_B = gates_BLH[:, index, head]
            assert torch.equal(changed_BC[gate_B == 0], logits_BC[gate_B == 0])
            kept_B = gate_B > 1e-3  # a weight below that is lost in rounding
            assert (changed_BC[kept_B] != logits_BC[kept_B]).any(dim=1).all()


FULL_IN_DISGUISE = [
    RandomK(s=1.0),
    StaticPruning(s=1.0),
    RandomSubset(s=1.0),
    LayerDrop(s=1.0),
    L0Gates(s=1.0, penalty=0.0, start_log_alpha=10.0),
    SubsetPruning(s=1.0),
    BudgetedGates(s=1.0),
    MixtureOfHeads(s=1.0, weights="unit"),
    BudgetFormer(fixed_s=1.0, reweighting="unit"),
    BudgetFormer(fixed_s=1.0, reweighting="unit", gate="straight-through"),
    BudgetFormerST(fixed_s=1.0, target_s=None),
]


def test_every_method_can_be_full_attention() -> None:
    assert {type(method) for method in FULL_IN_DISGUISE} == set(METHODS.values()) - {FullMHA, NoAttention}


@pytest.mark.parametrize("method", FULL_IN_DISGUISE, ids=attrgetter("label"))
@pytest.mark.parametrize("execution", ["masked", "auto"])
def test_all_heads_are_full_attention(method: Method, execution: str) -> None:
    full_BC, _ = run(FullMHA().for_inference(make_model(FullMHA())))
    logits_BC, gates_BLH = run(method.for_inference(make_model(method), execution))
    assert (gates_BLH == 1).all()
    torch.testing.assert_close(logits_BC, full_BC, atol=1e-5, rtol=1e-5)


@every_method
def test_shared_weights_start_the_same_whatever_the_method(method: Method) -> None:
    streams = Streams("contract", 3)
    full = dict(build_model(SPEC, FullMHA(), streams).named_parameters())
    ours = {name: p for name, p in build_model(SPEC, method, streams).named_parameters() if ".gate." not in name}
    assert ours.keys() == full.keys()
    assert all(torch.equal(ours[name], full[name]) for name in full)
    other = dict(build_model(SPEC, FullMHA(), Streams("contract", 4)).named_parameters())
    assert not torch.equal(other["classifier.weight"], full["classifier.weight"])


@every_method
def test_building_a_model_draws_nothing_from_the_global_generator(method: Method) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    build_model(SPEC, method, Streams("contract", 0))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("method", [method for method in VARIANTS if method not in PER_INPUT], ids=attrgetter("label"))
def test_removed_heads_have_no_weights_left(method: Method) -> None:
    final = method.for_inference(make_model(method))
    assert execution_of(final) == ("dense" if isinstance(method, FullMHA) else "sliced")
    for index, layer in enumerate(final.layers):
        heads = (run(final)[1][0, index] > 0).nonzero().flatten().tolist()
        assert list(layer.attention.heads) == heads
        assert layer.attention.qkv.weight.shape == (len(heads) * 3 * 4, 32)
        assert layer.attention.out.weight.shape == (32, len(heads) * 4)


@every_method
def test_what_is_run_agrees_with_the_model_that_was_trained(method: Method) -> None:
    model = make_model(method)
    logits_BC, gates_BLH = run(model.eval())
    final_BC, final_BLH = run(method.for_inference(model))
    torch.testing.assert_close(final_BC, logits_BC, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(final_BLH, gates_BLH)


@pytest.mark.parametrize("k", [0, 2, 4])
def test_methods_that_are_told_how_many_heads_run_as_many(k: int) -> None:
    s = k / SPEC.num_heads
    for method in (RandomK(s=s), RandomSubset(s=s), StaticPruning(s=s), BudgetedGates(s=s), MixtureOfHeads(s=s)):
        assert (run(method.for_inference(make_model(method)))[1] > 0).sum(dim=2).eq(k).all()
    assert (
        (run(SubsetPruning(s=s).for_inference(make_model(SubsetPruning(s=s))))[1] > 0).sum(dim=(1, 2)).eq(2 * k).all()
    )


def test_random_heads_are_new_at_each_step_and_fixed_at_inference() -> None:
    method = RandomK(s=0.5)
    model = make_model(method).train()
    first = run(model)[1]
    method.on_step(model, 0.9, torch.Generator().manual_seed(2), [])
    assert not torch.equal(run(model)[1], first)
    assert (run(model)[1].sum(dim=2) == 4).all()
    chosen = run(method.for_inference(model))[1]
    method.on_step(model, 0.9, torch.Generator().manual_seed(3), [])
    assert torch.equal(run(method.for_inference(model))[1], chosen)
    assert len({tuple(row) for row in chosen[:, 0].tolist()}) > 1


def test_pruning_keeps_the_heads_with_the_largest_gradients() -> None:
    method = StaticPruning(s=0.25, prune_steps=1)
    model = build_model(SPEC, method, Streams("contract", 0))
    # E_x |dL/dgate| by finite differences on the gates, one input at a time
    step = 1e-3
    importance_LH = torch.zeros(2, 8, dtype=torch.float64)
    model.double().eval()
    for layer in range(2):
        for head in range(8):
            for i in range(len(BATCH.labels_B)):
                losses = []
                for sign in (1, -1):
                    gates_H = model.gates[layer].get_buffer("gates_H")
                    gates_H[head] = 1 + sign * step
                    with torch.no_grad():
                        logits_BC = model(BATCH.tokens_BT[i : i + 1], BATCH.mask_BT[i : i + 1]).logits_BC
                    losses.append(torch.nn.functional.cross_entropy(logits_BC, BATCH.labels_B[i : i + 1]))
                    gates_H[head] = 1
                importance_LH[layer, head] += (losses[0] - losses[1]).abs() / (2 * step) / len(BATCH.labels_B)
    method.on_step(model, 0.2, torch.Generator(), [BATCH])
    assert all((gate.get_buffer("gates_H") == 1).all() for gate in model.gates)
    method.on_step(model, 0.5, torch.Generator(), [BATCH])
    for gate, scores_H in zip(model.gates, importance_LH, strict=True):
        kept = gate.get_buffer("gates_H").nonzero().flatten().tolist()
        assert kept == sorted(scores_H.topk(2).indices.tolist())

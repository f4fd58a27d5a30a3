"""The cost columns of a record: three counts that know nothing of one another, and what is derived from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgetformer.encoder import Encoder
from budgetformer.surgery import execution_of
from suites.data.batching import collate, evaluation_order, padded_lengths
from suites.data.encoded import EncodedSplit
from suites.measuring.cost import ExecutedMacs, traced_macs
from suites.records.formulas import (
    attention_block_macs,
    attention_core_macs,
    model_macs,
    paper_co2_g,
    paper_flops,
    paper_flops_cut,
)
from suites.training.evaluate import EVALUATION_BATCH_SIZE


def cost_metrics(
    model: Encoder, gates_NLH: NDArray[np.float32], counter: ExecutedMacs, test: EncodedSplit, device: str
) -> dict[str, Any]:
    """What a model's inference costs, in MACs per input.

    Args:
        model: the one that is run.
        gates_NLH: the gates of every test input.
        counter: of the evaluation of all of them.
        test: the inputs.
        device: where the model is.
    """
    spec = model.spec
    head_width = spec.width // spec.num_heads
    k_NL = (gates_NLH > 0).sum(axis=2)
    gate_macs = counter.gate_macs / len(test)

    def closed_form(tokens: float, heads: NDArray[np.int64], gates: float) -> float:
        return model_macs(
            int(tokens),
            width=spec.width,
            ffn_width=spec.ffn_size,
            heads=heads.tolist(),
            head_width=head_width,
            num_classes=spec.num_classes,
            gate_macs=gates,
        )

    padded_N = padded_lengths(test, evaluation_order(test, EVALUATION_BATCH_SIZE))
    inputs = list(zip(padded_N.tolist(), k_NL, strict=True))
    # Linear in k, so the layers of an input can be added up first.
    core = [attention_core_macs(tokens, int(k_L.sum()), head_width) for tokens, k_L in inputs]
    block = [attention_block_macs(tokens, spec.width, int(k_L.sum()), head_width) for tokens, k_L in inputs]
    unpadded = [closed_form(tokens, k_L, gate_macs) for tokens, k_L in zip(test.lengths, k_NL, strict=True)]
    longest = collate(test, np.array([test.lengths.argmax()]), device)
    gathered = "gathered" in execution_of(model)
    return {
        "macs_executed": counter.macs / len(test),
        "macs_unpadded": _mean(unpadded),
        "macs_full": _mean([closed_form(tokens, np.full_like(k_L, spec.num_heads), 0) for tokens, k_L in inputs]),
        "macs_floor": _mean([closed_form(tokens, np.zeros_like(k_L), 0) for tokens, k_L in inputs]),
        "macs_attention_core": _mean(core),
        "macs_attention_block": _mean(block),
        "macs_gates": gate_macs,
        "macs_model": _mean([closed_form(tokens, k_L, gate_macs) for tokens, k_L in inputs]),
        "macs_model_p5": float(np.percentile(unpadded, 5)),
        "macs_model_p95": float(np.percentile(unpadded, 95)),
        "macs_traced": None if gathered else traced_macs(model, longest.tokens_BT, longest.mask_BT),
        "padding_share": float(1 - test.lengths.sum() / padded_N.sum()),
    }


def paper_metrics(model: Encoder, s_mean: float | None, tokens: int) -> dict[str, float | None]:
    """The paper's columns: its FLOPs at the longest input, and the emissions that it seems to derive from them.

    Args:
        model: the one that is run.
        s_mean: the fraction of heads that was asked for; there are no such numbers without it, but for full attention.
        tokens: the longest input's.
    """
    spec = model.spec
    if s_mean is None and execution_of(model) != "dense":
        return dict.fromkeys(("paper_flops_cut", "paper_co2_g"))
    flops = paper_flops(tokens, spec.width, spec.num_heads, spec.num_layers, s_mean)
    return {
        "paper_flops_cut": 0.0 if s_mean is None else paper_flops_cut(tokens, spec.width, spec.num_heads, s_mean),
        "paper_co2_g": 1000 * paper_co2_g(flops),
    }


def _mean(counts: list[float]) -> float:
    return sum(counts) / len(counts)

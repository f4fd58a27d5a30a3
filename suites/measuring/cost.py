"""Counts of products, in what a tracer sees and in what really ran, in MACs (1 MAC = 2 FLOPs).

Both counters leave out everything but matrix products, and both refuse an operator that may contain a product and for
which they have no formula: a count that silently skips attention is worse than none.
"""

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from budgetformer.encoder import Encoder
from budgetformer.gated_layer import Execution
from budgetformer.surgery import execution_of

with warnings.catch_warnings():
    # fvcore scripts a loss function when it is imported, which torch calls deprecated; it has no bearing on the counts.
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    from fvcore.nn import FlopCountAnalysis

_MAY_MULTIPLY = re.compile(
    # gamma functions are the one family of elementwise operators with "mm" in their names
    r"matmul|(?<!ga)mm|mv|dot|addr|linear|conv(?!ert)|einsum|attention|encoder_layer|rnn|lstm|gru|cdist"
    # Python functions and scripted calls, which a tracer does not look into
    r"|^prim::"
)

_GATE = re.compile(r"\w+\.blocks\.\d+\.gate")


def traced_macs(model: Encoder, tokens_BT: Tensor, mask_BT: Tensor) -> int:
    """The MACs of one batch, from a trace of the model (fvcore).

    Args:
        model: a model whose route does not depend on the input.
        tokens_BT: int64 token ids.
        mask_BT: True at real tokens; padding is computed, so it is counted.

    Raises:
        ValueError: if the model gathers heads per input, since a trace would record the route of this one batch; or
            if an operator that may contain a product has no formula here.
    """
    execution = execution_of(model)
    if "gathered" in execution:
        raise ValueError(f"a {execution} model chooses its route per input: count what runs with ExecutedMacs")
    # A tracer hangs hooks on the projections, which the kernel cannot see; the heads that are there are the same ones.
    plain = copy.deepcopy(model)
    for layer in plain.layers:
        layer.execution = Execution.MASKED
    analysis = FlopCountAnalysis(_PresentTensors(plain), (tokens_BT, mask_BT))
    analysis.clear_op_handles().set_op_handle(**_TRACED)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    # A tracer warns of every Python number that it freezes into the graph; for one batch that is what is wanted.
    analysis.tracer_warnings("none")
    with torch.no_grad():
        total = int(analysis.total())
    _refuse(operator for operator in analysis.unsupported_ops() if _MAY_MULTIPLY.search(operator))
    return total


class ExecutedMacs(FlopCounterMode):
    """Counts the MACs of everything that runs inside, whichever route the data take.

    ``with ExecutedMacs() as counter: model(...)``, then ``counter.macs``. An operator that may contain a product and
    has no formula raises ValueError when it runs; the backward pass of the CPU's attention is one.
    """

    def __init__(self) -> None:
        # torch has formulas for the attention kernels of GPUs, but counts the CPU's as nothing (pytorch#195460).
        cpu_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        formulas = {
            cpu_attention: _attention_flops,
            torch.ops.aten.addmm_: _added_product_flops,  # torch knows the one that is not in place
            torch.ops.budgetformer.head_attention: _kernel_flops,
        }
        super().__init__(display=False, custom_mapping=formulas)

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @property
    def macs(self) -> int:
        """The count of the last ``with`` block, in MACs."""
        return self.get_total_flops() // 2

    @property
    def gate_macs(self) -> int:
        """What of that ran in the gate modules of an encoder, in MACs."""
        of_gates = [count for path, count in self.get_flop_counts().items() if _GATE.fullmatch(path)]
        return sum(sum(count.values()) for count in of_gates) // 2

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet not in self.flop_registry and _MAY_MULTIPLY.search(str(func_packet)):
            _refuse([str(func_packet)])
        return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]


def _refuse(operators: Iterable[str]) -> None:
    names = sorted(operators)
    if names:
        raise ValueError(f"no formula for {', '.join(names)}, which may contain a matrix product")


class _PresentTensors(nn.Module):
    """The model with an output that a tracer accepts: a tuple without None."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, ...]:
        # All outputs, not the logits alone: a tracer drops what no output needs.
        return tuple(part for part in self.model(tokens_BT, mask_BT) if part is not None)


def _attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """QK^T and AV for shapes ``(..., tokens, width)``."""
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * _attention_macs(query, key, value)


def _added_product_flops(_into: Sequence[int], left: Sequence[int], right: Sequence[int], **_: Any) -> int:
    return 2 * prod(left) * right[-1]


def _kernel_macs(x: Sequence[int], out_weight: Sequence[int], pairs: int) -> int:
    """What our kernel does for each active pair: 3 T D K, 2 T^2 K and T K D."""
    _, tokens, width = x
    head_width = out_weight[2]
    return pairs * tokens * head_width * (4 * width + 2 * tokens)


def _kernel_flops(x: Tensor, gates: Tensor | None, mask: Tensor | None, *weights: Tensor, **out: Any) -> int:
    out_weight = weights[2]
    pairs = len(x) * len(out_weight) if gates is None else int((gates > 0).sum())
    return 2 * _kernel_macs(x.shape, out_weight.shape, pairs)


_kernel_flops._get_raw = True  # type: ignore[attr-defined] # torch's mark for a formula that reads values, not shapes


def _sizes(value: Any) -> list[int]:
    return list(value.type().sizes())


def _product(left: int) -> Callable[[list[Any], list[Any]], int]:
    """The handle of a product whose left factor is the input at this position: size of the result x contracted length.

    fvcore's own handles are not used: the one of matmul is wrong when the left factor is broadcast.
    """
    return lambda inputs, outputs: prod(_sizes(outputs[0])) * _sizes(inputs[left])[-1]


def _attention(inputs: list[Any], _: list[Any]) -> int:
    query, key, value = (_sizes(each) for each in inputs[:3])
    return _attention_macs(query, key, value)


_TRACED: dict[str, Callable[[list[Any], list[Any]], int]] = {
    "aten::linear": _product(0),
    "aten::matmul": _product(0),
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::addmm": _product(1),
    "aten::scaled_dot_product_attention": _attention,
}

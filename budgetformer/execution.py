"""The ways in which a set of gates is really run.

``masked`` computes every head and multiplies by the gate: the reference, which saves nothing. ``gathered`` does no
work for a head that an input does not use. ``compiled`` is ``gathered`` as one CPU kernel. ``auto`` runs the fastest
that fits. ``sliced`` is not another one: it is any of them on a layer whose unused heads' weights are gone
(``HeadGatedAttention.keep``). All agree to float tolerance.

Shapes: B batch, T tokens, D width, A heads of this layer, K head width, P active (input, head) pairs, S inputs with an
active head, in an order in which the users of a head stand together.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from budgetformer.gated_layer import Execution, GatedLayer
from budgetformer.kernel import load_kernel


def _attend(layer: GatedLayer, qkv: Tensor, keep_keys: Tensor | None) -> Tensor:
    query, key, value = torch.split(qkv, layer.head_width, dim=-1)
    dropout = layer.dropout if layer.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep_keys, dropout_p=dropout)


def masked(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """Computes every head, then multiplies its output by its gate."""
    _note(Execution.MASKED)
    batch, tokens, _ = x_BTD.shape
    qkv_BATK3 = layer.qkv(x_BTD).view(batch, tokens, len(layer.heads), 3 * layer.head_width).transpose(1, 2)
    out_BATK = _attend(layer, qkv_BATK3, None if mask_BT is None else mask_BT[:, None, None, :])
    if gates_BA is not None:
        out_BATK = out_BATK * gates_BA[:, :, None, None].to(out_BATK.dtype)
    out_BTD: Tensor = layer.out(out_BATK.transpose(1, 2).flatten(2))
    return out_BTD


class Run(NamedTuple):
    """Neighbours in the order of a batch that all use a head: inputs ``start`` to ``stop``, pairs from ``pair`` on."""

    head: int
    start: int
    stop: int
    pair: int


def find_runs(active_BA: Tensor) -> tuple[Tensor, list[Run]]:
    """An order of the inputs in which each head's users form few runs.

    Inputs are sorted by their head set, read as a number in Gray code with the most used head as the highest bit:
    neighbours then differ in few heads.

    Returns:
        The inputs with at least one head, in that order, ``(S,)``; and the runs, head by head.
    """
    # A number has 62 bits to sort by; what heads beyond these do to the runs is left to chance.
    most_used = active_BA.sum(dim=0).argsort(descending=True)[:62]
    bits = torch.arange(len(most_used) - 1, -1, -1, device=active_BA.device)
    rank_B = (active_BA[:, most_used].long() << bits).sum(dim=1)
    for shift in (1, 2, 4, 8, 16, 32):
        rank_B = rank_B ^ (rank_B >> shift)
    order_B = rank_B.argsort()
    order_S = order_B[active_BA.any(dim=1)[order_B]]
    used_AS = active_BA[order_S].t().to(torch.int8)
    edges = F.pad(used_AS, (1, 1)).diff(dim=1)
    starts, stops = (edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()
    runs = []
    pair = 0
    for (head, start), (_, stop) in zip(starts, stops, strict=True):
        runs.append(Run(head, start, stop, pair))
        pair += stop - start
    return order_S, runs


def gathered(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """Computes the active (input, head) pairs only: Q, K, V, scores, AV and output product.

    The batch is sorted once, so that the inputs of a head are a few contiguous runs: its products read and write views.
    One attention call serves all pairs.
    """
    if gates_BA is None:
        return masked(layer, x_BTD, None, mask_BT)
    _note(Execution.GATHERED)
    batch, tokens, width = x_BTD.shape
    num_heads, head_width = len(layer.heads), layer.head_width
    device = x_BTD.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x_BTD.dtype
    active_BA = gates_BA > 0
    order_S, runs = find_runs(active_BA)
    if not runs:
        return bias_alone(layer, x_BTD)
    qkv_weight = layer.qkv.weight.view(num_heads, 3 * head_width, width)
    qkv_bias = layer.qkv.bias.view(num_heads, 3 * head_width)
    out_weight = layer.out.weight.view(width, num_heads, head_width)
    head_P, place_P = active_BA[order_S].t().nonzero(as_tuple=True)
    input_P = order_S[place_P]
    # Without gradients and casts, products go straight to their place; otherwise they are put together.
    in_place = not (torch.is_grad_enabled() or autocast)

    x_STD = x_BTD[order_S]
    if in_place:
        qkv_PTK3 = x_BTD.new_empty(len(head_P), tokens, 3 * head_width)
        for head, start, stop, pair in runs:
            into = qkv_PTK3[pair : pair + stop - start].flatten(0, 1)
            torch.addmm(qkv_bias[head], x_STD[start:stop].flatten(0, 1), qkv_weight[head].t(), out=into)
    else:
        qkv_PTK3 = torch.cat([F.linear(x_STD[r.start : r.stop], qkv_weight[r.head], qkv_bias[r.head]) for r in runs])
    del x_STD
    # A head axis of size one keeps the call on the fused kernel.
    keep_keys = None if mask_BT is None else mask_BT[input_P][:, None, None, :]
    out_PTK = _attend(layer, qkv_PTK3[:, None], keep_keys)[:, 0]
    del qkv_PTK3
    gate_P11 = gates_BA[input_P, head_P][:, None, None].to(out_PTK.dtype)
    out_PTK = out_PTK.mul_(gate_P11) if in_place else out_PTK * gate_P11

    out_STD = layer.out.bias.expand(len(order_S), tokens, width).clone()
    for head, start, stop, pair in runs:
        part = out_PTK[pair : pair + stop - start]
        if in_place:
            out_STD[start:stop].flatten(0, 1).addmm_(part.flatten(0, 1), out_weight[:, head].t())
        else:
            out_STD[start:stop] += F.linear(part, out_weight[:, head]).to(out_STD.dtype)
    return layer.out.bias.expand(batch, tokens, width).index_copy(0, order_S, out_STD).to(dtype)


def bias_alone(layer: GatedLayer, x_BTD: Tensor) -> Tensor:
    """What is left without any head: the output's bias, written out, in the dtype of the layer's other outputs."""
    device = x_BTD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_BTD.dtype
    return layer.out.bias.expand_as(x_BTD).to(dtype, copy=True, memory_format=torch.contiguous_format)


def compiled(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """The kernel of ``head_attention.cpp``: as ``gathered``, without gradients, on a CPU in float32.

    Raises:
        ValueError: where it does not fit.
    """
    if not kernel_fits(layer, x_BTD, gates_BA):
        raise ValueError(
            "execution compiled needs float32 on a CPU, no gradients, no dropout, no autocast, and a C++ compiler "
            f"(here: {load_kernel().description}); auto runs what fits"
        )
    return _run_kernel(layer, x_BTD, gates_BA, mask_BT)


def _run_kernel(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    _note(Execution.COMPILED)
    gates_BA = None if gates_BA is None else gates_BA.float()
    y_BTD: Tensor = torch.ops.budgetformer.head_attention(x_BTD, gates_BA, mask_BT, *layer.packed_weights())
    return y_BTD


def kernel_fits(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None) -> bool:
    """Whether ``compiled`` can run this: on a CPU with a kernel, in float32, where nobody wants gradients."""
    grad = torch.is_grad_enabled()
    tensors = (x_BTD, gates_BA, *layer.parameters())
    learns = any(tensor is not None and ((grad and tensor.requires_grad) or _has_tangent(tensor)) for tensor in tensors)
    return (
        x_BTD.device.type == "cpu"
        and x_BTD.dtype == layer.qkv.weight.dtype == torch.float32
        and not learns
        and not (layer.training and layer.dropout)
        and not torch.is_autocast_enabled("cpu")
        and load_kernel().function is not None
    )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def what_is_not_plain(layer: GatedLayer) -> str:
    """Why a layer's projections have to be called as modules, and cannot be cut into heads; empty if they can be.

    An adapter around a projection, a quantised one, a hook or a parametrisation is seen by ``masked`` alone.
    """
    weights = []
    for name, linear in (("qkv", layer.qkv), ("out", layer.out)):
        if type(linear) is not nn.Linear:
            return f"{name} is no plain nn.Linear but {type(linear).__module__}.{type(linear).__qualname__}"
        if any(getattr(linear, hooks) for hooks in _HOOKS):
            return f"{name} has a hook"
        weights += [linear.weight, linear.bias]
    if any(weight is None for weight in weights):
        return "a projection has no bias"
    kinds = {(weight.dtype, weight.device) for weight in weights}
    return "" if len(kinds) == 1 else f"its weights are of several kinds: {', '.join(sorted(map(str, kinds)))}"


def _has_tangent(tensor: Tensor) -> bool:
    return unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call] # torch ships no type for this


def auto(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """The kernel where it fits, and :func:`plain` elsewhere."""
    if not kernel_fits(layer, x_BTD, gates_BA):
        return plain(layer, x_BTD, gates_BA, mask_BT)
    return _run_kernel(layer, x_BTD, gates_BA, mask_BT)


def plain(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None) -> Tensor:
    """What ``auto`` does without a kernel: ``gathered`` or ``masked``, whichever promises to be faster.

    Gates that learn run ``masked``: a head that is skipped would give its gate no gradient.
    """
    if gates_BA is None or (gates_BA.requires_grad and torch.is_grad_enabled()) or not _pays(layer, x_BTD, gates_BA):
        return masked(layer, x_BTD, gates_BA, mask_BT)
    return gathered(layer, x_BTD, gates_BA, mask_BT)


def _note(execution: Execution) -> None:
    if torch.compiler.is_compiling():
        return  # counting would break the graph
    if (counter := _calls.get()) is not None:
        counter[execution] += 1


_calls: ContextVar[Counter[str] | None] = ContextVar("calls", default=None)


@contextmanager
def count_executions() -> Iterator[Counter[str]]:
    """Counts what runs inside: calls of a layer by execution, where ``auto`` counts as what it chose."""
    counter: Counter[str] = Counter()
    token = _calls.set(counter)
    try:
        yield counter
    finally:
        _calls.reset(token)


# Fitted on the grid of ``python -m suites execution``, in units of the work of one MAC of a large product.
_PER_CALL = 5e6
_PER_PAIR = 3e5
_PER_ELEMENT = 60
_PAIR_FACTOR = 1.1


def _pays(layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor) -> bool:
    """The cost rule: whether ``gathered`` promises to be faster than computing all heads.

    It saves the MACs of the inactive pairs, ``4 T D K + 2 T^2 K`` each. It costs index work per call, small products
    per pair, two copies of the input, and a loss in the narrower products.
    """
    batch, tokens, width = x_BTD.shape
    pairs = int((gates_BA > 0).sum())
    macs_of_pair = tokens * layer.head_width * (4 * width + 2 * tokens)
    extra = _PER_CALL + pairs * _PER_PAIR + batch * tokens * width * _PER_ELEMENT
    return gates_BA.numel() * macs_of_pair > pairs * macs_of_pair * _PAIR_FACTOR + extra


Executor = Callable[[GatedLayer, Tensor, Tensor | None, Tensor | None], Tensor]
EXECUTIONS: dict[str, Executor] = {
    Execution.AUTO: auto,
    Execution.MASKED: masked,
    Execution.GATHERED: gathered,
    Execution.COMPILED: compiled,
}


def execute(
    execution: str, layer: GatedLayer, x_BTD: Tensor, gates_BA: Tensor | None, mask_BT: Tensor | None
) -> Tensor:
    """Runs a layer, whatever it is made of and whoever looks on.

    All executions but ``masked`` cut the projections into heads and run what the values of the gates say. Where either
    cannot be done, because a projection is more than a plain ``nn.Linear``, or under ``torch.export`` and the
    transforms of ``torch.func``, ``auto`` runs ``masked`` and the others are refused. ``torch.compile`` leaves them as
    they are, a break in its graph.

    Args:
        execution: a key of ``EXECUTIONS``.
        layer: the layer, with at least one head.
        x_BTD: the input.
        gates_BA: the gates of its heads; None is 1 everywhere.
        mask_BT: True at real tokens, of which each input has one; None is no padding.

    Raises:
        ValueError: if ``gathered`` or ``compiled`` cannot be run here.
    """
    if execution == Execution.MASKED:
        return masked(layer, x_BTD, gates_BA, mask_BT)
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        y_BTD: Tensor = sys.modules[__name__].untraced(execution, layer, x_BTD, gates_BA, mask_BT)
        return y_BTD
    obstacle = is_transformed(x_BTD, gates_BA) or what_is_not_plain(layer)
    if obstacle and execution != Execution.AUTO:
        raise ValueError(f"execution {execution} cannot run this layer: {obstacle}; masked can")
    return (masked if obstacle else EXECUTIONS[execution])(layer, x_BTD, gates_BA, mask_BT)


def is_transformed(*tensors: Tensor | None) -> str:
    """What keeps the values of some tensors from being looked at; empty if nothing does."""
    if torch.compiler.is_compiling():
        return "it is being exported"
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # what vmap and grad of torch.func hand on
    return "torch.func transforms its input" if any(t is not None and wrapped(t) for t in tensors) else ""


def __getattr__(name: str) -> Any:
    """``untraced``: ``execute`` out of a compiler's sight, made when somebody compiles: it takes a second to import."""
    if name != "untraced":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    disable: Any = torch.compiler.disable  # torch leaves it untyped
    globals()[name] = disable(execute, reason="which products run depends on the values of the gates")
    return globals()[name]

"""Turning a trained model into the one that is run: constant head choices become smaller weights."""

import copy

import torch
from torch import nn

from budgetformer.encoder import Encoder
from budgetformer.gated_layer import Execution
from budgetformer.gates import AllHeads, ConstantGates, SharedGates

ASKABLE = tuple(execution for execution in Execution if execution != Execution.DENSE)
"""What a model can be asked to run as."""


def compact(model: Encoder, execution: str = Execution.AUTO) -> Encoder:
    """A copy of a model for inference, which skips every head it can.

    Args:
        model: the trained model; left untouched.
        execution: ``auto`` slices layers whose gates are the same for every input, and runs what is left as fast as
            it can; ``masked``, ``gathered`` and ``compiled`` run every layer in that way (``budgetformer.execution``);
            ``sliced`` insists on gates that are the same for every input.

    Returns:
        The copy, in evaluation mode, without gradients. It still reports gates in the original head numbers.

    Raises:
        ValueError: for an unknown execution, or if ``sliced`` is asked for and a layer's gates depend on the input.
    """
    check_execution(execution)
    compacted = copy.deepcopy(model).eval().requires_grad_(False)
    removes = execution in (Execution.AUTO, Execution.SLICED)
    for index, layer in enumerate(compacted.layers):
        constant = isinstance(layer.gate, AllHeads | SharedGates)
        if isinstance(layer.gate, SharedGates) and not isinstance(layer.gate, ConstantGates):
            layer.gate = ConstantGates(layer.gate.settled(), layer.gate.s).eval()
        if execution == Execution.SLICED and not constant:
            raise ValueError(f"layer {index} chooses heads per input, so it cannot be sliced; use auto")
        layer.execution = Execution.AUTO if execution == Execution.SLICED else Execution(execution)
        if removes and isinstance(layer.gate, ConstantGates) and not layer.gates_folded:
            gates_H = layer.gate.gates_H
            layer.attention.keep(torch.nonzero(gates_H).flatten().tolist(), gates_H)
            layer.fold_gates()
    return compacted


def check_execution(name: str) -> None:
    """Refuses what no model can be asked to run as.

    Raises:
        ValueError: if so; names what can be.
    """
    if name not in ASKABLE:
        raise ValueError(f"unknown execution {name!r}. Known: {', '.join(ASKABLE)}")


def execution_of(model: Encoder) -> str:
    """How a model's attention runs: ``dense``, ``sliced``, ``gathered`` or ``masked``, joined by + where layers differ.

    ``dense`` is full attention: all heads are there and none is weighted. ``gathered`` is each input's own heads, by
    whichever means.
    """
    return "+".join(
        sorted({_execution_of_gate(layer.gate, layer.gates_folded, layer.execution) for layer in model.layers})
    )


def _execution_of_gate(gate: nn.Module, folded: bool, execution: Execution) -> Execution:
    if isinstance(gate, AllHeads):
        return Execution.DENSE
    if folded:
        return Execution.SLICED
    return Execution.MASKED if execution == Execution.MASKED else Execution.GATHERED

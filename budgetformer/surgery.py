"""Turning a trained model into the one that is run: constant head choices become smaller weights."""

import copy
from typing import Literal

import torch
from torch import nn

from budgetformer.encoder import Encoder
from budgetformer.gates import AllHeads, ConstantGates, SharedGates

Execution = Literal["auto", "masked", "gathered", "compiled", "sliced"]


def compact(model: Encoder, execution: Execution = "auto") -> Encoder:
    """A copy of a model for inference, which skips every head it can.

    Args:
        model: the trained model; left untouched.
        execution: ``auto`` slices layers whose gates are the same for every input, and runs what is left as fast as
            it can; ``masked``, ``gathered`` and ``compiled`` run every layer in that way (``budgetformer.execution``);
            ``sliced`` insists on gates that are the same for every input.

    Returns:
        The copy, in evaluation mode, without gradients. It still reports gates in the original head numbers.

    Raises:
        ValueError: if ``sliced`` is asked for and a layer's gates depend on the input.
    """
    compacted = copy.deepcopy(model).eval().requires_grad_(False)
    for index, layer in enumerate(compacted.layers):
        constant = isinstance(layer.gate, AllHeads | SharedGates)
        if isinstance(layer.gate, SharedGates) and not isinstance(layer.gate, ConstantGates):
            layer.gate = ConstantGates(layer.gate.settled(), layer.gate.s).eval()
        if execution == "sliced" and not constant:
            raise ValueError(f"layer {index} chooses heads per input, so it cannot be sliced; use auto")
        layer.execution = "auto" if execution == "sliced" else execution
        if execution in ("auto", "sliced") and isinstance(layer.gate, ConstantGates) and not layer.gates_folded:
            gates_H = layer.gate.gates_H
            layer.attention.keep(torch.nonzero(gates_H).flatten().tolist(), gates_H)
            layer.gates_folded = True
    return compacted


def execution_of(model: Encoder) -> str:
    """How a model's attention runs: ``dense``, ``sliced``, ``gathered`` or ``masked``, joined by + where layers differ.

    ``dense`` is full attention: all heads are there and none is weighted. ``gathered`` is each input's own heads, by
    whichever means.
    """
    return "+".join(
        sorted({_execution_of_gate(layer.gate, layer.gates_folded, layer.execution) for layer in model.layers})
    )


def _execution_of_gate(gate: nn.Module, folded: bool, execution: str) -> str:
    if isinstance(gate, AllHeads):
        return "dense"
    if folded:
        return "sliced"
    return "masked" if execution == "masked" else "gathered"

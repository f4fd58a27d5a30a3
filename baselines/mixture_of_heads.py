"""Mixture-of-head attention (MoH, Jin et al. 2024, arXiv 2410.11842), routed per input.

Shapes: B batch, T tokens, D width, H heads, S shared heads, R routed heads (S + R = H).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from budgetformer.checks import check_choice, check_interval
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec, mean_over_tokens
from budgetformer.gates import Gates
from budgetformer.method import Method
from budgetformer.selection import top_k_mask, whole_heads

Weights = Literal["softmax", "renormalised", "unit"]


def load_balance(share_R: Tensor, probability_R: Tensor, k: int) -> Tensor:
    """``R / k * sum_r f_r P_r`` (Jin et al., section 3): 1 for a uniform router, R / k for one that is sure and unfair.

    No less than 1 where the heads that are chosen more often are also the more probable ones.

    Args:
        share_R: f, the share of the inputs that chose each routed head; sums to k.
        probability_R: P, the mean of the router's whole softmax; sums to 1.
        k: how many routed heads an input gets.
    """
    return len(share_R) / k * (share_R * probability_R).sum()


class MixtureGates(nn.Module):
    """The first S heads for every input, and the k best of the others by a router that sees the input's mean.

    Args:
        width: D.
        num_heads: H.
        num_shared: S.
        k: routed heads per input.
        s: the fraction of heads asked for.
        weights: see :class:`MixtureOfHeads`.
    """

    def __init__(self, width: int, num_heads: int, *, num_shared: int, k: int, s: float, weights: Weights) -> None:
        super().__init__()
        self.num_shared, self.num_routed, self.k, self.s = num_shared, num_heads - num_shared, k, s
        self.weights = weights
        weighted = weights != "unit"
        self.routed = nn.Linear(width, self.num_routed, bias=False) if k and (weighted or k < self.num_routed) else None
        self.shared = nn.Linear(width, num_shared, bias=False) if num_shared > 1 and weighted else None
        self.balance = nn.Linear(width, 2, bias=False) if k and num_shared and weighted else None

    def forward(self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor) -> Gates:
        mean_BD = mean_over_tokens(x_BTD, mask_BT)
        shared_BS = mean_BD.new_ones(len(mean_BD), self.num_shared)
        # Without a router none of the other heads is active, or all are.
        routed_BR = mean_BD.new_full((len(mean_BD), self.num_routed), float(self.k > 0))
        relevance_BH = None
        if self.shared is not None:
            shared_BS = self.num_shared * _positive_softmax(self.shared(mean_BD))
        if self.routed is not None:
            logits_BR = self.routed(mean_BD)
            p_BR = _positive_softmax(logits_BR)
            relevance_BH = torch.cat([torch.zeros_like(shared_BS), p_BR], dim=1)
            chosen_BR = top_k_mask(logits_BR, self.k).to(p_BR.dtype)
            routed_BR = chosen_BR * p_BR * self.num_routed
            if self.weights != "softmax":
                routed_BR = routed_BR * self.k / routed_BR.sum(dim=1, keepdim=True)
            if self.weights == "unit":
                routed_BR = chosen_BR + (routed_BR - routed_BR.detach())
        if self.balance is not None:
            alpha_B2 = 2 * _positive_softmax(self.balance(mean_BD))
            shared_BS, routed_BR = shared_BS * alpha_B2[:, :1], routed_BR * alpha_B2[:, 1:]
        gates_BH = torch.cat([shared_BS, routed_BR], dim=1)
        return Gates(gates_BH, mean_BD.new_full((len(mean_BD),), self.s), relevance_BH)


def _positive_softmax(logits: Tensor) -> Tensor:
    """Never 0, since a head is active where its gate is above 0."""
    return torch.softmax(logits, dim=1).clamp(min=1e-8)


@dataclass(frozen=True, kw_only=True)
class MixtureOfHeads(Method):
    """Shared heads for every input, and routed heads that each input chooses.

    ``gate_h = 2 a_1 S softmax(W_s x)_h`` for shared heads and ``2 a_2 R softmax(W_r x)_h`` for the routed heads among
    the top k, else 0, with ``a = softmax(W_h x)`` (Jin et al., section 3; the factors 2, S and R make an undecided
    router give 1, as in their code). The original routes every token by itself; here x is the mean over the input's
    tokens and all of them use the same heads, so that whole heads can be skipped. ``L = L_task + balance_weight *
    load_balance``.

    Attributes:
        s: the fraction of heads that is active, in [0, 1], to the nearest whole number.
        shared: the share of the active heads that is shared, in [0, 1], to the nearest whole number.
        weights: of the routed heads: ``softmax`` as above; ``renormalised`` over those that were chosen, as in the
            authors' code, with which a single routed head learns nothing from the task; ``unit``, where every active
            head counts 1 and the gradient is that of ``renormalised``.
        balance_weight: weight of the load-balance loss, which takes the router's whole softmax.

    Raises:
        ValueError: if a value is outside its range.
    """

    name: ClassVar[str] = "mixture-of-heads"
    place: ClassVar[int] = 90

    s: float = 0.25
    shared: float = 0.5
    weights: Weights = "softmax"
    balance_weight: float = 0.01

    def __post_init__(self) -> None:
        check_choice(self, "weights", Weights)
        check_interval(self, "[0, 1]", "s", "shared")
        check_interval(self, "[0, inf)", "balance_weight")

    def gates(self, spec: EncoderSpec, generator: torch.Generator) -> nn.ModuleList:
        active = whole_heads(self.s, spec.num_heads)
        num_shared = whole_heads(self.shared, active)
        return nn.ModuleList(
            MixtureGates(
                spec.width, spec.num_heads, num_shared=num_shared, k=active - num_shared, s=self.s, weights=self.weights
            )
            for _ in range(spec.num_layers)
        )

    def extra_losses(self, model: Encoder, output: EncoderOutput, progress: float) -> dict[str, Tensor]:
        if output.relevance_BLH is None:
            return {}
        losses = []
        for layer, gate in enumerate(model.gates):
            assert isinstance(gate, MixtureGates)
            share_R = (output.gates_BLH[:, layer, gate.num_shared :] > 0).float().mean(dim=0)
            probability_R = output.relevance_BLH[:, layer, gate.num_shared :].mean(dim=0)
            losses.append(load_balance(share_R, probability_R, gate.k))
        return {"balance": self.balance_weight * torch.stack(losses).mean()}

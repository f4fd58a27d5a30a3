"""The one encoder in which every method's gates run.

Shapes: B batch, T tokens, D width, L layers, H heads, C classes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgetformer.attention import HeadGatedAttention
from budgetformer.checks import check_interval, check_whole
from budgetformer.gated_layer import Execution
from budgetformer.gates import Gates
from budgetformer.selection import input_keys


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """Sizes of an encoder.

    Attributes:
        vocab_size: number of token ids; id 0 is padding.
        num_classes: C.
        max_length: the longest input, in tokens.
        width: D.
        num_layers: L.
        num_heads: H; must divide ``width``.
        ffn_width: hidden width of the feed-forward blocks; 4 D where None.
        dropout: probability for embeddings and residual branches; attention weights are not dropped.
        token_dropout: probability with which the whole embedding of a token is dropped (Iyyer et al. 2015); costs next
            to nothing.
        embedding_std: standard deviation of the initial token embeddings, > 0. Small ones are soon what the task makes
            of them; with large ones words stay apart from one another, and from their positions, for longer.

    Raises:
        ValueError: for a value outside its range, or a width that the heads do not divide.
    """

    vocab_size: int
    num_classes: int
    max_length: int
    width: int = 128
    num_layers: int = 2
    num_heads: int = 8
    ffn_width: int | None = None
    dropout: float = 0.1
    token_dropout: float = 0.0
    embedding_std: float = 0.02

    def __post_init__(self) -> None:
        check_whole(self, 1, "vocab_size", "num_classes", "max_length", "width", "num_layers", "num_heads")
        check_whole(self, 1, "ffn_width", optional=True)
        check_interval(self, "[0, 1)", "dropout", "token_dropout")
        check_interval(self, "(0, inf)", "embedding_std")
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")

    @property
    def ffn_size(self) -> int:
        return self.ffn_width or 4 * self.width


class EncoderOutput(NamedTuple):
    """What an encoder returns.

    Attributes:
        logits_BC: class scores.
        gates_BLH: the gate of every head of the full layer, removed ones included (0).
        s_BL: the fraction of heads asked for; None if any layer has no such number.
        relevance_BLH: distributions over heads; None if any layer has none.
    """

    logits_BC: Tensor
    gates_BLH: Tensor
    s_BL: Tensor | None
    relevance_BLH: Tensor | None


class EncoderLayer(nn.Module):
    """Pre-norm Transformer layer: gated attention, then a GELU feed-forward block, each on a residual branch."""

    folded: Tensor

    def __init__(self, spec: EncoderSpec, gate: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.width)
        self.gate = gate
        self.attention = HeadGatedAttention(spec.width, spec.num_heads)
        self.ffn_norm = nn.LayerNorm(spec.width)
        self.ffn_in = nn.Linear(spec.width, spec.ffn_size)
        self.ffn_out = nn.Linear(spec.ffn_size, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.execution = Execution.MASKED
        # Whether the output weights hold the gates already, for the file too: they would be applied twice.
        self.register_buffer("folded", torch.zeros((), dtype=torch.bool))
        self.gates_folded = False

    def fold_gates(self) -> None:
        """Notes that the attention's output weights hold the gates."""
        self.gates_folded = True
        self.folded.fill_(True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes on what a state says; one from before it was saved has what this layer has."""
        self.gates_folded = bool(state_dict.setdefault(f"{prefix}folded", self.folded))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(
        self, x_BTD: Tensor, mask_BT: Tensor, key_B: Tensor, given: Gates | None = None
    ) -> tuple[Tensor, Gates]:
        normed_BTD = self.attention_norm(x_BTD)
        gates = cast("Gates", self.gate(normed_BTD, mask_BT, key_B)) if given is None else given
        gates_BH = None if self.gates_folded else gates.gates_BH
        x_BTD = x_BTD + self.dropout(self.attention(normed_BTD, gates_BH, mask_BT, self.execution))
        hidden_BTF = F.gelu(self.ffn_in(self.ffn_norm(x_BTD)))
        return x_BTD + self.dropout(self.ffn_out(hidden_BTF)), gates


class Encoder(nn.Module):
    """Embeddings, L gated layers, mean over the real tokens, and a linear classifier.

    Args:
        spec: the sizes.
        gates: one gate module per layer (see ``budgetformer.gates``).

    Raises:
        ValueError: if there is not one gate module per layer.
    """

    def __init__(self, spec: EncoderSpec, gates: nn.ModuleList) -> None:
        super().__init__()
        if len(gates) != spec.num_layers:
            raise ValueError(f"{len(gates)} gate modules for {spec.num_layers} layers")
        self.spec = spec
        self.token_embedding = nn.Embedding(spec.vocab_size, spec.width)
        self.position_embedding = nn.Embedding(spec.max_length, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(EncoderLayer(spec, gate) for gate in gates)
        self.final_norm = nn.LayerNorm(spec.width)
        self.classifier = nn.Linear(spec.width, spec.num_classes)
        nn.init.normal_(self.token_embedding.weight, std=spec.embedding_std)
        nn.init.normal_(self.position_embedding.weight, std=0.02)

    @property
    def layers(self) -> list[EncoderLayer]:
        return [cast("EncoderLayer", block) for block in self.blocks]

    @property
    def gates(self) -> list[nn.Module]:
        return [layer.gate for layer in self.layers]

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor, gates_BLH: Tensor | None = None) -> EncoderOutput:
        """Classifies a batch.

        Args:
            tokens_BT: int64 token ids.
            mask_BT: True at real tokens.
            gates_BLH: gates >= 0 to use in place of those that the gate modules would choose.

        Raises:
            ValueError: if the inputs are longer than ``spec.max_length``, or gates are given to a model whose heads
                were removed for good.
        """
        batch, length = tokens_BT.shape
        if length > self.spec.max_length:
            raise ValueError(f"inputs of {length} tokens; this encoder takes {self.spec.max_length}")
        if gates_BLH is not None and any(layer.gates_folded for layer in self.layers):
            raise ValueError("this model's heads were removed for good: it cannot be run with other gates")
        key_B = input_keys(tokens_BT, mask_BT)
        positions_T = torch.arange(length, device=tokens_BT.device)
        embedded_BTD = self.token_embedding(tokens_BT)
        if self.training and self.spec.token_dropout:
            kept_BT = torch.rand(batch, length, device=tokens_BT.device) >= self.spec.token_dropout
            embedded_BTD = embedded_BTD * kept_BT[:, :, None]
        x_BTD = self.dropout(embedded_BTD + self.position_embedding(positions_T))
        chosen = []
        for index, block in enumerate(self.blocks):
            given = None if gates_BLH is None else Gates(gates_BLH[:, index])
            x_BTD, gates = block(x_BTD, mask_BT, key_B, given)
            chosen.append(gates)
        pooled_BD = mean_over_tokens(self.final_norm(x_BTD), mask_BT)
        ones_BH = x_BTD.new_ones(batch, self.spec.num_heads)
        s = [gates.s_B for gates in chosen if gates.s_B is not None]
        relevance = [gates.relevance_BH for gates in chosen if gates.relevance_BH is not None]
        return EncoderOutput(
            self.classifier(pooled_BD),
            torch.stack([ones_BH if gates.gates_BH is None else gates.gates_BH for gates in chosen], dim=1),
            torch.stack(s, dim=1) if len(s) == len(chosen) else None,
            torch.stack(relevance, dim=1) if len(relevance) == len(chosen) else None,
        )


def mean_over_tokens(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the real tokens, ``(B, D)``; 0 for an input of padding alone."""
    return (x_BTD * mask_BT[:, :, None]).sum(dim=1) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)

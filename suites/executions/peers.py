"""Other people's encoders of the same sizes, to show that full attention here is no straw man.

Each has our embeddings, final norm, mean over the real tokens and classifier around it, so that only the blocks differ.

Shapes: B batch, T tokens, D width, C classes.
"""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from budgetformer.encoder import EncoderSpec, mean_over_tokens

Blocks = Callable[[EncoderSpec], nn.Module]


class Peer(nn.Module):
    """Blocks of another library, as an encoder.

    Args:
        spec: the sizes.
        blocks: takes the sizes and returns a module ``(x_BTD, mask_BT) -> (B, T, D)``.
    """

    def __init__(self, spec: EncoderSpec, blocks: Blocks) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(spec.vocab_size, spec.width)
        self.position_embedding = nn.Embedding(spec.max_length, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = blocks(spec)
        self.final_norm = nn.LayerNorm(spec.width)
        self.classifier = nn.Linear(spec.width, spec.num_classes)

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Class scores, ``(B, C)``."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.dropout(self.token_embedding(tokens_BT) + self.position_embedding(positions_T))
        x_BTD = self.blocks(x_BTD, mask_BT)
        logits_BC: Tensor = self.classifier(mean_over_tokens(self.final_norm(x_BTD), mask_BT))
        return logits_BC


class TorchBlocks(nn.Module):
    """``torch.nn.TransformerEncoder``; post-norm, since only that has a fast path in torch.

    Args:
        spec: the sizes.
        fast: allow the fast path, with nested tensors where there is padding.
    """

    def __init__(self, spec: EncoderSpec, fast: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            spec.width, spec.num_heads, spec.ffn_size, spec.dropout, activation="gelu", batch_first=True
        )
        # Where ours and BertModel's drop nothing: attention weights and the hidden units of the feed-forward block.
        layer.self_attn.dropout = 0.0
        layer.dropout = nn.Identity()  # type: ignore[assignment] # a torch module all the same
        self.encoder = nn.TransformerEncoder(layer, spec.num_layers, enable_nested_tensor=fast)
        self.fast = fast

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Runs the blocks."""
        padding_BT = None if mask_BT.all() else ~mask_BT
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(self.fast)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage")
                y_BTD: Tensor = self.encoder(x_BTD, src_key_padding_mask=padding_BT)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
        # The fast path cuts padding off at the end.
        return nn.functional.pad(y_BTD, (0, 0, 0, x_BTD.shape[1] - y_BTD.shape[1]))


class BertBlocks(nn.Module):
    """The blocks of Hugging Face's ``BertModel``, with SDPA attention.

    Raises:
        ImportError: if ``transformers`` is not installed.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        transformers: Any = importlib.import_module("transformers")  # an optional package
        config = transformers.BertConfig(
            vocab_size=1,
            hidden_size=spec.width,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_heads,
            intermediate_size=spec.ffn_size,
            hidden_dropout_prob=spec.dropout,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=spec.max_length,
        )
        model = transformers.BertModel._from_config(config, attn_implementation="sdpa", add_pooling_layer=False)
        self.encoder: Any = model.encoder

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Runs the blocks."""
        keep_keys = None if mask_BT.all() else mask_BT[:, None, None, :]
        y_BTD: Tensor = self.encoder(x_BTD, attention_mask=keep_keys).last_hidden_state
        return y_BTD


def peer_blocks() -> dict[str, Blocks]:
    """The peers of this environment, by name."""
    found: dict[str, Blocks] = {
        "TransformerEncoder": lambda spec: TorchBlocks(spec, fast=False),
        "TransformerEncoder, fast path": lambda spec: TorchBlocks(spec, fast=True),
    }
    if importlib.util.find_spec("transformers") is None:
        return found
    return found | {"BertModel": BertBlocks}

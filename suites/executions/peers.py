"""Other people's encoders of the same sizes, to show that full attention here is no straw man.

Each has our embeddings, final norm, mean over the real tokens and classifier around it, so that only the blocks differ.

Shapes: B batch, T tokens, D width, C classes.
"""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.full_mha import FullMHA
from budgetformer.encoder import EncoderSpec, mean_over_tokens
from budgetformer.gated_layer import Execution
from suites.data.tokenizing import encode_use
from suites.executions.encoders import NUM_BATCHES, OfEncoders
from suites.executions.measurement import Answer
from suites.measuring.circumstance import package_version
from suites.measuring.latency import BATCH_SIZE, inference_call, spread_batches
from suites.measuring.timing import Call
from suites.records.record import Timed
from suites.training.model import build_model
from suites.training.seeding import Streams

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


@dataclass(frozen=True, kw_only=True)
class PeerTimes(OfEncoders):
    """Times of our full attention and of other libraries' encoders of the same sizes.

    Timed are ``inference`` on padded batches, ``inference, no padding``, and ``training`` (a step on padded batches:
    forward, backward, AdamW): ``ours``, ``ours again``, ``ours without the kernel``, and each peer.
    """

    kind: ClassVar[str] = "peers"

    def question(self) -> dict[str, Any]:
        return super().question() | {"peers": list(peer_blocks())}

    def measure(self) -> Answer:
        data = encode_use(self.task)
        spec = self.spec(data)
        ours = build_model(spec, FullMHA(), Streams(self.task.name, 0), self.device)
        models: dict[str, nn.Module] = {"ours": ours, "ours again": ours}
        models |= {name: Peer(spec, blocks).to(self.device) for name, blocks in peer_blocks().items()}
        plain_ours = FullMHA().for_inference(ours, Execution.MASKED)
        ragged = spread_batches(data.test, BATCH_SIZE, NUM_BATCHES, self.device)
        whole = [(tokens_BT.clamp(min=1), torch.ones_like(mask_BT)) for tokens_BT, mask_BT in ragged]
        final: dict[str, nn.Module] = {
            name: FullMHA().for_inference(ours) if model is ours else model.eval() for name, model in models.items()
        }
        samples: dict[str, list[float]] = {}
        for kind, batches in (("inference", ragged), ("inference, no padding", whole)):
            timed = {f"{kind}: {name}": inference_call(model, batches) for name, model in final.items()}
            timed[f"{kind}: ours without the kernel"] = inference_call(plain_ours, batches)
            samples |= self.interleaved(timed)
        samples |= self.interleaved(
            {f"training: {name}": _training_call(model.train(), ragged) for name, model in models.items()}
        )
        conditions = {"dtype": "float32", "transformers": package_version("transformers")}
        return Answer(Timed(timings=samples, measuring=conditions))


def _training_call(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Call:
    """A training step on the next batch each time, with the labels all 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    turns = cycle(batches)

    def step() -> None:
        tokens_BT, mask_BT = next(turns)
        output = model(tokens_BT, mask_BT)
        logits_BC = output if isinstance(output, Tensor) else output.logits_BC
        loss = F.cross_entropy(logits_BC, torch.zeros(len(logits_BC), dtype=torch.long, device=logits_BC.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
        optimizer.step()

    return step

import pytest
import torch

from budgetformer.encoder import EncoderSpec
from suites.executions.peers import Peer, peer_blocks

SPEC = EncoderSpec(vocab_size=40, num_classes=3, max_length=9, width=32, num_layers=2, num_heads=4, dropout=0.0)
TOKENS = torch.randint(1, 40, (4, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(9) < torch.tensor([7, 3, 1, 5])[:, None]


@pytest.mark.parametrize("name", peer_blocks())
def test_a_peer_ignores_padding_and_has_as_many_weights_per_layer(name: str) -> None:
    peer = Peer(SPEC, peer_blocks()[name]).eval()
    with torch.inference_mode():
        logits_BC = peer(TOKENS * MASK, MASK)
        alone_BC = peer(TOKENS[:1, :7], torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(logits_BC[:1], alone_BC, atol=1e-5, rtol=1e-4)
    # Four projections, two feed-forward products with hidden width 4 D, their biases, and two norms.
    per_layer = 4 * (32 * 32 + 32) + 2 * 4 * 32 * 32 + 5 * 32 + 2 * 2 * 32
    assert sum(p.numel() for p in peer.blocks.parameters()) >= 2 * per_layer
    assert sum(p.numel() for p in peer.blocks.parameters() if p.ndim > 1) == 2 * 12 * 32 * 32


def test_the_fast_path_gives_the_same_as_the_slow_one() -> None:
    name = "TransformerEncoder"
    slow, fast = (Peer(SPEC, peer_blocks()[each]).eval() for each in (name, f"{name}, fast path"))
    fast.load_state_dict(slow.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(fast(TOKENS, MASK), slow(TOKENS, MASK), atol=1e-5, rtol=1e-4)

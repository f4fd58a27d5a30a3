"""Making the model of a trial."""

import torch

from budgetformer.encoder import Encoder, EncoderSpec
from budgetformer.method import Method
from suites.training.seeding import Streams


def build_model(spec: EncoderSpec, method: Method, streams: Streams, device: str = "cpu") -> Encoder:
    """An untrained encoder with a method's gates; the weights that methods share are the same for all of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.number("gate-init"))
        gates = method.gates(spec, streams.generator("gate-init"))
        torch.manual_seed(streams.number("init"))
        return Encoder(spec, gates).to(device)

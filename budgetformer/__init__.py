"""Head-gated attention: run a Transformer with fewer attention heads, chosen per input or once.

``HeadGatedAttention`` is the layer, ``Encoder`` a model made of it, ``Method`` the contract of a way to choose heads,
and ``BudgetFormer`` the method of arXiv 2604.22583.
"""

from budgetformer.adaptive import BudgetFormer
from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.gates import AllHeads, ConstantGates, Gates, RandomHeads
from budgetformer.method import Method
from budgetformer.surgery import compact, execution_of

__all__ = [
    "AllHeads",
    "BudgetFormer",
    "ConstantGates",
    "Encoder",
    "EncoderOutput",
    "EncoderSpec",
    "Gates",
    "HeadGatedAttention",
    "Method",
    "RandomHeads",
    "compact",
    "execution_of",
]

"""Head-gated attention: run a Transformer with fewer attention heads, chosen per input or once.

``HeadGatedAttention`` is the layer, ``Encoder`` a model made of it, ``Method`` the contract of a way to choose heads,
and ``BudgetFormer`` the method of arXiv 2604.22583; ``BudgetFormerST`` is the same with one selection for both phases.
"""

from budgetformer.adaptive import BudgetFormer, BudgetFormerST
from budgetformer.attention import HeadGatedAttention
from budgetformer.encoder import Encoder, EncoderOutput, EncoderSpec
from budgetformer.gated_layer import Execution
from budgetformer.gates import AllHeads, ConstantGates, Gates, RandomHeads, SharedGates
from budgetformer.method import Method
from budgetformer.surgery import compact, execution_of

__all__ = [
    "AllHeads",
    "BudgetFormer",
    "BudgetFormerST",
    "ConstantGates",
    "Encoder",
    "EncoderOutput",
    "EncoderSpec",
    "Execution",
    "Gates",
    "HeadGatedAttention",
    "Method",
    "RandomHeads",
    "SharedGates",
    "compact",
    "execution_of",
]

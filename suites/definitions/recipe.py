"""How every method is trained: one recipe for all of a task's trials."""

from dataclasses import dataclass

from budgetformer.checks import check_interval, check_whole


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW with linear warm-up and linear decay to 0.

    Attributes:
        lr: peak learning rate.
        epochs: passes over the training split; the last one is what counts.
        batch_size: inputs per step.
        weight_decay: AdamW's, on matrices only.
        warmup: share of the steps over which the rate rises.
        clip_norm: the gradient's largest norm, of the shared parameters and of the gates' each.
        dropout: probability for embeddings and residual branches.
        token_dropout: probability with which the whole embedding of a token is dropped (Iyyer et al. 2015).
        embedding_std: standard deviation of the initial token embeddings.
        threads: CPU threads; their number changes the last digits of the results.

    Raises:
        ValueError: for a value outside its range.
    """

    lr: float = 1e-3
    epochs: int = 4
    batch_size: int = 32
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip_norm: float = 1.0
    dropout: float = 0.0
    token_dropout: float = 0.2
    embedding_std: float = 0.02
    threads: int = 1

    def __post_init__(self) -> None:
        check_whole(self, 1, "epochs", "batch_size", "threads")
        check_interval(self, "(0, inf)", "lr", "clip_norm", "embedding_std")
        check_interval(self, "[0, inf)", "weight_decay")
        check_interval(self, "[0, 1)", "warmup", "dropout", "token_dropout")

    def lr_factor(self, progress: float) -> float:
        """The share of the peak rate at some progress in [0, 1]."""
        if progress < self.warmup:
            return progress / self.warmup
        return (1 - progress) / (1 - self.warmup)

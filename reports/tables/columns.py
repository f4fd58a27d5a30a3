"""The columns of the main table."""

from dataclasses import dataclass

from reports.tables.cells import Column
from suites.records.metrics import METRICS, Direction

REFERENCE = "full-mha"


@dataclass(frozen=True)
class Measure:
    """A number column: which metric, times which factor, to how many decimals (None: three significant digits)."""

    column: Column
    metric: str
    factor: float = 1.0
    digits: int | None = None
    energy: str = ""

    @property
    def direction(self) -> Direction:
        return "higher" if self.metric == "flops_cut" else METRICS[self.metric].direction


ACCURACY = Measure(Column("accuracy_percent", "accuracy, %", ("quality", "choice")), "accuracy", 100, 2)
CHOICE = (
    *(
        Measure(Column(f"{metric}_percent", header, ("choice",), decides=True), metric, 100, 2)
        for metric, header in (
            ("accuracy_as_trained", "as trained, %"),
            ("accuracy_shuffled", "shuffled, %"),
            ("accuracy_modal_set", "modal set, %"),
            ("accuracy_random_heads", "random heads, %"),
            ("accuracy_mean_k", "mean k, %"),
        )
    ),
    Measure(Column("no_head_share_percent", "k = 0, %", ("choice",)), "no_head_share", 100, 1),
    Measure(Column("one_head_share_percent", "k = 1, %", ("choice",)), "one_head_share", 100, 1),
)
COST = (
    Measure(Column("executed_mflops", "MFLOPs (2 x MACs)", ("quality",)), "macs_executed", 2e-6),
    Measure(Column("flops_cut_percent", "cut, %", ("quality",)), "flops_cut", 100, 1),
    Measure(Column("heads_executed", "heads executed", ("quality",)), "heads_executed", 1, 3),
    Measure(Column("s_mean", "s_mean", ("quality",)), "s_mean", 1, 3),
)
TIME = (
    Measure(Column("latency_b1_p50_ms", "latency b1, ms", ("time",)), "latency_b1_p50_s", 1e3),
    Measure(Column("latency_b32_p50_ms", "latency b32, ms", ("time",)), "latency_b32_p50_s", 1e3),
    Measure(Column("latency_b32_ratio", "latency b32 / full", ("time",)), "latency_b32_ratio", 1, 3),
    Measure(Column("train_co2_g", "training, g CO2e", ("time",)), "train_co2_g", energy="train"),
    Measure(Column("inference_co2_g", "1,000 inputs, g CO2e", ("time",)), "inference_co2_g", energy="inference"),
)
METHOD = Column("method", "method", ("quality", "choice", "time"), "text")
SEEDS = Column("seeds", "seeds", ("quality",), "text")
EXECUTION = Column("execution", "execution", ("time",), "text")
DIFFERENCE = Column("accuracy_difference_points", f"vs {REFERENCE}, points", ("quality",), "difference")
ENERGY_SOURCE = Column("energy_source", "energy source", (), "text")

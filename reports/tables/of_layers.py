"""Times of one layer over the grid, a row per measurement."""

from collections.abc import Sequence

from reports.measured import CELL_COLUMNS, milliseconds_column, ratio_column, sizes
from reports.tables.cells import Table, make_table
from suites.records.record import Record

SPEC = (
    *CELL_COLUMNS,
    milliseconds_column("full, ms", "full"),
    milliseconds_column("auto, ms", "auto"),
    ratio_column("auto / full", "auto", "full"),
    ratio_column("auto / bound", "auto", "bound"),
    ratio_column("auto / PyTorch full", "auto", "plain full"),
    ratio_column("auto / PyTorch bound", "auto", "plain bound"),
    ratio_column("no kernel / PyTorch full", "plain", "plain full"),
    ratio_column("no kernel / PyTorch bound", "plain", "plain bound"),
    ratio_column("gathered / masked", "gathered", "masked"),
    ratio_column("masked MoH / PyTorch full", "mixture of heads", "plain full"),
    ratio_column("MHA / PyTorch full", "MultiheadAttention", "plain full"),
)
NOTES = (
    "Each ratio is the median over interleaved rounds in one process.",
    "auto: what the library runs, by the kernel where there is one. Full, bound: full attention, and a layer that "
    "physically has the mean number of heads (interpolated between the two whole numbers), by the same means.",
    "No kernel: in PyTorch's operators alone. PyTorch full, PyTorch bound: the same two in PyTorch's operators, with "
    "its fused attention. Masked MoH: router, all heads, weights. MHA: torch.nn.MultiheadAttention.",
)


def layer_table(records: Sequence[Record]) -> Table:
    """A row per point of the grid."""
    return make_table("One layer", SPEC, sizes(records), NOTES)

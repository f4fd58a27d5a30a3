"""All tables of what was measured of the layer itself."""

from collections.abc import Sequence
from dataclasses import replace

from reports.measured import Measured, way_of
from reports.tables.cells import Table
from reports.tables.of_encoders import encoder_table
from reports.tables.of_errors import error_table
from reports.tables.of_layers import layer_table
from reports.tables.of_memory import memory_table
from reports.tables.of_peers import peer_table
from reports.tables.of_training import training_table
from reports.tables.summary import summary_table


def measured_tables(measured: Measured, failed: Sequence[str]) -> list[Table]:
    """Those that have rows, the summary first; each says where it was measured, and the first what failed."""
    tables = [
        summary_table(measured),
        layer_table(measured.of_kind("layer")),
        encoder_table(measured.of_kind("encoder")),
        peer_table(measured.of_kind("peers")),
        memory_table(measured.of_kind("peak")),
        error_table(measured.of_kind("outputs"), measured.of_kind("gradients")),
        training_table(measured.of_kind("training")),
    ]
    suffix = f" ({measured.title})" if measured.title else ""
    where = _where(measured)
    first, *others = (table for table in tables if table.rows)
    return [
        replace(first, title=first.title + suffix, notes=(*first.notes, where, *failed)),
        *(replace(table, title=table.title + suffix, notes=(*table.notes, where)) for table in others),
    ]


def _where(measured: Measured) -> str:
    first = measured.records[0]
    where, way = first.measured_in, way_of(first)
    gpu = where.get("gpu") or {}
    card = f", {', '.join(gpu['names'])}" if gpu else ""
    codes = sorted({str(record.circumstance.get("code_fingerprint"))[:12] for record in measured.records})
    return (
        f"Hardware: {where.get('cpu_model')}, {where.get('cores')} cores{card}, {way['threads']} threads, device "
        f"{way['device']}, machine {way['machine']}. torch {way['torch']}. Kernel: {way['kernel']}. Sources "
        f"{', '.join(codes)}."
    )

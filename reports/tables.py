"""The main table of each task, as typed cells. How a cell looks is decided in ``reports.render``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from reports.load import Frame, setting_of
from reports.stats import Summary, best, paired_difference, summarise
from suites.records.metrics import METRICS, Direction

REFERENCE = "full-mha"

ORDER = (
    REFERENCE,
    "no-attention",
    "layer-drop",
    "random-k",
    "random-subset",
    "static-pruning",
    "l0-gates",
    "subset-pruning",
    "budgeted-gates",
    "mixture-of-heads",
    "budgetformer",
    "budgetformer-st",
)
"""Rows of a table: the reference, its controls, the methods. Unknown ones follow in the order of the alphabet."""

Panel = Literal["quality", "choice", "time"]


@dataclass(frozen=True)
class Text:
    """Words, as they are."""

    text: str


@dataclass(frozen=True)
class Number:
    """A mean over seeds.

    Attributes:
        mean: in the column's unit.
        spread: sample standard deviation over seeds; None for one seed.
        n: seeds with a value.
        digits: decimals to show.
        best: it is the best of its column, or looks equal to it.
        estimated: it does not come from a measurement alone.
        partial: finished seeds of the row lack it.
    """

    mean: float
    spread: float | None
    n: int
    digits: int
    best: bool = False
    estimated: bool = False
    partial: bool = False


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs of seeds; ``interval`` is None for one pair."""

    mean: float
    interval: tuple[float, float] | None
    n: int
    digits: int
    partial: bool = False


@dataclass(frozen=True)
class Missing:
    """There is no such number."""


@dataclass(frozen=True)
class Failed:
    """No seed came to an end."""


Cell = Text | Number | Difference | Missing | Failed


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        key: name in a CSV file; carries the unit.
        header: what a reader sees.
        panels: the parts of the table that show it; none for a CSV file's alone.
        kind: what its cells hold, where they hold something.
        decides: a panel with such columns shows the rows that have something in one of them, and no others.
    """

    key: str
    header: str
    panels: tuple[Panel, ...]
    kind: Literal["text", "number", "difference"] = "number"
    decides: bool = False


@dataclass(frozen=True)
class Table:
    """One setting: a task with its recipe, encoder and device.

    Attributes:
        title: the task, and what tells it from other settings of the same task.
        columns: all columns.
        rows: one per method, one cell per column.
        notes: what a reader must know, a sentence or two each.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]

    def cells(self, key: str) -> list[Cell]:
        """The cells of one column."""
        index = [column.key for column in self.columns].index(key)
        return [row[index] for row in self.rows]

    def panel(self, panel: Panel) -> "Table":
        """The table with the columns of one panel."""
        shown = [index for index, column in enumerate(self.columns) if panel in column.panels]
        deciding = [index for index in shown if self.columns[index].decides]
        wanted = [row for row in self.rows if not deciding or any(row[i] != Missing() for i in deciding)]
        rows = tuple(tuple(row[index] for index in shown) for row in wanted)
        return Table(self.title, tuple(self.columns[index] for index in shown), rows, self.notes)


@dataclass(frozen=True)
class _Measure:
    """A number column: which metric, times which factor, to how many decimals (None: three significant digits)."""

    column: Column
    metric: str
    factor: float = 1.0
    digits: int | None = None
    energy: str = ""

    @property
    def direction(self) -> Direction:
        return "higher" if self.metric == "flops_cut" else METRICS[self.metric].direction


_ACCURACY = _Measure(Column("accuracy_percent", "accuracy, %", ("quality", "choice")), "accuracy", 100, 2)
_CHOICE = (
    *(
        _Measure(Column(f"{metric}_percent", header, ("choice",), decides=True), metric, 100, 2)
        for metric, header in (
            ("accuracy_as_trained", "as trained, %"),
            ("accuracy_shuffled", "shuffled, %"),
            ("accuracy_modal_set", "modal set, %"),
            ("accuracy_random_heads", "random heads, %"),
            ("accuracy_mean_k", "mean k, %"),
        )
    ),
    _Measure(Column("no_head_share_percent", "k = 0, %", ("choice",)), "no_head_share", 100, 1),
    _Measure(Column("one_head_share_percent", "k = 1, %", ("choice",)), "one_head_share", 100, 1),
)
_COST = (
    _Measure(Column("executed_mflops", "MFLOPs (2 x MACs)", ("quality",)), "macs_executed", 2e-6),
    _Measure(Column("flops_cut_percent", "cut, %", ("quality",)), "flops_cut", 100, 1),
    _Measure(Column("heads_executed", "heads executed", ("quality",)), "heads_executed", 1, 3),
    _Measure(Column("s_mean", "s_mean", ("quality",)), "s_mean", 1, 3),
)
_TIME = (
    _Measure(Column("latency_b1_p50_ms", "b1, ms", ("time",)), "latency_b1_p50_s", 1e3),
    _Measure(Column("latency_b32_p50_ms", "b32, ms", ("time",)), "latency_b32_p50_s", 1e3),
    _Measure(Column("latency_b32_ratio", "b32 time / full", ("time",)), "latency_b32_ratio", 1, 3),
    _Measure(Column("train_co2_g", "training, g CO2e", ("time",)), "train_co2_g", energy="train"),
    _Measure(Column("inference_co2_g", "1,000 inputs, g CO2e", ("time",)), "inference_co2_g", energy="inference"),
)
_METHOD = Column("method", "method", ("quality", "choice", "time"), "text")
_SEEDS = Column("seeds", "seeds", ("quality",), "text")
_EXECUTION = Column("execution", "execution", ("time",), "text")
_DIFFERENCE = Column("accuracy_difference_points", f"vs {REFERENCE}, points", ("quality",), "difference")
_ENERGY_SOURCE = Column("energy_source", "energy source", (), "text")


def main_tables(frame: Frame, *, allow_mixed: bool = False) -> list[Table]:
    """The tables of a results folder, by task.

    Args:
        frame: the records.
        allow_mixed: show times and emissions of several machines or protocols side by side, in a table that says so.

    Raises:
        ValueError: if a table would mix them and may not.
    """
    rows = frame.rows.assign(flops_cut=1 - frame.rows["macs_executed"] / frame.rows["macs_full"])
    settings = [part.sort_values("seed") for _, part in rows.groupby(["task", "setting"])]
    titles = _unambiguous(
        [part["task"].iloc[0] for part in settings], [setting_of(part["question"].iloc[0]) for part in settings]
    )
    bad = [f"Passed over {path.name}: {reason}." for path, reason in frame.bad.items()]
    return [_table(title, part, bad, allow_mixed) for title, part in zip(titles, settings, strict=True)]


def _table(title: str, rows: pd.DataFrame, bad: list[str], allow_mixed: bool) -> Table:
    groups = sorted((part for _, part in rows.groupby("group")), key=_rank)
    names = _unambiguous(
        [part["method"].iloc[0] for part in groups],
        [{key: part["question"].iloc[0].get(key) for key in ("method", "protocol")} for part in groups],
    )
    finished = [part[part["status"] == "done"] for part in groups]
    mixture = _mixture(names, finished)
    if mixture and not allow_mixed:
        raise ValueError(
            f"{title}: one table would compare times and emissions of several machines or protocols: {mixture}; "
            "keep them in folders of their own, or have them marked with --allow-mixed"
        )
    num_seeds = rows["seed"].nunique()
    if_mixed: tuple[Panel, ...] = ("time",) if mixture else ()

    def numbers(measure: _Measure) -> list[Cell]:
        # The best of a mixed column would be the best machine.
        return _numbers(measure, finished, "none" if mixture else measure.direction)

    columns: list[tuple[Column, list[Cell]]] = [
        (_METHOD, [Text(name) for name in names]),
        (_SEEDS, [Text(_seeds(len(part), num_seeds)) for part in finished]),
        (_EXECUTION, [_joined(part["execution"]) for part in finished]),
        (_ACCURACY.column, _or_failed(numbers(_ACCURACY), finished)),
        (_DIFFERENCE, _differences(finished)),
        *((measure.column, numbers(measure)) for measure in (*_COST, *_CHOICE, *_TIME)),
        (_ENERGY_SOURCE, [_joined(part["energy"].map(_energy_source)) for part in finished]),
        (
            Column("machine", "machine", if_mixed, "text"),
            [_joined(part["machine_id"].replace("", "unknown")) for part in finished],
        ),
        (Column("protocol", "protocol", if_mixed, "text"), [_joined(part["protocol"]) for part in finished]),
    ]
    return Table(
        title,
        tuple(column for column, _ in columns),
        tuple(zip(*(cells for _, cells in columns), strict=True)),
        (*_notes(names, groups, mixture), *bad),
    )


def _rank(group: pd.DataFrame) -> tuple[int, str, str]:
    name = group["method_name"].iloc[0]
    return (ORDER.index(name) if name in ORDER else len(ORDER), group["method"].iloc[0], group["group"].iloc[0])


def _unambiguous(names: Sequence[str], details: Sequence[dict[str, Any]]) -> list[str]:
    """The names; where several are equal, with the details in which they differ."""
    flat = [_flat(detail) for detail in details]
    twins = [[other for same, other in zip(names, flat, strict=True) if same == name] for name in names]
    differing = [
        [f"{key}={value}" for key, value in detail.items() if any(other.get(key) != value for other in others)]
        for detail, others in zip(flat, twins, strict=True)
    ]
    return [f"{name} ({', '.join(parts)})" if parts else name for name, parts in zip(names, differing, strict=True)]


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def _mixture(names: Sequence[str], finished: Sequence[pd.DataFrame]) -> str:
    """Who was measured where, if not all on one machine under one protocol; else empty."""
    where: dict[tuple[str, str], list[str]] = {}
    for name, part in zip(names, finished, strict=True):
        for place, trials in part.groupby(["machine_id", "protocol"]):
            machine, protocol = map(str, place)
            seeds = ", ".join(map(str, trials["seed"]))
            where.setdefault((machine, protocol), []).append(f"{name} seed {seeds}")
    num_unknown = sum(int((part["machine_id"] == "").sum()) for part in finished)
    # An unknown machine may be another one than the next unknown machine.
    if len(where) < 2 and num_unknown < 2:
        return ""
    return "; ".join(
        f"machine {machine or 'unknown'}, protocol {protocol}: {', '.join(trials)}"
        for (machine, protocol), trials in sorted(where.items())
    )


def _seeds(num_finished: int, num_seeds: int) -> str:
    return str(num_finished) if num_finished == num_seeds else f"{num_finished} of {num_seeds}"


def _joined(values: pd.Series) -> Cell:
    distinct = sorted({str(value) for value in values if value})
    return Text(", ".join(distinct)) if distinct else Missing()


def _or_failed(cells: list[Cell], finished: Sequence[pd.DataFrame]) -> list[Cell]:
    return [cell if len(part) else Failed() for cell, part in zip(cells, finished, strict=True)]


def _numbers(measure: _Measure, finished: Sequence[pd.DataFrame], direction: Direction) -> list[Cell]:
    """A column's cells, one per group of trials that differ in the seed alone."""
    summaries = [_summary(part[measure.metric] * measure.factor) for part in finished]
    means = [None if summary is None else summary.mean for summary in summaries]
    digits = _decimals(means) if measure.digits is None else measure.digits
    flags = best(
        [mean if _competes(measure, part) else None for mean, part in zip(means, finished, strict=True)],
        direction,
        digits,
    )
    return [
        Missing()
        if summary is None
        else Number(
            summary.mean,
            summary.std,
            summary.n,
            digits,
            best=flag,
            estimated=bool(measure.energy)
            and _is_estimated(part["energy"][part[measure.metric].notna()], measure.energy),
            partial=summary.n < len(part),
        )
        for summary, flag, part in zip(summaries, flags, finished, strict=True)
    ]


def _competes(measure: _Measure, part: pd.DataFrame) -> bool:
    """A masked run computes all heads: it cannot be the fastest for having fewer."""
    return not (measure.metric.startswith("latency") and part["execution"].str.contains("masked").any())


def _summary(values: pd.Series) -> Summary | None:
    known = values.dropna()
    return summarise(known.to_numpy(dtype=float)) if len(known) else None


def _decimals(values: Sequence[float | None], significant: int = 3) -> int:
    """Decimals that show so many significant digits of the smallest value."""
    sizes = [abs(value) for value in values if value]
    return max(0, significant - 1 - math.floor(math.log10(min(sizes)))) if sizes else 0


def _differences(finished: Sequence[pd.DataFrame]) -> list[Cell]:
    """Accuracy against the reference of the same protocol, in points."""
    return [_difference(part, _reference(part, finished)) for part in finished]


def _reference(part: pd.DataFrame, finished: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Full attention under the same protocol: the only one, or of several the one at its defaults."""
    rivals = [
        other
        for other in finished
        if len(part)
        and len(other)
        and other["method_name"].iloc[0] == REFERENCE
        and other["protocol"].iloc[0] == part["protocol"].iloc[0]
    ]
    if len(rivals) > 1:
        rivals = [other for other in rivals if other["method"].iloc[0] == REFERENCE]
    return rivals[0] if len(rivals) == 1 else None


def _difference(part: pd.DataFrame, reference: pd.DataFrame | None) -> Cell:
    if reference is None:
        return Missing()
    if reference is part:
        return Text("reference")
    ours, theirs = (100 * each.set_index("seed")["accuracy"].dropna() for each in (part, reference))
    seeds = ours.index.intersection(theirs.index)
    if not len(seeds):
        return Missing()
    difference = paired_difference(ours.loc[seeds].to_numpy(dtype=float), theirs.loc[seeds].to_numpy(dtype=float))
    return Difference(difference.mean, difference.interval, difference.n, digits=2, partial=difference.n < len(part))


def _phase(energy: dict[str, Any], phase: str) -> dict[str, Any]:
    """Provenance of training's or inference's energy; a record may have one for both."""
    provenance: dict[str, Any] = energy.get(phase, energy)
    return provenance


def _sources(provenance: dict[str, Any]) -> dict[str, str]:
    """Source by component, of those that gave a number."""
    components = provenance.get("components", {})
    return {name: str(part.get("source")) for name, part in components.items() if part.get("kwh") is not None}


def _is_estimated(energies: pd.Series, phase: str) -> bool:
    """Whether any number may rest on an estimate; what does not say where it comes from may."""
    sources = [_sources(_phase(energy, phase)) for energy in energies]
    return any(set(each.values()) != {"measured"} for each in sources)


def _energy_source(energy: dict[str, Any]) -> str:
    sources = _sources(_phase(energy, "train")) | _sources(_phase(energy, "inference"))
    return ", ".join(f"{name} {source}" for name, source in sorted(sources.items()))


_CHOICE_NOTE = (
    "As trained: with the gates as at the end of training, soft where they are. Shuffled, modal set, random heads, "
    "mean k: the same trained models with the gates of another input, with each layer's most frequent set of heads "
    "for all, with each input's own number of random heads, and with each input's best heads but the mean number for "
    "all; a head's weight goes with it. A choice per input is worth something only where it beats these. k = 0, k = 1: "
    "share of (input, layer) pairs with no head, and with one."
)


def _notes(names: Sequence[str], groups: Sequence[pd.DataFrame], mixture: str) -> list[str]:
    rows = pd.concat(groups)
    done = rows[rows["status"] == "done"]
    seeds = ", ".join(map(str, sorted(rows["seed"].unique())))
    notes = [
        f"Mean ± sample standard deviation over seeds ({seeds}); no ± for one seed or where it "
        "rounds to 0. Differences are paired by seed, with the 95 % t interval of their mean. Bold: best of the "
        "column as printed, without a test.",
        "FLOPs per input, 1 MAC = 2 FLOPs, executed: counted on the products that ran over the padded test batches. "
        "Cut: against the closed form of full attention's model on the same batches. Heads executed: mean of k / H "
        "that ran. s_mean: mean fraction of heads that was asked for; -- where none is.",
        "Execution: dense is full attention; sliced, unused heads' weights are gone; gathered, each input's own heads; "
        "masked, all heads.",
        "b1, b32: median time of one test input and of a batch of 32. b32 time / full: median over rounds in turns "
        "with full attention, in one process; masked runs compute every head, so theirs tells nothing of saved work.",
        _noise(done["latency_b32_aa_ratio"].dropna()),
        _emissions(done["energy"]),
        f"Hardware: {_listed(done['circumstance'], _hardware)}.",
        f"Protocol {_listed(rows['protocol'], str)}. Code: {_listed(rows['circumstance'], _code)}.",
    ]
    if done["accuracy_shuffled"].notna().any():
        notes.insert(1, _CHOICE_NOTE)
    if mixture:
        notes.insert(0, f"MIXED: times and emissions are not comparable between {mixture}.")
    for name, group in zip(names, groups, strict=True):
        failed = group[group["status"] == "failed"]
        notes += [
            f"{name} seed {seed} failed: {error}." for seed, error in zip(failed["seed"], failed["error"], strict=True)
        ]
    return notes


def _listed(values: pd.Series, describe: Callable[[Any], str]) -> str:
    """The distinct descriptions, in the order of the rows."""
    return "; ".join(dict.fromkeys(describe(value) for value in values)) or "unknown"


def _noise(ratios: pd.Series) -> str:
    if not len(ratios):
        return "Noise of b32 time / full: unknown, full attention was not timed against itself."
    least, most = f"{ratios.min():.3f}", f"{ratios.max():.3f}"
    return f"Noise of b32 time / full: full attention over itself gave {least}{'' if least == most else f' to {most}'}."


def _emissions(energies: pd.Series) -> str:
    phases = [_phase(energy, phase) for energy in energies for phase in ("train", "inference")]
    sources = sorted({f"{name} {source}" for phase in phases for name, source in _sources(phase).items()})
    intensities = dict.fromkeys(
        f"{phase['intensity_g_per_kwh']:g} g/kWh ({phase.get('intensity_source') or 'source unknown'})"
        for phase in phases
        if phase.get("intensity_g_per_kwh") is not None
    )
    return (
        "g CO2e: of one training run, and of inference on 1,000 test inputs; ≈ rests on an estimate. "
        f"Energy: {', '.join(sources) or 'unknown'}. Intensity: {'; '.join(intensities) or 'unknown'}."
    )


def _hardware(circumstance: dict[str, Any]) -> str:
    gpu = circumstance.get("gpu")
    processor = ", ".join(gpu["names"]) if gpu else "no GPU"
    return (
        f"{circumstance.get('cpu_model') or 'unknown CPU'}, {circumstance.get('cores', '?')} cores, {processor}, "
        f"{circumstance.get('threads', '?')} threads, device {circumstance.get('device', '?')}, "
        f"machine {circumstance.get('machine_id') or 'unknown'}"
    )


def _code(circumstance: dict[str, Any]) -> str:
    commit = str(circumstance.get("commit") or "of no commit")[:12]
    fingerprint = str(circumstance.get("code_fingerprint") or "unknown")[:12]
    return f"{commit}{' with changes' if circumstance.get('dirty') else ''} (sources {fingerprint})"

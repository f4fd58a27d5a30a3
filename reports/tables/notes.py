"""What a reader of the main table must know."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from reports.tables.provenance import phase_of, sources_of

_CHOICE_NOTE = (
    "As trained: with the gates as at the end of training, soft where they are. Shuffled, modal set, random heads, "
    "mean k: the same trained models with the gates of another input, with each layer's most frequent set of heads "
    "for all, with each input's own number of random heads, and with each input's best heads but the mean number for "
    "all; a head's weight goes with it. A choice per input is worth something only where it beats these. k = 0, k = 1: "
    "share of (input, layer) pairs with no head, and with one."
)


def notes(names: Sequence[str], groups: Sequence[pd.DataFrame], mixture: str) -> list[str]:
    """The notes of one table: of its methods' names, their trials, and what it mixes, if anything."""
    rows = pd.concat(groups)
    done = rows[rows["status"] == "done"]
    seeds = ", ".join(map(str, sorted(rows["seed"].unique())))
    code = pd.concat([rows["trained_in"], rows["circumstance"]])
    notes = [
        f"Mean ± sample standard deviation over seeds ({seeds}); no ± for one seed or where it "
        "rounds to 0. Differences are paired by seed, with the 95 % t interval of their mean. Bold: best of the "
        "column as printed, without a test.",
        "FLOPs per input, 1 MAC = 2 FLOPs, executed: counted on the products that ran over the padded test batches. "
        "Cut: against the closed form of full attention's model on the same batches. Heads executed: mean of k / H "
        "that ran. s_mean: mean fraction of heads that was asked for; -- where none is.",
        "Execution: dense is full attention; sliced, unused heads' weights are gone; gathered, each input's own heads; "
        "masked, all heads.",
        "Latency b1, b32: median time of one test input and of a batch of 32. Latency b32 / full: median over rounds "
        "in turns with full attention, in one process; masked runs compute every head, so theirs tells nothing of "
        "saved work.",
        _noise("latency b32 / full", "full attention over itself", done["latency_b32_aa_ratio"].dropna()),
        _noise("training time", "equal work over itself", done["train_aa_ratio"].dropna()),
        _emissions(done["energy"]),
        f"Hardware: {_listed(done['circumstance'], _hardware)}.",
        f"Protocol {_listed(rows['protocol'], str)}. Code: {_listed(code, _code)}.",
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


def _noise(column: str, what: str, ratios: pd.Series) -> str:
    if not len(ratios):
        return f"Noise of {column}: unknown, it was not measured."
    least, most = f"{ratios.min():.3f}", f"{ratios.max():.3f}"
    return f"Noise of {column}: {what} gave {least}{'' if least == most else f' to {most}'}."


def _emissions(energies: pd.Series) -> str:
    phases = [phase_of(energy, phase) for energy in energies for phase in ("train", "inference")]
    sources = sorted({f"{name} {source}" for phase in phases for name, source in sources_of(phase).items()})
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

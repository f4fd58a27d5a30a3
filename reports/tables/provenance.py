"""Where energies come from, as records say it."""

from typing import Any

import pandas as pd


def phase_of(energy: dict[str, Any], phase: str) -> dict[str, Any]:
    """Provenance of training's or inference's energy; a record may have one for both."""
    provenance: dict[str, Any] = energy.get(phase, energy)
    return provenance


def sources_of(provenance: dict[str, Any]) -> dict[str, str]:
    """Source by component, of those that gave a number."""
    components = provenance.get("components", {})
    return {name: str(part.get("source")) for name, part in components.items() if part.get("kwh") is not None}


def is_estimated(energies: pd.Series, phase: str) -> bool:
    """Whether any number may rest on an estimate; what does not say where it comes from may."""
    sources = [sources_of(phase_of(energy, phase)) for energy in energies]
    return any(set(each.values()) != {"measured"} for each in sources)


def energy_source(energy: dict[str, Any]) -> str:
    """Each component with its source, in words."""
    sources = sources_of(phase_of(energy, "train")) | sources_of(phase_of(energy, "inference"))
    return ", ".join(f"{name} {source}" for name, source in sorted(sources.items()))

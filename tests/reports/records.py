"""Records to report on."""

from collections.abc import Container
from pathlib import Path
from typing import Any

from suites.definitions.registry import METHODS as REGISTERED
from suites.records.metrics import LEARNED, TIMED
from suites.records.record import Learned, Record, Timed
from suites.records.store import Store

METRICS: dict[str, Any] = {
    "accuracy": 0.9,
    "macs_executed": 20e6,
    "macs_full": 40e6,
    "heads_executed": 0.5,
    "s_mean": 0.5,
    "s_mean_per_layer": [0.25, 0.75],
    "latency_b1_p50_s": 2e-3,
    "latency_b32_p50_s": 20e-3,
    "latency_b32_ratio": 0.8,
    "latency_b32_aa_ratio": 1.01,
    "train_aa_ratio": 0.99,
    "train_co2_g": 0.02,
    "inference_co2_g": 0.004,
}


PLACES = {name: method.place for name, method in REGISTERED.items()}

CHOICE: dict[str, Any] = {
    "accuracy_as_trained": 0.94,
    "accuracy_shuffled": 0.85,
    "accuracy_modal_set": 0.925,
    "accuracy_random_heads": 0.7,
    "no_head_share": 0.125,
    "one_head_share": 0.25,
}
"""Of a method that chooses the same number of heads for every input, but not the same heads."""


def energy(source: str = "estimated") -> dict[str, Any]:
    provenance = {
        "components": {
            "cpu": {"kwh": 1e-5, "source": source},
            "gpu": {"kwh": None, "source": "unavailable"},
            "ram": {"kwh": 1e-6, "source": "measured"},
        },
        "intensity_g_per_kwh": 475.0,
        "intensity_source": "world average",
    }
    return {"train": provenance, "inference": provenance}


def record(
    method: str = "full-mha",
    seed: int = 0,
    *,
    task: str = "topics",
    error: str = "",
    execution: str = "dense",
    protocol: str = "1",
    machine: str | None = "m1",
    source: str = "estimated",
    lr: float = 1e-3,
    **metrics: Any,
) -> Record:
    return Record(
        question={
            "protocol": protocol,
            "task": {"name": task, "max_length": 64, "fingerprint": "f"},
            "encoder": {"num_layers": 2, "num_heads": 8},
            "recipe": {"lr": lr, "threads": 2},
            "method": {
                "name": method.partition("(")[0],
                "label": method,
                "place": PLACES.get(method.partition("(")[0], 1000),
                "params": {"changed": method.partition("(")[2]},
            },
            "seed": seed,
            "device": "cpu",
            "execution": "auto",
            "deterministic": False,
        },
        status="failed" if error else "done",
        error=error,
        learned=Learned() if error else Learned(metrics=_of(LEARNED, METRICS | metrics), execution=execution),
        timed=Timed() if error else Timed(metrics=_of(TIMED, METRICS | metrics), energy=energy(source)),
        circumstance={
            "machine_id": machine,
            "cpu_model": "A CPU",
            "cores": 2,
            "gpu": None,
            "threads": 2,
            "device": "cpu",
            "commit": "0123456789abcdef",
            "dirty": False,
            "code_fingerprint": "fedcba9876543210",
        },
    )


def _of(part: Container[str], metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if key in part}


def stored(folder: Path, *records: Record) -> Path:
    store = Store(folder)
    for each in records:
        store.save(each)
    return folder


def golden_records() -> list[Record]:
    """A failed seed, a failed method, numbers that do not exist, a tie, a masked run, a label full of specials."""
    full: dict[str, Any] = {"macs_executed": 40e6, "heads_executed": 1.0, "s_mean": None, "latency_b32_ratio": 1.0}
    awkward = r"top_k|50% #1 {x} ~^\&$"
    return [
        record("full-mha", 0, accuracy=0.91, **full),
        record("full-mha", 1, accuracy=0.93, **full),
        record("random-k", 0, accuracy=0.90, execution="gathered", latency_b1_p50_s=3e-3),
        record("random-k", 1, error="RuntimeError: 50% of it"),
        record("budgetformer", 0, accuracy=0.9201, execution="gathered", macs_executed=18.5e6, **CHOICE),
        record("budgetformer", 1, accuracy=0.92, execution="gathered", macs_executed=19e6, **CHOICE),
        record("broken", 0, error="ValueError: no"),
        record("broken", 1, error="ValueError: no"),
        record(awkward, 0, execution="masked", train_co2_g=None),
        record(awkward, 1, execution="masked", source="measured", inference_co2_g=None),
        record("full-mha", 0, task="tweets", source="measured", **full),
        record("random-k", 0, task="tweets", source="measured", latency_b32_aa_ratio=None),
    ]

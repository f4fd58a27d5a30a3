"""Energy of a stretch of work, with where each part of the number comes from.

The number is codecarbon's, of the whole machine: processors and memory with everything that runs on them, and, for
work on CUDA, the GPUs that this process may use. GPUs that it may not use never count, nor do any where the work is on
the CPU: they are not needed for it, and idle they can draw more than it does. Without a counter in the hardware the
number is an estimate from rated power and load; ``provenance`` says which, per component. Windows that overlap in time
count the same energy twice.
"""

import difflib
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from suites.measuring.circumstance import nvml_cards, package_version

MIN_WINDOW_S = 1.0
"""Hardware's counters step, and an estimate is made of a sample a second; a shorter window would report chance."""

_NAMES = ("cpu", "gpu", "ram")
_COUNTERS = ("intel_rapl", "windows_emi", "intel_power_gadget")
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Electricity:
    """What a kWh of electricity emits. It is stated, never looked up by location.

    Attributes:
        intensity_g_per_kwh: gCO2e/kWh, >= 0.
        source: where that number comes from.

    Raises:
        ValueError: if the intensity is negative or not finite.
    """

    intensity_g_per_kwh: float
    source: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.intensity_g_per_kwh) and self.intensity_g_per_kwh >= 0):
            raise ValueError(f"a carbon intensity is a number >= 0, in g/kWh, not {self.intensity_g_per_kwh}")


WORLD = Electricity(475.0, "world average of 2018, IEA Global Energy & CO2 Status Report 2019")
"""Also what codecarbon uses where it knows no country."""

_COUNTRIES = "data/private_infra/global_energy_mix.json"


def electricity_of(country: str) -> Electricity:
    """The mean electricity of a country, by the tables that codecarbon brings along.

    Args:
        country: its ISO 3166-1 alpha-3 code.

    Raises:
        ValueError: if the tables have no country of that code, or no intensity for it.
    """
    package = distribution("codecarbon")
    table = json.loads(Path(str(package.locate_file(f"codecarbon/{_COUNTRIES}"))).read_text("utf-8"))
    if country not in table:
        names = {code: code for code in table} | {entry["country_name"].upper(): code for code, entry in table.items()}
        nearest = difflib.get_close_matches(country.upper(), names, n=1)
        hint = f"did you mean {names[nearest[0]]}?" if nearest else "it takes three letters, such as DEU or USA"
        raise ValueError(f"no country has the code {country!r} in codecarbon's table; {hint}")
    entry = table[country]
    intensity = entry.get("carbon_intensity")
    if not intensity:  # no grid emits nothing: the table rounds, or does not know
        raise ValueError(f"codecarbon's table has no carbon intensity of {country}; state one in g/kWh")
    source = f"{entry['country_name']} {entry['year']}, {_COUNTRIES} of codecarbon {package.version}"
    return Electricity(float(intensity), source)


@dataclass(frozen=True)
class Energy:
    """Energy of one window.

    Attributes:
        kwh: energy of all components, > 0; None where there is no number that deserves the name.
        seconds: length of the window.
        provenance: ``components`` (for ``cpu``, ``gpu`` and ``ram``: ``kwh``, ``source`` as ``measured``, ``estimated``
            or ``unavailable``, and ``method``), ``scope``, ``tracker``, ``intensity_g_per_kwh``, ``intensity_source``,
            and ``reason``: why ``kwh`` is None, else empty.
    """

    kwh: float | None
    seconds: float
    provenance: dict[str, Any]

    @property
    def co2_g(self) -> float | None:
        """Emissions in gCO2e: energy times the stated intensity."""
        return None if self.kwh is None else self.kwh * float(self.provenance["intensity_g_per_kwh"])


class EnergyMeter:
    """Measures the energy of a ``with`` block; ``energy`` holds the result afterwards.

    Needs no network and writes nothing. Whatever fails in the measurement, the block runs, and the result says why it
    has no number. The first block of a process pays for looking at the hardware (about a second), before its window
    begins; later ones start in milliseconds.

    Args:
        electricity: what the emissions are computed with.
        device: where the block's work runs, as torch names it: ``cpu`` counts no GPU, ``cuda`` all that are visible.
    """

    def __init__(self, electricity: Electricity = WORLD, *, device: str = "cuda") -> None:
        self._electricity = electricity
        self._device = torch.device(device)
        self._gpus: list[int] = []
        self.energy = self._result({}, 0.0, "the block has not ended")

    def __enter__(self) -> Self:
        self._log = _Log()
        self._tracker: Any = None
        logging.getLogger("codecarbon").addFilter(self._log)
        try:
            self._gpus = _visible_gpus() if self._device.type == "cuda" else []
            self._tracker = _new_tracker(self._gpus)
            self._tracker.start()
        except Exception as error:
            self._log.errors.append(_say(error))
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        seconds = time.perf_counter() - self._start
        components = {}
        try:
            if self._tracker is not None:
                self._tracker.stop()  # takes the last sample
                components = _components(self._tracker, self._gpus)
        except Exception as failure:
            self._log.errors.append(_say(failure))
        finally:
            logging.getLogger("codecarbon").removeFilter(self._log)
        reason = "" if components else f"the tracker failed: {self._log.errors[0]}"
        if components and seconds < MIN_WINDOW_S:
            reason = f"the window of {seconds:.3g} s is shorter than {MIN_WINDOW_S:g} s"
            components = {name: component | {"kwh": None} for name, component in components.items()}
        self.energy = self._result(components, seconds, reason)

    def _result(self, components: dict[str, dict[str, Any]], seconds: float, reason: str) -> Energy:
        found = {name: component for name, component in components.items() if component["method"]}
        silent = [name for name, component in found.items() if component["kwh"] is None]
        if not reason and (silent or not found):
            reason = f"unavailable: no energy reported for {', '.join(silent) or 'anything'}"
        provenance = {
            "components": components or dict.fromkeys(_NAMES, _UNAVAILABLE),
            "scope": f"whole machine, {_say_gpus(self._gpus)}",
            "tracker": f"codecarbon {package_version('codecarbon')}",
            "intensity_g_per_kwh": self._electricity.intensity_g_per_kwh,
            "intensity_source": self._electricity.source,
            "reason": reason,
        }
        return Energy(None if reason else sum(part["kwh"] for part in found.values()), seconds, provenance)


def idle_power(seconds: float, device: str = "cuda") -> dict[str, Any]:
    """Power of the machine while this process sleeps, by the same meter: what work above idle is counted from.

    It is the machine's idle power only if nobody else works meanwhile.

    Args:
        seconds: how long to sleep, >= ``MIN_WINDOW_S``.
        device: where the work will run that this is for, as torch names it.

    Returns:
        Plain values: ``watts``, None where there is no number; ``seconds``; ``components`` (for ``cpu``, ``gpu`` and
        ``ram``: ``watts``, ``source`` and ``method``, as in :class:`Energy`); ``scope``; and ``reason``: why ``watts``
        is None, else empty.
    """
    with EnergyMeter(device=device) as meter:
        time.sleep(seconds)
    energy = meter.energy

    def watts(kwh: float | None) -> float | None:
        return None if kwh is None else kwh * JOULES_PER_KWH / energy.seconds

    components = {
        name: {"watts": watts(part["kwh"]), "source": part["source"], "method": part["method"]}
        for name, part in energy.provenance["components"].items()
    }
    return {
        "watts": watts(energy.kwh),
        "seconds": energy.seconds,
        "components": components,
        "scope": energy.provenance["scope"],
        "reason": energy.provenance["reason"],
    }


class _Log(logging.Filter):
    """Keeps the tracker's log from being printed, and the errors that it only logs."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(_say(record.exc_info[1]))
        return False


_UNAVAILABLE: dict[str, Any] = {"kwh": None, "source": "unavailable", "method": ""}


def _visible_gpus() -> list[int]:
    """The GPUs that this process may use, by their index among all of the machine."""
    if not torch.cuda.is_available():
        return []
    nvml, cards = nvml_cards()
    return [nvml.nvmlDeviceGetIndex(card) for card in cards]


def _say_gpus(gpus: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "no GPU"


def _new_tracker(gpus: list[int]) -> Any:
    # Imported on first use: it takes a quarter of a second and starts a subprocess.
    from codecarbon import OfflineEmissionsTracker  # noqa: PLC0415

    # Every setting that could change a number, use the network or write is given, so that no configuration file and no
    # environment variable of codecarbon's can.
    return OfflineEmissionsTracker(
        allow_multiple_runs=True,  # a lock file that a killed run left behind must not stop this one
        output_methods=[],
        output_handlers=[],
        emissions_endpoint=None,
        log_level="warning",
        tracking_mode="machine",
        measure_power_secs=15,
        # As indices: by itself it would read CUDA_VISIBLE_DEVICES, whose UUIDs it does not find, and whose indices it
        # takes for those of the bus.
        gpu_ids=gpus,
        # Spares it the tables of countries; its CO2 is not used.
        force_carbon_intensity_g_co2e_kwh=WORLD.intensity_g_per_kwh,
        country_iso_code=None,
        region=None,
        cloud_provider=None,
        cloud_region=None,
        pue=1.0,
        force_cpu_power=None,
        force_ram_power=None,
        force_mode_cpu_load=False,
        rapl_include_dram=False,
        rapl_prefer_psys=False,
    )


def _components(tracker: Any, gpus: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Energy, source and method by component, of a tracker that was stopped and was to count some GPUs."""
    data = tracker.final_emissions_data
    components = dict.fromkeys(_NAMES, _UNAVAILABLE)
    if gpus:  # it passes over them without a word where it cannot run nvidia-smi
        components["gpu"] = _UNAVAILABLE | {"method": "none: the tracker found no GPU"}
    for hardware in tracker._hardware:
        name, source, method = _origin(hardware, data)
        if name == "gpu" and not gpus:
            continue  # told to count none, it may count all
        kwh = getattr(data, f"{name}_energy")
        known = math.isfinite(kwh) and kwh > 0 and not _skipped(hardware)
        components[name] = {
            "kwh": kwh if known else None,
            "source": source if known else "unavailable",
            "method": method,
        }
    return components


def _skipped(hardware: Any) -> bool:
    """Whether one of several counters of the processors could not be read, or ran backwards, and was left out."""
    counters = getattr(getattr(hardware, "_intel_interface", None), "_rapl_files", [])
    return any(counter.sample_skipped for counter in counters)


def _origin(hardware: Any, data: Any) -> tuple[str, str, str]:
    """Component, source and method of one of codecarbon's pieces of hardware."""
    kind = type(hardware).__name__
    if kind == "RAM":
        return "ram", "estimated", f"constant of {data.ram_power:g} W"
    if kind == "GPU":
        return "gpu", "measured", "reported by the GPU"
    if kind == "CPU" and hardware._mode in _COUNTERS:
        return "cpu", "measured", hardware._mode
    if kind == "CPU":
        return "cpu", "estimated", f"{hardware._mode} of {hardware._tdp:g} W"
    return hardware.chip_part.lower(), "measured", kind  # Apple's and the Raspberry's power meters


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

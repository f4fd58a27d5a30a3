"""Energy of a stretch of work, with where each part of the number comes from.

The number is codecarbon's, of the whole machine: processors and memory with everything that runs on them, and the
visible GPUs. Without a counter in the hardware it is an estimate from rated power and load; ``provenance`` says which,
per component. Windows that overlap in time count the same energy twice.
"""

import logging
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from suites.environment import package_version

WORLD_G_PER_KWH = 475.0
"""World average of 2018, gCO2e/kWh; also what codecarbon uses where it knows no country."""

WORLD_SOURCE = "world average of 2018, IEA Global Energy & CO2 Status Report 2019"

MIN_WINDOW_S = 1.0
"""Counters step and loads are sampled many times in a second; a shorter window would report chance."""

_NAMES = ("cpu", "gpu", "ram")
_COUNTERS = ("intel_rapl", "windows_emi", "intel_power_gadget")


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
        intensity_g_per_kwh: carbon intensity of the electricity, gCO2e/kWh. It is stated, never looked up by location.
        intensity_source: where that number comes from.

    Raises:
        ValueError: if the intensity is negative.
    """

    def __init__(self, *, intensity_g_per_kwh: float = WORLD_G_PER_KWH, intensity_source: str = WORLD_SOURCE) -> None:
        if intensity_g_per_kwh < 0:
            raise ValueError(f"intensity_g_per_kwh must not be negative, not {intensity_g_per_kwh}")
        self._intensity = {"intensity_g_per_kwh": intensity_g_per_kwh, "intensity_source": intensity_source}
        self.energy = self._result({}, 0.0, "the block has not ended")

    def __enter__(self) -> Self:
        self._log = _Log()
        self._tracker: Any = None
        logging.getLogger("codecarbon").addFilter(self._log)
        try:
            self._tracker = _new_tracker()
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
                components = _components(self._tracker)
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
            "scope": "whole machine, visible GPUs",
            "tracker": f"codecarbon {package_version('codecarbon')}",
            **self._intensity,
            "reason": reason,
        }
        return Energy(None if reason else sum(part["kwh"] for part in found.values()), seconds, provenance)


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


def _new_tracker() -> Any:
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
        force_carbon_intensity_g_co2e_kwh=WORLD_G_PER_KWH,  # spares it the tables of countries; its CO2 is not used
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


def _components(tracker: Any) -> dict[str, dict[str, Any]]:
    """Energy, source and method by component, of a tracker that was stopped."""
    data = tracker.final_emissions_data
    components = dict.fromkeys(_NAMES, _UNAVAILABLE)
    for hardware in tracker._hardware:
        name, source, method = _origin(hardware, data)
        kwh = getattr(data, f"{name}_energy")
        known = kwh > 0
        components[name] = {
            "kwh": kwh if known else None,
            "source": source if known else "unavailable",
            "method": method,
        }
    return components


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

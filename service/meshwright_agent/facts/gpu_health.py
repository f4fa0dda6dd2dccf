"""The health of a card by NVML: errors, temperatures, power, clocks held down, links. Runs in the probe.

Rule: each call may fail by itself and costs one field. A card that does not have something, or a driver that does not
tell it, is None; that the card is lost, or wants a reset, is an answer and the most important one. No event set is
made here: events come only while a handle stays open, which blocks the reset that they call for; see `xid_events`.

Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api), and nvml.h of CUDA 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from meshwright_agent.facts.health import GpuHealth

LOST: Final[Mapping[int, str]] = {
    15: "GPU is lost: it has fallen off the bus or is not accessible",
    16: "the GPU must be reset before it can be used again",
}
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED."""

_RECOVERIES: Final[Mapping[int, str]] = {
    0: "",
    1: "reset the GPU",
    2: "reboot the host",
    3: "end the jobs that use its NVLinks",
    4: "end the jobs that use its NVLinks, then reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
"""NVML_GPU_RECOVERY_ACTION_…: what the driver asks for; it is what XID 154 tells."""

POWER_BRAKE: Final = "hardware power brake"
_SLOWDOWNS: Final = (
    (0x40, "hardware thermal slowdown"),
    (0x80, POWER_BRAKE),
    (0x20, "software thermal slowdown"),
)
_HARDWARE_SLOWDOWN: Final = 0x08
"""nvmlClocksEventReason…: those that are no way to work. The power cap (0x04) is how a loaded card works."""

_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
_GPU_SENSOR, _SHUTDOWN, _SLOWDOWN = 0, 0, 1
_RECOVERY_FIELD: Final = 230
_SHUTDOWN_MARGIN_FIELD, _SLOWDOWN_MARGIN_FIELD = 193, 194
"""NVML_FI_DEV_TEMPERATURE_…_TLIMIT, as `nvidia-smi` calls them: what Ada and later have in place of thresholds, which
their drivers no longer promise to tell. An H100's slowdown is at −2 °C of margin (NVIDIA/NVSentinel#1371)."""
_LINK_COUNTERS: Final[Mapping[str, int]] = {"replay": 0, "recovery": 1, "crc": 2}
"""NVML_NVLINK_ERROR_DL_REPLAY, …_RECOVERY, …_CRC_FLIT."""


class GpuHealthReader:
    """Reads one card, between nvmlInit and nvmlShutdown.

    Args:
        nvml: the module `pynvml`, or what behaves like it.
        handle: of the card.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._error: str | None = None

    def _ask(self, function: str, *args: Any) -> Any:
        """Returns what NVML answers; None if it cannot. A card that is lost is not asked again: each call may wait."""
        if self._error is not None:
            return None
        try:
            return getattr(self._nvml, function)(self._handle, *args)
        except self._nvml.NVMLError as error:
            self._error = LOST.get(error.value)
        except AttributeError:  # a release of nvidia-ml-py that does not have it
            pass
        return None

    def read(self, *, is_computing: bool) -> GpuHealth:
        """Returns what the driver says now.

        Args:
            is_computing: a process computes on the card.
        """
        remapped = self._ask("nvmlDeviceGetRemappedRows")
        pending = self._ask("nvmlDeviceGetRetiredPagesPendingStatus") if remapped is None else None
        active, errors = self._read_links()
        values: dict[str, Any] = {
            "recovery": self._read_recovery(),
            "temperature_celsius": self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
            "slowdown_celsius": self._ask("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
            "shutdown_celsius": self._ask("nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
            "margin_celsius": self._ask("nvmlDeviceGetMarginTemperature"),
            "slowdown_margin_celsius": self._read_field(_SLOWDOWN_MARGIN_FIELD),
            "shutdown_margin_celsius": self._read_field(_SHUTDOWN_MARGIN_FIELD),
            "slowdowns": parse_slowdowns(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")),
            "power_limit_watts": _to_watts(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            "power_default_watts": _to_watts(self._ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            "uncorrectable_count": self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            "uncorrectable_lifetime_count": self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE),
            "remap_pending": None if remapped is None else bool(remapped[2]),
            "remap_failed": None if remapped is None else bool(remapped[3]),
            "retirement_pending": None if pending is None else bool(pending),
            "pcie_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_most_width": self._ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "pcie_generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_most_generation": self._ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "performance_state": self._ask("nvmlDeviceGetPerformanceState"),
        }
        known: dict[str, Any] = {
            "error": self._error,
            "is_computing": is_computing,
            "nvlinks_active": active,
            "nvlink_errors": errors,
        }
        return GpuHealth(**known, **values)

    def _read_recovery(self) -> str | None:
        action = self._read_field(_RECOVERY_FIELD)
        return None if action is None else _RECOVERIES.get(action, "see NVIDIA's documentation of the recovery action")

    def _read_field(self, number: int) -> int | None:
        """Returns a field of 32 bits, with its sign; a driver that does not know the field says so in its reply."""
        values = self._ask("nvmlDeviceGetFieldValues", [number])
        return ctypes.c_int32(values[0].value.uiVal).value if values and values[0].nvmlReturn == 0 else None

    def _read_links(self) -> tuple[int | None, dict[str, int]]:
        """Returns the number of active NVLinks, None without any, and what each counter counts on all of them."""
        states = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", link)
            if state is None:
                break
            states.append(bool(state))
        active = [link for link, state in enumerate(states) if state]
        counted = {name: self._count(counter, active) for name, counter in _LINK_COUNTERS.items()}
        return len(active) if states else None, {name: count for name, count in counted.items() if count is not None}

    def _count(self, counter: int, links: list[int]) -> int | None:
        total = None
        for link in links:
            count = self._ask("nvmlDeviceGetNvLinkErrorCounter", link, counter)
            if count is None:
                return None
            total = (total or 0) + int(count)
        return total


def _to_watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def parse_slowdowns(mask: int | None) -> tuple[str, ...] | None:
    """Returns why clocks are held down, of NVML's mask; the hardware's general word only where it says no cause."""
    if mask is None:
        return None
    causes = tuple(name for bit, name in _SLOWDOWNS if mask & bit)
    return causes if causes or not mask & _HARDWARE_SLOWDOWN else ("hardware slowdown",)

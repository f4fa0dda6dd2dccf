"""The health of a card by NVML: errors, temperatures, power, clocks held down, links. Runs in the probe.

Rule: each question may fail by itself and costs one field. A field is None where NVML did not answer; `answers` has the
reason. That the card is lost, or wants a reset, is an answer and the most important one. No event set is made here:
events come only while a handle stays open, which blocks the reset that they call for; see `xid_events`.

Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api), and nvml.h of CUDA 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meshwright_agent.facts.health import GpuHealth
from meshwright_agent.facts.nvml_questions import ANSWERED, Questions

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
_OTHER_RECOVERY: Final = "see NVIDIA's documentation of the recovery action"

POWER_BRAKE: Final = "hardware power brake"
_SLOWDOWNS: Final = (
    (0x40, "hardware thermal slowdown"),
    (0x80, POWER_BRAKE),
    (0x20, "software thermal slowdown"),
)
_HARDWARE_SLOWDOWN: Final = 0x08
"""nvmlClocksEventReason…: those that are no way to work. The power cap (0x04) is how a loaded card works."""

_LINK_COUNTERS: Final[Mapping[str, int]] = {"replay": 0, "recovery": 1, "crc": 2}
"""NVML_NVLINK_ERROR_DL_REPLAY, …_RECOVERY, …_CRC_FLIT."""
_PLAIN: Final = (
    "temperature_celsius",
    "slowdown_celsius",
    "shutdown_celsius",
    "margin_celsius",
    "slowdown_margin_celsius",
    "shutdown_margin_celsius",
    "uncorrectable_count",
    "uncorrectable_lifetime_count",
    "pcie_width",
    "pcie_most_width",
    "pcie_generation",
    "pcie_most_generation",
    "performance_state",
)
"""Fields that are answers as they come."""


def read_gpu_health(questions: Questions, handle: Any, *, is_computing: bool) -> GpuHealth:
    """Returns what the driver says now of one card, between nvmlInit and nvmlShutdown.

    Args:
        questions: those of this card.
        handle: of the card.
        is_computing: a process computes on the card.
    """

    def ask(name: str) -> Any:
        return questions.ask_health(name, handle)

    action = ask("recovery")
    remapped = ask("remapped_rows")
    pending = ask("retirement_pending") if remapped is None else None
    active, errors = _read_links(questions, handle)
    values: dict[str, Any] = {
        "recovery": None if action is None else _RECOVERIES.get(action, _OTHER_RECOVERY),
        "slowdowns": parse_slowdowns(ask("slowdowns")),
        "power_limit_watts": _to_watts(ask("power_limit_watts")),
        "power_default_watts": _to_watts(ask("power_default_watts")),
        "remap_pending": None if remapped is None else bool(remapped[2]),
        "remap_failed": None if remapped is None else bool(remapped[3]),
        "retirement_pending": None if pending is None else bool(pending),
        "is_computing": is_computing,
        "nvlinks_active": active,
        "nvlink_errors": errors,
    }
    plain = {name: ask(name) for name in _PLAIN}
    return GpuHealth(**plain, **values)


def _read_links(questions: Questions, handle: Any) -> tuple[int | None, dict[str, int]]:
    """Returns the number of active NVLinks, None without any, and what each counter counts on all of them."""
    states = []
    for link in range(questions.nvml.NVML_NVLINK_MAX_LINKS):
        state = questions.ask_health("nvlink_state", handle, link, is_end=link > 0)
        if state is None:
            break
        states.append(bool(state))
    if not states or questions.answers["nvlink_state"] != ANSWERED:
        return None, {}
    active = [link for link, state in enumerate(states) if state]
    counted = {name: _count(questions, handle, counter, active) for name, counter in _LINK_COUNTERS.items()}
    return len(active), {name: count for name, count in counted.items() if count is not None}


def _count(questions: Questions, handle: Any, counter: int, links: list[int]) -> int | None:
    counts = [questions.ask_health("nvlink_errors", handle, link, counter) for link in links]
    return sum(counts) if counts and None not in counts else None


def _to_watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def parse_slowdowns(mask: int | None) -> tuple[str, ...] | None:
    """Returns why clocks are held down, of NVML's mask; the hardware's general word only where it says no cause."""
    if mask is None:
        return None
    causes = tuple(name for bit, name in _SLOWDOWNS if mask & bit)
    return causes if causes or not mask & _HARDWARE_SLOWDOWN else ("hardware slowdown",)

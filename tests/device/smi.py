"""What `nvidia-smi -q -x` says of the cards: the word that the agent's own is held against.

Rule: `read_smi` asks, `parse_smi` is pure; what the card does not have ("N/A") is None. Sizes in bytes, from MiB.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from meshwright_agent.facts.sysfs import parse_pci_address

LIMIT_S: Final = 30.0
MIB: Final = 2**20

_MODES: Final = {"Default": "default", "Exclusive_Process": "exclusive_process", "Prohibited": "prohibited"}
_SLOWDOWNS: Final = {
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
    "sw_thermal_slowdown": "software thermal slowdown",
}
"""nvidia-smi's word → the agent's."""


@dataclass(frozen=True)
class SmiCard:
    """One card. `compute_pids`: processes with a context on it; `uncorrectable_count`: ECC, since the driver's load."""

    uuid: str
    kind: str
    pci_bus_id: str
    driver: str | None
    cuda: str | None
    memory_bytes: int | None
    used_bytes: int | None
    compute_mode: str | None
    mig: bool | None
    uncorrectable_count: int | None
    temperature_celsius: int | None
    pcie_width: int | None
    slowdowns: tuple[str, ...] | None
    compute_pids: tuple[int, ...]
    compute_capability: str | None = None


def read_smi() -> tuple[SmiCard, ...]:
    """Returns the cards of this host.

    Raises:
        OSError, subprocess.SubprocessError: nvidia-smi is not here, fails, or does not answer in time.
    """
    text = _ask("-q", "-x")
    lines = _ask("--query-gpu=uuid,compute_cap", "--format=csv,noheader").splitlines()
    return parse_smi(text, dict(_pair(line) for line in lines))


def _pair(line: str) -> tuple[str, str]:
    uuid, _, capability = line.partition(",")
    return uuid.strip(), capability.strip()


def _ask(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


def parse_smi(text: str, capabilities: dict[str, str] | None = None) -> tuple[SmiCard, ...]:
    """Returns the cards of a text of `nvidia-smi -q -x`.

    Args:
        text: of nvsmi_device_v12.dtd or v13.
        capabilities: by uuid: `-q -x` does not tell them.

    Raises:
        ElementTree.ParseError: no XML.
    """
    log = ElementTree.fromstring(text)
    driver, cuda = _word(log, "driver_version"), _word(log, "cuda_version")
    return tuple(_parse_card(gpu, driver, cuda, capabilities or {}) for gpu in log.findall("gpu"))


def _parse_card(gpu: ElementTree.Element, driver: str | None, cuda: str | None, known: dict[str, str]) -> SmiCard:
    uuid = _word(gpu, "uuid") or ""
    errors = gpu.find("ecc_errors/volatile")
    counts = [] if errors is None else [_number(errors, one.tag) for one in errors if "uncorrectable" in one.tag]
    processes = gpu.findall("processes/process_info")
    counted = [int(count) for count in counts if count is not None]
    return SmiCard(
        uuid=uuid,
        kind=_word(gpu, "product_name") or "",
        pci_bus_id=parse_pci_address(_word(gpu, "pci/pci_bus_id") or ""),
        driver=driver,
        cuda=cuda,
        memory_bytes=_scaled(gpu, "fb_memory_usage/total", MIB),
        used_bytes=_scaled(gpu, "fb_memory_usage/used", MIB),
        compute_mode=_MODES.get(_word(gpu, "compute_mode") or ""),
        mig=_switch(gpu, "mig_mode/current_mig"),
        uncorrectable_count=sum(counted) if counted else None,
        temperature_celsius=_scaled(gpu, "temperature/gpu_temp", 1),
        pcie_width=_scaled(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width", 1),
        slowdowns=_parse_slowdowns(gpu),
        compute_pids=tuple(int(_number(one, "pid") or 0) for one in processes if "C" in (_word(one, "type") or "")),
        compute_capability=known.get(uuid),
    )


def _parse_slowdowns(gpu: ElementTree.Element) -> tuple[str, ...] | None:
    for name, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        found = gpu.find(name)
        if found is not None:
            return tuple(word for key, word in _SLOWDOWNS.items() if _word(found, prefix + key) == "Active")
    return None


def _word(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return text if text and text != "N/A" else None


def _number(element: ElementTree.Element, path: str) -> float | None:
    """Returns 24 of "24 C", 16 of "16x"; None of words."""
    word = (_word(element, path) or "").split(" ")[0].removesuffix("x")
    try:
        return float(word)
    except ValueError:
        return None


def _scaled(element: ElementTree.Element, path: str, unit: int) -> int | None:
    number = _number(element, path)
    return None if number is None else round(number * unit)


def _switch(element: ElementTree.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_word(element, path) or "")

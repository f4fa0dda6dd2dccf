"""The PCI bus on its devices' health, by sysfs: widths of links, and errors that the kernel's AER driver counted.

Rule: no device is touched: sysfs answers from the kernel's memory and the bridge above. What is not there is None.
Runs in the probe.

Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer (kernel.org).
"""

from __future__ import annotations

from pathlib import Path

from meshwright_agent.facts.health import PciHealth
from meshwright_agent.facts.sysfs import parse_int, read_int, read_text


def read_pci_health(path: Path) -> PciHealth | None:
    """Returns what sysfs says of a PCI function's health; None where it says nothing.

    Args:
        path: its folder below /sys/bus/pci/devices.
    """
    health = PciHealth(
        width=_read_width(path / "current_link_width"),
        most_width=_read_most_width(path),
        fatal_count=parse_aer_total(read_text(path / "aer_dev_fatal")),
        nonfatal_count=parse_aer_total(read_text(path / "aer_dev_nonfatal")),
    )
    return None if health == PciHealth() else health


def _read_most_width(path: Path) -> int | None:
    """Returns the lanes that device and slot both have: a wide card in a narrow slot is no fault."""
    try:
        slot = path.resolve(strict=True).parent
    except OSError:
        return None
    own, above = (_read_width(folder / "max_link_width") for folder in (path, slot))
    return own if above is None or own is None else min(own, above)


def _read_width(path: Path) -> int | None:
    """Returns a number of lanes; None for 0 and 255, with which virtual and vanished devices answer."""
    width = read_int(path)
    return None if width is None or not 0 < width < 255 else width


def parse_aer_total(text: str | None) -> int | None:
    """Returns the total of an AER file, its line "TOTAL_ERR_FATAL 2"; None where there is none."""
    for line in reversed((text or "").splitlines()):
        name, _, number = line.strip().rpartition(" ")
        if name.startswith("TOTAL_ERR_"):
            return parse_int(number)
    return None

"""The kernel's files: where they are, and the few formats that all of them share.

Rule: `read_` does I/O below the given roots and answers None for what is not there; `parse_` is pure. Nothing
here opens a device file. Knows nothing of what a device is for.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from meshwright_agent.facts.model import NumaFacts

_LARGEST_CPU: Final = 1 << 16
"""No kernel numbers more CPUs: CONFIG_NR_CPUS is at most 8,192."""


@dataclass(frozen=True)
class Roots:
    """Where a host's files are, so that a recorded machine, or one seen from a container, reads the same way.

    `machine` is what uname says, for kernels that do not tell it in /proc (before 6.1).
    """

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")
    environ: Mapping[str, str] = field(default_factory=dict)
    machine: str = field(default_factory=platform.machine)


@dataclass(frozen=True)
class PciDevice:
    """One function on the PCI bus. Ids as sysfs writes them: vendor "0x10de", class "0x030200"."""

    address: str
    vendor: str
    device: str
    kind: str
    path: Path


def read_text(path: Path) -> str | None:
    """Returns a file's text without white space around it; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \t\r\n")
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Returns the decimal number in a file; None where it cannot be read or is none."""
    return parse_int(read_text(path))


def parse_int(text: str | None) -> int | None:
    """Returns a decimal number; None for anything else."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_fields(text: str) -> dict[str, str]:
    """Returns the "name: value" lines of a text such as /proc/meminfo; of a doubled name, the first."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def parse_kib(text: str | None) -> int | None:
    """Returns bytes of "16331752 kB", which means KiB; None for anything else."""
    words = (text or "").split()
    number = parse_int(words[0]) if len(words) == 2 and words[1] == "kB" else None
    return None if number is None or number < 0 else number * 1024


def parse_cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers in a kernel list such as "0-3,8"; those of an entry that is none are left out.

    Source: Documentation/admin-guide/cputopology.rst.
    """
    return frozenset(number for entry in text.split(",") for number in _parse_range(entry))


def _parse_range(entry: str) -> Iterable[int]:
    first, dash, last = entry.strip().partition("-")
    low, high = parse_int(first), parse_int(last if dash else first)
    return () if low is None or high is None or not 0 <= low <= high < _LARGEST_CPU else range(low, high + 1)


def parse_pci_address(text: str) -> str:
    """Returns a PCI address as sysfs writes it: "00000000:1B:00.0" (NVML) → "0000:1b:00.0"."""
    domain, _, rest = text.strip().lower().partition(":")
    short = f"{int(domain, 16):04x}" if domain and set(domain) <= set("0123456789abcdef") else domain
    return f"{short}:{rest}"


def read_pci_devices(sysfs: Path, vendor: str) -> tuple[PciDevice, ...]:
    """Returns a vendor's PCI functions, in the order of their addresses."""
    return tuple(device for device in _read_all_pci_devices(sysfs) if device.vendor == vendor)


def _read_all_pci_devices(sysfs: Path) -> Iterator[PciDevice]:
    for path in list_folder(sysfs / "bus/pci/devices"):
        vendor, device, kind = (read_text(path / name) for name in ("vendor", "device", "class"))
        if vendor and device:
            yield PciDevice(path.name, vendor, device, kind or "", path)


def read_numa_node(path: Path) -> int | None:
    """Returns the NUMA node of a PCI device's folder; None where the firmware told none (the kernel's −1)."""
    node = read_int(path / "numa_node")
    return None if node is None or node < 0 else node


def read_pcie_root(path: Path) -> str | None:
    """Returns the PCIe root complex above a device, "pci0000:17", as DRA drivers name it; None: not known."""
    try:
        parts = path.resolve(strict=True).parts
    except OSError:
        return None
    return next((part for part in reversed(parts) if part.startswith("pci") and ":" in part), None)


def read_numa_nodes(sysfs: Path) -> tuple[NumaFacts, ...]:
    """Returns the NUMA nodes, by number; none where the kernel knows none."""
    folder = sysfs / "devices/system/node"
    names = (path.name.removeprefix("node") for path in list_folder(folder) if path.name.startswith("node"))
    numbers = sorted(number for name in names if (number := parse_int(name)) is not None)
    return tuple(_read_node(number, folder / f"node{number}") for number in numbers)


def _read_node(node: int, path: Path) -> NumaFacts:
    total = parse_fields(read_text(path / "meminfo") or "").get(f"Node {node} MemTotal")
    return NumaFacts(
        node=node,
        cpus=read_text(path / "cpulist") or "",
        memory_bytes=parse_kib(total),
        distances=parse_distances(read_text(path / "distance")),
    )


def parse_distances(text: str | None) -> tuple[int, ...] | None:
    """Returns a node's distances, "10 21" → (10, 21); None where the text is none.

    Source: Documentation/ABI/stable/sysfs-devices-node.
    """
    distances = [parse_int(word) for word in (text or "").split()]
    known = tuple(distance for distance in distances if distance is not None and distance > 0)
    return known if known and len(known) == len(distances) else None


def list_folder(path: Path) -> list[Path]:
    """Returns what is in a folder, by name; nothing where it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []

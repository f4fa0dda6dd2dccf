"""Facts from /sys: PCI devices, NUMA nodes, link widths, AER error counters, and NVIDIA cards that NVML does not list.

`read_` functions do I/O below the given roots and return None for a missing file; `parse_` functions are pure. No
device is opened or woken. A card counts as refused only if its device file exists and access(2) lets this process open
it: a container or Slurm job sees all cards in sysfs, but may use only some. Cards of another driver (vfio-pci) and
virtual functions are ignored.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer, fs/namei.c (inode_permission);
NVIDIA, README of the driver (/proc/driver/nvidia/gpus/<address>/information).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from meshwright.topology.chips import DISPLAY_CLASS, NVIDIA
from meshwright_agent.facts.model import NumaFacts, PciHealth, ProblemKind, RefusedCard

_PCIE_ROOT: Final = re.compile("pci.*:")
_LARGEST_CPU: Final = 1 << 16
"""Above the CPU numbers of any kernel: CONFIG_NR_CPUS is at most 8,192."""


def may_open(file: Path) -> bool:
    """Returns whether this process may read and write a device, without opening it."""
    return os.access(file, os.R_OK | os.W_OK)


@dataclass(frozen=True)
class Roots:
    """Roots of a host's files, so that recorded machines and hosts seen from a container are read the same way.

    `machine` is the value of uname, for kernels that do not report it in /proc (before 6.1). `is_container`: this
    process is in a container; NVML uses the container's own /dev.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=dict)
    machine: str = field(default_factory=platform.machine)
    is_container: bool = False
    may_open: Callable[[Path], bool] = may_open

    @property
    def sysfs(self) -> Path:
        """The root of the kernel's device facts."""
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        """The root of the kernel's process facts."""
        return self.root / "proc"

    @property
    def dev(self) -> Path:
        """The root of device files."""
        return self.root / "dev"


@dataclass(frozen=True)
class PciDevice:
    """One function on the PCI bus. Ids in the form of sysfs: device "0x2330", class "0x030200"."""

    address: str
    device: str
    kind: str
    path: Path


def read_text(path: Path) -> str | None:
    """Returns a file's text without surrounding white space; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \t\r\n")
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Returns the decimal number in a file; None if it cannot be read or is not a number."""
    return parse_int(read_text(path))


def parse_int(text: str | None) -> int | None:
    """Returns a decimal number; None for anything else."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_fields(text: str) -> dict[str, str]:
    """Returns the "name: value" lines of a text such as /proc/meminfo. Of duplicates, the first counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def parse_kib(text: str | None) -> int | None:
    """Returns the bytes of "16331752 kB", which means KiB; None for anything else."""
    words = (text or "").split()
    number = parse_int(words[0]) if len(words) == 2 and words[1] == "kB" else None
    return None if number is None or number < 0 else number * 1024


def parse_cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers in a kernel list such as "0-3,8", without invalid entries.

    Source: Documentation/admin-guide/cputopology.rst.
    """
    return frozenset(number for entry in text.split(",") for number in _parse_range(entry))


def _parse_range(entry: str) -> Iterable[int]:
    first, dash, last = entry.strip().partition("-")
    low, high = parse_int(first), parse_int(last if dash else first)
    return () if low is None or high is None or not 0 <= low <= high < _LARGEST_CPU else range(low, high + 1)


def parse_pci_address(text: str) -> str:
    """Returns a PCI address in the form of sysfs: "00000000:1B:00.0" (NVML) → "0000:1b:00.0"."""
    domain, _, rest = text.strip().lower().partition(":")
    short = f"{int(domain, 16):04x}" if domain and set(domain) <= set("0123456789abcdef") else domain
    return f"{short}:{rest}"


def read_pci_devices(sysfs: Path, vendor: str) -> tuple[PciDevice, ...]:
    """Returns a vendor's PCI functions, in the order of their addresses."""
    found = []
    for path in list_folder(sysfs / "bus/pci/devices"):
        device, kind = (read_text(path / name) for name in ("device", "class"))
        if device and read_text(path / "vendor") == vendor:
            found.append(PciDevice(path.name, device, kind or "", path))
    return tuple(found)


def read_numa_node(path: Path) -> int | None:
    """Returns the NUMA node of a PCI device's folder; None if the firmware did not report one (the kernel's −1)."""
    node = read_int(path / "numa_node")
    return None if node is None or node < 0 else node


def read_pci_path(path: Path) -> tuple[str, ...]:
    """Returns the way to a PCI function from its root complex: ("pci0000:15", "0000:15:01.0", …); empty: unknown."""
    try:
        parts = path.resolve(strict=True).parts
    except OSError:
        return ()
    start = next((index for index, part in enumerate(parts) if _PCIE_ROOT.match(part)), len(parts))
    return parts[start:]


def read_pcie_root(path: Path) -> str | None:
    """Returns the PCIe root complex above a device, "pci0000:17", as DRA drivers name it; None: unknown."""
    return next((part for part in reversed(read_pci_path(path)) if _PCIE_ROOT.match(part)), None)


def read_numa_nodes(sysfs: Path) -> tuple[NumaFacts, ...]:
    """Returns the NUMA nodes, by number; empty if the kernel does not report any."""
    folder = sysfs / "devices/system/node"
    names = (path.name.removeprefix("node") for path in list_folder(folder) if path.name.startswith("node"))
    numbers = sorted(number for name in names if (number := parse_int(name)) is not None)
    return tuple(NumaFacts(number, read_text(folder / f"node{number}" / "cpulist") or "") for number in numbers)


def read_link(path: Path) -> Path | None:
    """Returns the target of a link; None if the link does not exist or cannot be read."""
    try:
        return path.readlink()
    except OSError:
        return None


def list_folder(path: Path) -> list[Path]:
    """Returns the entries of a folder, by name; empty if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def read_pci_health(path: Path) -> PciHealth | None:
    """Returns sysfs' report on a PCI function's health; None without a report.

    Args:
        path: the function's folder below /sys/bus/pci/devices.
    """
    health = PciHealth(
        width=_read_width(path / "current_link_width"),
        most_width=_read_most_width(path),
        fatal_count=parse_aer_total(read_text(path / "aer_dev_fatal")),
        nonfatal_count=parse_aer_total(read_text(path / "aer_dev_nonfatal")),
    )
    return None if health == PciHealth() else health


def _read_most_width(path: Path) -> int | None:
    """Returns the lanes that device and slot both have, because a wide card in a narrow slot is not a fault."""
    try:
        slot = path.resolve(strict=True).parent
    except OSError:
        return None
    own, above = (_read_width(folder / "max_link_width") for folder in (path, slot))
    return own if above is None or own is None else min(own, above)


def _read_width(path: Path) -> int | None:
    """Returns a number of lanes; None for 0 and 255, which virtual and vanished devices report."""
    width = read_int(path)
    return None if width is None or not 0 < width < 255 else width


def parse_aer_total(text: str | None) -> int | None:
    """Returns the total of an AER file, from its line "TOTAL_ERR_FATAL 2"; None without the line."""
    for line in reversed((text or "").splitlines()):
        name, _, number = line.strip().rpartition(" ")
        if name.startswith("TOTAL_ERR_"):
            return parse_int(number)
    return None


_DRIVER: Final = "nvidia"
_COMPUTE_CLASS: Final = "0x0302"
"""3D controllers: cards without a display, for computation."""
_DEVICE_FILE: Final = re.compile(r"nvidia\d+")
_NO_PERMISSION, _LIBRARY_NOT_FOUND, _LIBRARY_MISMATCH = 4, 12, 18
"""NVML_ERROR_NO_PERMISSION, …_LIBRARY_NOT_FOUND, …_LIB_RM_VERSION_MISMATCH."""


@dataclass(frozen=True)
class BusCard:
    """A card that no other driver has. `driver`: None without a driver. `minor`: N of /dev/nvidiaN, by the driver."""

    address: str
    kind: str
    driver: str | None
    minor: int | None

    @property
    def computes(self) -> bool:
        """True if the driver has the card, or its class is compute only. A display card is not an accelerator."""
        return self.driver is not None or self.kind.startswith(_COMPUTE_CLASS)


def read_bus(here: Roots) -> tuple[BusCard, ...]:
    """Returns NVIDIA's cards that no other driver has, in the order of their addresses."""
    cards = []
    for device in read_pci_devices(here.sysfs, NVIDIA):
        link = read_link(device.path / "driver")
        driver = link.name if link else None
        if not device.kind.startswith(DISPLAY_CLASS) or driver not in (None, _DRIVER):
            continue
        if (device.path / "physfn").exists():
            continue
        fields = parse_fields(read_text(here.proc / f"driver/nvidia/gpus/{device.address}/information") or "")
        cards.append(BusCard(device.address, device.kind, driver, parse_int(fields.get("Device Minor"))))
    return tuple(cards)


def list_card_files(here: Roots) -> list[Path]:
    """Returns the device files of NVIDIA's cards."""
    return [file for file in list_folder(here.dev) if _DEVICE_FILE.fullmatch(file.name)]


def classify_silence(cards: Iterable[BusCard], here: Roots, error: int) -> ProblemKind:
    """Returns the cause when NVML does not list any card."""
    accelerators = [card for card in cards if card.computes]
    if not accelerators or error == _NO_PERMISSION:
        return "unreadable"
    if not (any(card.driver for card in accelerators) or (here.sysfs / "module" / _DRIVER).exists()):
        return "driver_down"  # sysfs lists the machine's modules, in containers too
    if not any(map(here.may_open, list_card_files(here))):
        return "unreadable"
    if here.is_container and error in (_LIBRARY_NOT_FOUND, _LIBRARY_MISMATCH):
        return "unreadable"  # the library is the container's
    return "driver_down"


def find_refused(
    cards: Sequence[BusCard], listed: Iterable[str | None], refusals: Sequence[tuple[int, str]], here: Roots
) -> tuple[RefusedCard, ...]:
    """Returns the cards on this host that the driver does not let any process use.

    Args:
        listed: addresses of the cards with an NVML handle. If one address is unknown, any card may be that one.
        refusals: (index, reason) of cards that NVML counts and that cannot be read. This is always a fault, because
            NVML does not count cards that are hidden from a container or job.
    """
    known = set(listed)
    absent = [card for card in cards if card.driver and card.address not in known] if None not in known else []
    if refusals:  # NVML counts in the order of addresses
        addresses = [card.address for card in absent] if len(absent) == len(refusals) else [None] * len(refusals)
        return tuple(
            RefusedCard(address, index, reason) for address, (index, reason) in zip(addresses, refusals, strict=True)
        )
    if here.is_container and here.dev != Path("/dev"):
        return ()
    reason = "the bus has it and its device file is here, but NVML gives no handle for it"
    return tuple(RefusedCard(card.address, None, reason) for card in absent if _is_openable(card, here))


def _is_openable(card: BusCard, here: Roots) -> bool:
    file = here.dev / f"nvidia{card.minor}"
    return card.minor is not None and file.exists() and here.may_open(file)

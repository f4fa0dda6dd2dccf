"""NVIDIA's cards on the PCI bus, beside what NVML says of them: whose they are, and whether this process may open them.

Rule: nothing is opened, and nobody is accused whose card may only be hidden. A container or a Slurm job sees all cards
in sysfs and is given some: NVML lists those alone. So a card counts as left out only where its device file is here and
access(2), which asks the device cgroup as open(2) would, lets this process have it. A card that another driver has
(vfio-pci passes it on to a virtual machine) is none of ours, nor is a virtual function.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci (driver, physfn) and fs/namei.c (inode_permission); NVIDIA,
README of the driver (/proc/driver/nvidia/gpus/<address>/information).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshwright.topology.pci import DISPLAY_CLASS, NVIDIA
from meshwright_agent.facts.model import ProblemKind, RefusedCard
from meshwright_agent.facts.sysfs import list_folder, parse_fields, parse_int, read_pci_devices, read_text

_DRIVER: Final = "nvidia"
_COMPUTE_CLASS: Final = "0x0302"
"""3D controllers: cards without a display, which are there to compute."""
_DEVICE_FILE: Final = re.compile(r"nvidia\d+")
_NO_PERMISSION, _LIBRARY_NOT_FOUND, _LIBRARY_MISMATCH = 4, 12, 18
"""NVML_ERROR_NO_PERMISSION, …_LIBRARY_NOT_FOUND, …_LIB_RM_VERSION_MISMATCH."""

MayOpen = Callable[[Path], bool]


def may_open(file: Path) -> bool:
    """Tells whether this process may read and write a device, without opening it."""
    return os.access(file, os.R_OK | os.W_OK)


@dataclass(frozen=True)
class BusCard:
    """A card that is nobody else's. `driver`: None: none has it; `minor`: N of /dev/nvidiaN, as the driver says."""

    address: str
    kind: str
    driver: str | None
    minor: int | None

    @property
    def computes(self) -> bool:
        """True where the driver has it, or it is there for nothing else; a display alone is no accelerator."""
        return self.driver is not None or self.kind.startswith(_COMPUTE_CLASS)


def read_bus(sysfs: Path, proc: Path) -> tuple[BusCard, ...]:
    """Returns NVIDIA's cards that no other driver has, in the order of their addresses."""
    cards = []
    for device in read_pci_devices(sysfs, NVIDIA):
        driver = _read_driver(device.path)
        if not device.kind.startswith(DISPLAY_CLASS) or driver not in (None, _DRIVER):
            continue
        if (device.path / "physfn").exists():
            continue
        said = parse_fields(read_text(proc / f"driver/nvidia/gpus/{device.address}/information") or "")
        cards.append(BusCard(device.address, device.kind, driver, parse_int(said.get("Device Minor"))))
    return tuple(cards)


def _read_driver(path: Path) -> str | None:
    try:
        return (path / "driver").readlink().name
    except OSError:
        return None


@dataclass(frozen=True)
class BusRoots:
    """Where the cards are looked for. `is_container`: this process is in one, whose own /dev NVML looks into."""

    sysfs: Path
    proc: Path
    dev: Path
    is_container: bool = False
    may_open: MayOpen = may_open


def judge_silence(cards: Iterable[BusCard], here: BusRoots, error: int) -> ProblemKind:
    """Returns what it means that NVML tells of no card at all.

    Args:
        cards: those on the bus.
        here: where they were looked for.
        error: NVML's.
    """
    accelerators = [card for card in cards if card.computes]
    if not accelerators or error == _NO_PERMISSION:
        return "unreadable"
    if not (any(card.driver for card in accelerators) or (here.sysfs / "module" / _DRIVER).exists()):
        return "driver_down"  # sysfs tells of the machine's modules, in containers too
    files = [file for file in list_folder(here.dev) if _DEVICE_FILE.fullmatch(file.name)]
    if not any(map(here.may_open, files)):
        return "unreadable"
    if here.is_container and error in (_LIBRARY_NOT_FOUND, _LIBRARY_MISMATCH):
        return "unreadable"  # the library is the container's
    return "driver_down"


def find_refused(
    cards: Sequence[BusCard], listed: Iterable[str | None], refusals: Sequence[tuple[int, str]], here: BusRoots
) -> tuple[RefusedCard, ...]:
    """Returns the cards that are here and that the driver does not let anybody use.

    Args:
        cards: those on the bus.
        listed: the addresses of those that NVML gives a handle for; with one that is not known, others may be it.
        refusals: (index, reason) of those that NVML counts and that cannot be read, which is a fault wherever this
            runs: what is hidden from a container or a job is not counted.
        here: where they were looked for.
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


def _is_openable(card: BusCard, here: BusRoots) -> bool:
    file = here.dev / f"nvidia{card.minor}"
    return card.minor is not None and file.exists() and here.may_open(file)

"""What drivers and kernel say of the health of devices, as plain values: counters, temperatures, links, XIDs.

Rule: a field is what a source said, or None where it said nothing, which is never the same as well. Knows neither how
anything is read nor what it means for a component. Temperatures in degrees Celsius.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GpuHealth:
    """What NVML says of one card.

    Attributes:
        error: the driver's own word that the card is lost, or must be reset; None: it said neither.
        recovery: what the driver wants done: "GPU reset", …; "" for nothing; None: it does not say.
        temperature_celsius: of the chip; `slowdown_` and `shutdown_celsius` are this card's own limits.
        margin_celsius: how far it is from the limit that its clocks are kept by; `slowdown_` and
            `shutdown_margin_celsius` are the margins, mostly below 0, at which the hardware slows it down and off.
        slowdowns: why the clocks are held down; None: it does not say.
        power_limit_watts: the most that it may draw now, of all limits; `power_default_watts` is as it was delivered.
        uncorrectable_count: ECC errors that could not be corrected, since the driver was loaded or the card reset.
        uncorrectable_lifetime_count: the same since the card was made.
        remap_pending: a memory row will be remapped at the next reset.
        remap_failed: a row could not be remapped: there is no spare left.
        retirement_pending: likewise of memory pages, on cards before Ampere.
        pcie_width, pcie_generation: of the link as it is now; `most_` is what card and slot can.
        performance_state: 0 is the fastest, which a card at work takes.
        is_computing: a process computes on it.
        nvlinks_active: NVLinks that are up; None: it has none, or could not say.
        nvlink_errors: counter → errors of all active links since the driver was loaded.
        answers: required question (`nvml_questions`) → "answered", "absent" (the card has no such thing), or the name
            of the error instead of an answer. A question that was not asked is not there.
    """

    error: str | None = None
    recovery: str | None = None
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None
    shutdown_celsius: int | None = None
    margin_celsius: int | None = None
    slowdown_margin_celsius: int | None = None
    shutdown_margin_celsius: int | None = None
    slowdowns: tuple[str, ...] | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    uncorrectable_count: int | None = None
    uncorrectable_lifetime_count: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    pcie_width: int | None = None
    pcie_most_width: int | None = None
    pcie_generation: int | None = None
    pcie_most_generation: int | None = None
    performance_state: int | None = None
    is_computing: bool = False
    nvlinks_active: int | None = None
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PciHealth:
    """What sysfs says of one PCI function.

    Attributes:
        width: lanes of the link as it is now; `most_width` is what the device and its slot both can.
        fatal_count, nonfatal_count: uncorrectable errors that the kernel's AER driver has counted since boot.
    """

    width: int | None = None
    most_width: int | None = None
    fatal_count: int | None = None
    nonfatal_count: int | None = None


@dataclass(frozen=True)
class Xid:
    """One XID: a line of the kernel log.

    Attributes:
        pci_bus_id: of the card, as sysfs writes it.
        sequence: the record's number in the kernel log, which counts from boot.
        age_s: how long ago it was written.
        text: what the driver says after the number, without process id and name.
    """

    code: int
    pci_bus_id: str
    sequence: int
    age_s: float = 0.0
    text: str = ""
    pid: int | None = None
    process: str | None = None


@dataclass(frozen=True)
class SXid:
    """One SXID line of the kernel log: what the driver of an NVSwitch says. Fields as of `Xid`.

    Attributes:
        is_fatal: the driver's own word.
        link: the NVLink of the switch that it is about; None: none, or all.
    """

    code: int
    pci_bus_id: str
    sequence: int
    is_fatal: bool
    age_s: float = 0.0
    text: str = ""
    link: int | None = None


@dataclass(frozen=True)
class CardFailure:
    """A line of the kernel log by which NVIDIA's driver says without an XID that a card cannot be used.

    Other fields as of `Xid`.

    Attributes:
        pci_bus_id: None: the line does not name the card.
    """

    code: Literal["fallen_off_the_bus", "init_failed"]
    pci_bus_id: str | None
    sequence: int
    age_s: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class KernelLog:
    """What was read of the kernel log.

    Attributes:
        xids, sxids, failures: those after the record that was asked for, oldest first.
        last_sequence: of the newest record that was looked at; None: there was none.
        error: why it could not be read; None: it was.
        is_wanted: false: it was not to be read.
        lost_count: records after the one that was asked for that the log had overwritten before they were read.
    """

    xids: tuple[Xid, ...] = ()
    last_sequence: int | None = None
    error: str | None = None
    sxids: tuple[SXid, ...] = ()
    lost_count: int = 0
    failures: tuple[CardFailure, ...] = ()
    is_wanted: bool = True

"""What must be remembered of a host's health through restarts of the agent: faults, devices, counters, a log's place.

Rule: a fault stands until the host is booted anew or an operator says that it is dealt with; a restart of the agent
changes neither. Values only: what is kept here is written by `history`, and judged by `verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshwright.wire.health import State

CONFIRMED_LOOKS: Final = 3
"""After so many looks, or a restart of the agent, a device that was seen is one that belongs here."""


@dataclass(frozen=True)
class Fault:
    """Something reported of a component that does not pass by itself.

    Attributes:
        code: "xid_79".
        at: when it was reported last.
        count: how often.
    """

    component: str
    code: str
    state: State
    reason: str
    action: str
    at: datetime
    count: int = 1


@dataclass(frozen=True)
class KnownDevice:
    """A device that was seen here. `key` is its strongest name; `looks` count up to `CONFIRMED_LOOKS`."""

    key: str
    kind: str = ""
    pci_bus_id: str | None = None
    looks: int = 1


@dataclass(frozen=True)
class Remembered:
    """All of it, as it is stored.

    Attributes:
        boot_id: of the boot that faults, counters and the place in the log belong to.
        log_sequence: the newest record of the kernel log that was looked at.
        counters: component → counter → how far it stood when it was first looked at, or acknowledged.
    """

    boot_id: str | None = None
    log_sequence: int | None = None
    faults: tuple[Fault, ...] = ()
    devices: tuple[KnownDevice, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


_REMEMBERED: Final = TypeAdapter(Remembered)


class HealthMemory:
    """Holds `Remembered` and says when it has changed."""

    def __init__(self) -> None:
        self.value = Remembered()
        self.is_dirty = False

    def load(self, text: str | None) -> None:
        """Takes what `dump` returned; devices in it have outlived a restart, so they are confirmed.

        Raises:
            pydantic.ValidationError: the text is no such thing.
        """
        value = Remembered() if text is None else _REMEMBERED.validate_json(text)
        devices = tuple(replace(device, looks=CONFIRMED_LOOKS) for device in value.devices)
        self.value, self.is_dirty = replace(value, devices=devices), False

    def dump(self) -> str:
        """Returns everything as JSON text."""
        return _REMEMBERED.dump_json(self.value).decode()

    def _change(self, value: Remembered) -> None:
        if value != self.value:
            self.value, self.is_dirty = value, True

    # boots, and the kernel log

    def note_boot(self, boot_id: str | None) -> bool:
        """Takes the host's boot; returns whether it is another one, which ends faults and counters."""
        before = self.value.boot_id
        if boot_id is None or boot_id == before:
            return False
        if before is None:
            self._change(replace(self.value, boot_id=boot_id))
            return False
        self._change(Remembered(boot_id=boot_id, devices=self.value.devices))
        return True

    def note_log(self, sequence: int | None) -> None:
        """Takes how far the kernel log was looked at."""
        if sequence is not None:
            self._change(replace(self.value, log_sequence=sequence))

    # faults

    def add_fault(self, fault: Fault) -> Fault:
        """Keeps a fault and returns it with how often it was reported; the newest words of one code count."""
        before = next((f for f in self.value.faults if (f.component, f.code) == (fault.component, fault.code)), None)
        kept = tuple(f for f in self.value.faults if f is not before)
        fault = replace(fault, count=fault.count + (before.count if before else 0))
        self._change(replace(self.value, faults=(*kept, fault)))
        return fault

    def clear_faults(self, component: str) -> tuple[Fault, ...]:
        """Forgets the faults of a component and returns them."""
        gone = tuple(fault for fault in self.value.faults if fault.component == component)
        self._change(replace(self.value, faults=tuple(f for f in self.value.faults if f.component != component)))
        return gone

    # counters that an operator has seen

    def baselines(self, component: str) -> Mapping[str, int]:
        """Returns how far counters stood when they were first looked at, or when an operator dealt with them."""
        return self.value.counters.get(component, {})

    def set_baselines(self, component: str, counters: Mapping[str, int]) -> None:
        """Keeps how far counters stand."""
        if counters:
            kept = {**self.baselines(component), **counters}
            self._change(replace(self.value, counters={**self.value.counters, component: kept}))

    # devices

    def note_devices(self, seen: Iterable[KnownDevice]) -> None:
        """Takes the devices that a look has listed."""
        known = {device.key: device for device in self.value.devices}
        for device in seen:
            before = known.get(device.key)
            looks = min(CONFIRMED_LOOKS, before.looks + 1) if before else 1
            known[device.key] = replace(device, looks=looks)
        self._change(replace(self.value, devices=tuple(known.values())))

    def forget_devices(self, keys: Iterable[str]) -> None:
        """Forgets devices: they are not expected here any more."""
        gone = set(keys)
        self._change(replace(self.value, devices=tuple(d for d in self.value.devices if d.key not in gone)))

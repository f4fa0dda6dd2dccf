"""The book of leases: which device is reserved, by whom, until when. Rules only, without I/O.

Rule: a device has at most one lease. When a lease ends is decided by the time since the machine started, never by the
wall clock, which people and NTP set; a lease of an earlier start has ended. Knows no store, no queue and no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from meshwright.errors import DeviceLeasedError
from meshwright.wire.devices import Device, DeviceLease, Devices
from meshwright.wire.leases import Lease, LeasedDevice
from meshwright_agent.clock import BootClock, Clock
from meshwright_agent.store.leases import StoredLease

EXPIRED: Final = "it was not renewed in time"
RESTARTED: Final = "the host was restarted"
DEVICES_SHOWN: Final = 8
ROUNDING_S: Final = 1.0


class LeaseBook:
    """The leases that hold.

    Args:
        clock: for what people read.
        boot: for what decides.
        on_change: called after each change.
    """

    def __init__(self, clock: Clock, boot: BootClock, on_change: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._boot = boot
        self._on_change = on_change
        self._held: dict[str, StoredLease] = {}
        self._ended: dict[str, str] = {}
        self._places: _Places | None = None

    # ---- what holds --------------------------------------------------------------------------------------------

    def active(self) -> tuple[StoredLease, ...]:
        """Returns the leases that hold now, oldest first."""
        self._drop_expired()
        return tuple(self._held.values())

    def find(self, lease_id: str) -> StoredLease | None:
        """Returns a lease that holds now."""
        self._drop_expired()
        return self._held.get(lease_id)

    def covering(self, device: Device) -> StoredLease | None:
        """Returns the lease that covers a device."""
        active = self.active()
        if self._places is None:
            self._places = _index(active)
        found = (entry for name in _list_names(device) for entry in self._places.get(name, ()))
        return next((held for leased, held in found if covers(leased, device)), None)

    def list_covering(self, devices: Iterable[Device], *, but: str | None = None) -> tuple[StoredLease, ...]:
        """Returns the leases that cover any of the devices, oldest first, without the one named."""
        found = {held.lease.id for device in devices if (held := self.covering(device)) is not None}
        return tuple(held for held in self.active() if held.lease.id in found - {but})

    def mark(self, devices: Devices) -> Devices:
        """Returns the host with its leases on its devices."""
        if not self.active():
            return devices
        marked = tuple(map(self._mark_one, devices.devices))
        return devices.model_copy(update={"devices": marked})

    def _mark_one(self, device: Device) -> Device:
        held = self.covering(device)
        if held is None:
            return device
        lease = held.lease
        note = DeviceLease(
            id=lease.id,
            purpose=lease.purpose,
            owner=lease.owner,
            preemptible=lease.preemptible,
            expires_in_s=self.left_s(held),
        )
        return device.model_copy(update={"lease": note})

    def show(self, held: StoredLease) -> Lease:
        """Returns a lease as replies show it now."""
        left_s = self.left_s(held)
        return held.lease.model_copy(
            update={"expires_at": self._clock.now() + timedelta(seconds=left_s), "expires_in_s": left_s}
        )

    def left_s(self, held: StoredLease) -> float:
        """Returns the seconds that a lease has left."""
        return max(0.0, held.until_s - self._boot.since_boot_s())

    # ---- what changes ------------------------------------------------------------------------------------------

    def judge(
        self, devices: Sequence[Device], *, preemptible: bool, there: Sequence[Device]
    ) -> tuple[StoredLease, ...]:
        """Returns the leases that give way to a new one on these devices; `there`: all devices of the host.

        Raises:
            DeviceLeasedError: one of them does not.
        """
        in_the_way = self.list_covering(devices)
        firm = [held for held in in_the_way if preemptible or not held.lease.preemptible]
        if firm:
            raise self.refuse(firm, devices, "a lease", there)
        return in_the_way

    def refuse(
        self, in_the_way: Sequence[StoredLease], devices: Sequence[Device], asked: str, there: Sequence[Device] = ()
    ) -> DeviceLeasedError:
        """Returns the refusal of `asked` on these devices, which leases cover; `there`: those that it may use."""
        named = "; ".join(self._describe(held, devices) for held in in_the_way)
        first = in_the_way[0]
        free = [device.local_index for device in there if self.covering(device) is None][:DEVICES_SHOWN]
        return DeviceLeasedError(
            f"{asked} needs devices that are reserved: {named}; a device has one lease at a time",
            hint=(f'use "devices": {free}; or ' if free else "")
            + f"wait for the end of {first.lease.id} ({self.left_s(first):.0f} s at most), or have it ended: "
            f"DELETE /leases/{first.lease.id}",
        )

    def _describe(self, held: StoredLease, devices: Sequence[Device]) -> str:
        lease = held.lease
        covered = [str(device.local_index) for device in devices if self.covering(device) is held]
        named = ", ".join(covered[:DEVICES_SHOWN]) + (", …" if len(covered) > DEVICES_SHOWN else "")
        owner = f" of {lease.owner}" if lease.owner else ""
        return f"device {named} by {lease.id}{owner} ({lease.purpose}), which has {self.left_s(held):.0f} s left"

    def date(self, lease: Lease, ttl_s: float) -> StoredLease:
        """Returns a lease that ends `ttl_s` from now."""
        held = StoredLease(lease, self._boot.boot_id, self._boot.since_boot_s() + ttl_s)
        return replace(held, lease=self.show(held))

    def put(self, *leases: StoredLease) -> None:
        """Takes leases that hold, new or renewed."""
        for held in leases:
            self._held[held.lease.id] = held
            self._ended.pop(held.lease.id, None)
        self._change()

    def end(self, *lease_ids: str) -> None:
        """Lets leases go."""
        for lease_id in lease_ids:
            self._held.pop(lease_id, None)
        self._change()

    def recall(self, stored: Iterable[StoredLease]) -> None:
        """Takes the leases of an earlier agent; those that have ended meanwhile are told by `take_ended`."""
        for held in stored:
            if not self._is_of_this_start(held):
                self._ended[held.lease.id] = RESTARTED
            else:
                self._held[held.lease.id] = held
        self._change()
        self._drop_expired()

    def _change(self) -> None:
        self._places = None
        self._on_change()

    def take_ended(self) -> dict[str, str]:
        """Returns the leases that have ended by themselves since this was asked last: id → why."""
        self._drop_expired()
        ended, self._ended = self._ended, {}
        return ended

    def _is_of_this_start(self, held: StoredLease) -> bool:
        """Where the kernel names no start, a lease that would last longer than it ever did is of another one."""
        lasted_s = held.lease.expires_in_s
        return held.boot_id == self._boot.boot_id and held.until_s - lasted_s <= self._boot.since_boot_s() + ROUNDING_S

    def _drop_expired(self) -> None:
        now_s = self._boot.since_boot_s()
        expired = [lease_id for lease_id, held in self._held.items() if held.until_s <= now_s]
        if expired:
            self._ended |= dict.fromkeys(expired, EXPIRED)
            self.end(*expired)


_Name = tuple[str, str | int]
_Places = dict[_Name, list[tuple[LeasedDevice, StoredLease]]]


def _index(active: Iterable[StoredLease]) -> _Places:
    """Returns by each name of a leased device what may be meant, so that thousands are not compared with thousands."""
    places: _Places = {}
    for held in active:
        for leased in held.lease.devices:
            for name in (("uuid", leased.uuid), ("pci", leased.pci_bus_id), ("index", leased.local_index)):
                if name[1] is not None:
                    places.setdefault((name[0], name[1]), []).append((leased, held))
    return places


def _list_names(device: Device) -> list[_Name]:
    uuids = (device.uuid, device.mig.parent_uuid if device.mig else None)
    names: list[_Name] = [("uuid", uuid) for uuid in uuids if uuid]
    if device.pci_bus_id:
        names.append(("pci", device.pci_bus_id))
    return [*names, ("index", device.local_index)]


def covers(leased: LeasedDevice, device: Device) -> bool:
    """Tells whether a leased device is this one, or the card that this MIG instance is a part of.

    The strongest name that both have counts: a host that lost a card numbers the others anew.
    """
    if leased.uuid and device.uuid:
        return leased.uuid == device.uuid or (device.mig is not None and device.mig.parent_uuid == leased.uuid)
    if leased.pci_bus_id and device.pci_bus_id:
        return leased.pci_bus_id == device.pci_bus_id
    return leased.local_index == device.local_index

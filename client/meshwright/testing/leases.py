"""The leases of a fake agent: one per device, with a real agent's rules of preemption. Independent of HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from meshwright.errors import (
    DeviceBusyError,
    DeviceLeasedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
)
from meshwright.planning.device_selection import select_for_lease
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device, DeviceLease, Devices
from meshwright.wire.leases import LEASE_ID_PATTERN, DeviceCount, Lease, LeasedDevice, LeaseRequest, Leases

Clock = Callable[[], datetime]


class LeaseBook:
    """All leases of one fake agent, by the agent's clock."""

    def __init__(
        self, clock: Clock, list_runs: Callable[[], tuple[str, ...]], cancel_runs: Callable[[str], tuple[str, ...]]
    ) -> None:
        self._clock = clock
        self._list_runs = list_runs
        self._cancel_runs = cancel_runs
        self._leases: dict[str, Lease] = {}
        self._ended: dict[str, str] = {}

    def put(self, lease_id: str, request: LeaseRequest, devices: Devices, owner: str = "") -> tuple[Lease, bool]:
        """Returns a new lease and true, or a renewed one and false.

        Raises:
            ForbiddenError: the lease belongs to another owner.
            DeviceLeasedError: another lease has one of the devices, or this one has other devices.
            DeviceBusyError: a bench is running, and the lease is preemptible.
            InvalidRequestError: the device does not exist, or the id is not allowed.
        """
        if re.fullmatch(LEASE_ID_PATTERN, lease_id) is None:
            raise InvalidRequestError.of("lease_id", f"lease_id {lease_id[:80]!r} does not match {LEASE_ID_PATTERN}")
        if (held := self._current(self._clock()).get(lease_id)) is not None:
            return self._renew(held, request, devices, owner), False
        chosen = _choose(request, self.mark(devices))
        preempted = self._preempt({device.local_index for device in chosen}, request)
        cancelled = self._make_room(request)
        lease = self._add(lease_id, request, chosen, owner).model_copy(
            update={"preempted_leases": preempted, "cancelled_runs": cancelled}
        )
        self._leases[lease.id] = lease
        return lease, True

    def _renew(self, held: Lease, request: LeaseRequest, devices: Devices, owner: str) -> Lease:
        self.check_owner(held.id, owner)
        has = [device.local_index for device in held.devices]
        if isinstance(request.devices, DeviceCount):
            is_same = request.devices.count == len(has)
        else:
            is_same = sorted(has) == sorted(device.local_index for device in _choose(request, devices))
        if not is_same or request.preemptible != held.preemptible:
            raise DeviceLeasedError(
                f"lease {held.id} holds device {has} with preemptible {held.preemptible}; a renewal may change ttl_s "
                "and purpose only",
                hint=f"end it first (DELETE /leases/{held.id}), or use another id",
            )
        expires_at = self._clock() + timedelta(seconds=request.ttl_s)
        self._leases[held.id] = held.model_copy(update={"expires_at": expires_at, "purpose": request.purpose})
        return self.get(held.id)

    def check_owner(self, lease_id: str, owner: str) -> None:
        """Raises ForbiddenError unless this owner may use a lease, or no lease has this id."""
        lease = self._current(self._clock()).get(lease_id)
        if lease is not None and owner and lease.owner not in {"", owner}:
            raise ForbiddenError(f"lease {lease.id} belongs to {lease.owner}, and {owner} asks", hint="use another id")

    def list(self) -> Leases:
        """Returns the current leases, oldest first."""
        now = self._clock()  # once, so that no lease ends between two checks
        return Leases(leases=tuple(_show(lease, now) for lease in self._current(now).values()))

    def get(self, lease_id: str) -> Lease:
        """Returns a lease, with the time that it has left.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        now = self._clock()
        lease = self._current(now).get(lease_id)
        if lease is None:
            why = self._ended.get(lease_id)
            detail = f"lease {lease_id!r} has ended: {why}" if why else f"there is no lease {lease_id!r} here"
            raise NotFoundError(detail, hint="GET /leases")
        return _show(lease, now)

    def end(self, lease_id: str, owner: str = "") -> Lease:
        """Ends a lease; returns it as it was.

        Raises:
            NotFoundError: it has ended, or never was.
            ForbiddenError: it belongs to another owner.
        """
        ended = self.get(lease_id)
        self.check_owner(lease_id, owner)
        self._drop(lease_id, "ended by request (DELETE)")
        return ended

    def require(self, indices: Sequence[int], own: str | None) -> None:
        """Raises DeviceLeasedError if another lease than `own` covers one of the devices.

        Raises:
            DeviceLeasedError: another lease covers one.
        """
        for lease in self.list().leases:
            if lease.id != own and {device.local_index for device in lease.devices} & set(indices):
                raise _refuse(lease)

    def mark(self, devices: Devices) -> Devices:
        """Returns the devices, with the leases that cover them."""
        covered = {
            device.local_index: DeviceLease(
                id=lease.id,
                purpose=lease.purpose,
                owner=lease.owner,
                preemptible=lease.preemptible,
                expires_in_s=lease.expires_in_s,
            )
            for lease in self.list().leases
            for device in lease.devices
        }
        if not covered:
            return devices
        marked = (each.model_copy(update={"lease": covered.get(each.local_index)}) for each in devices.devices)
        return devices.model_copy(update={"devices": tuple(marked)})

    def _current(self, now: datetime) -> dict[str, Lease]:
        for name, lease in list(self._leases.items()):  # a copy: the thread of a `hold` reads it too
            if lease.expires_at <= now:
                self._drop(name, "it was not renewed in time")
        return self._leases

    def _drop(self, lease_id: str, why: str) -> None:
        self._ended[lease_id] = why
        self._leases.pop(lease_id, None)

    def _make_room(self, request: LeaseRequest) -> tuple[str, ...]:
        """Cancels the benches in the way; returns their ids."""
        running = self._list_runs()
        if running and request.preemptible:
            raise DeviceBusyError(
                f"{', '.join(running)} runs, and a preemptible lease does not pre-empt",
                hint="wait for it, or cancel it",
            )
        return self._cancel_runs(f"pre-empted by a lease: {request.purpose}")

    def _preempt(self, indices: set[int], request: LeaseRequest) -> tuple[str, ...]:
        """Ends the leases that yield to the request; returns their ids."""
        in_the_way = [
            lease for lease in self.list().leases if {device.local_index for device in lease.devices} & indices
        ]
        for lease in in_the_way:
            if request.preemptible or not lease.preemptible:
                raise _refuse(lease)
        for lease in in_the_way:
            self._drop(lease.id, f"pre-empted by another lease ({request.purpose})")
        return tuple(lease.id for lease in in_the_way)

    def _add(self, lease_id: str, request: LeaseRequest, chosen: Sequence[Device], owner: str) -> Lease:
        now = self._clock()
        return Lease(
            id=lease_id,
            devices=tuple(
                LeasedDevice(local_index=each.local_index, uuid=each.uuid, pci_bus_id=each.pci_bus_id)
                for each in chosen
            ),
            purpose=request.purpose,
            preemptible=request.preemptible,
            owner=owner,
            created_at=now,
            expires_at=now + timedelta(seconds=request.ttl_s),
            expires_in_s=request.ttl_s,
        )


def _show(lease: Lease, now: datetime) -> Lease:
    """Returns a lease with the time that it has left."""
    return lease.model_copy(update={"expires_in_s": (lease.expires_at - now).total_seconds()})


def _choose(request: LeaseRequest, devices: Devices) -> tuple[Device, ...]:
    if request.devices == "all":
        return devices.devices
    if isinstance(request.devices, DeviceCount):
        topology = Topology.of(devices)
        places = select_for_lease(request.devices.count, topology, {}, is_preemptible=request.preemptible)
        return tuple(topology.devices[place] for place in sorted(places))
    by_name: dict[int | str, Device] = {device.local_index: device for device in devices.devices}
    by_name |= {device.uuid: device for device in devices.devices if device.uuid}
    absent = [name for name in request.devices if name not in by_name]
    if absent:
        message = f"device {absent[0]!r} is not here; host {devices.host.name} has 0 to {len(devices.devices) - 1}"
        raise InvalidRequestError.of("devices", message, 'name local indices or uuids, "all", or {"count": 1}')
    return tuple({by_name[name].local_index: by_name[name] for name in request.devices}.values())


def _refuse(lease: Lease) -> DeviceLeasedError:
    devices = ", ".join(str(device.local_index) for device in lease.devices)
    by = f" by {lease.owner}" if lease.owner else ""
    return DeviceLeasedError(
        f"lease {lease.id} ({lease.purpose}){by} has device {devices} for another {lease.expires_in_s:.0f} s",
        hint="wait until it ends, or ask its owner to end it",
    )

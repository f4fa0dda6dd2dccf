"""Leases: reservations of this host's devices, with owner and end.

A device has at most one lease. The time since boot decides when a lease ends, not the wall clock, which people and NTP
set. A lease of an earlier boot has ended. Every change is stored first: if the store fails, nothing changes. A new
lease is answered after the agent's own work has left its devices.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, FiniteFloat, field_validator

from meshwright.errors import DeviceBusyError, DeviceLeasedError, ForbiddenError, InvalidRequestError, NotFoundError
from meshwright.planning.device_selection import select_for_lease
from meshwright.planning.request import Inventory
from meshwright.wire.base import DeviceRef, DeviceSelection
from meshwright.wire.devices import Device, Devices
from meshwright.wire.leases import Lease, LeaseRequest, Verdict
from meshwright_agent.clock import BootClock
from meshwright_agent.store import (
    HELD,
    LEASE,
    Document,
    Store,
    StoreUnavailableError,
    parse_bodies,
    parse_body,
    read_held_leases,
)

SWEEP_S: Final = 1.0
"""Interval of the search for expired leases."""
NOT_WRITTEN: Final = "not given: the store did not answer"
"""Why a lease has ended that a failed write may have stored."""
EXPIRED: Final = "it was not renewed in time"
RESTARTED: Final = "the host was restarted"
ENDED: Final = "ended"
MAX_SHOWN: Final = 8
ROUNDING_S: Final = 1.0

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
"""Starts work that the agent ends when it closes."""
Free = Callable[[Sequence[str], str], Awaitable[tuple[str, ...]]]
"""(ids of runs, reason) → the cancelled runs. The agent does not use the host's devices when it returns."""


class StoredLease(BaseModel):
    """A lease with the facts that decide its end. Every version must read this form: see `store`.

    Attributes:
        boot_id: the boot from which `until_s` counts.
        until_s: seconds since the boot at which the lease expires.
        ended: why the lease has ended; empty if it was active at the time of writing.
        verdict: of the last preflight under the lease.
    """

    lease: Lease
    boot_id: str
    until_s: FiniteFloat
    ended: str = ""
    verdict: Verdict | None = None

    @field_validator("lease", mode="before")
    @classmethod
    def _complete(cls, lease: Any) -> Any:
        """Leases of earlier versions name their devices without host and position."""
        if not isinstance(lease, dict):
            return lease
        devices = [{"host": "", "position": each["local_index"], **each} for each in lease["devices"]]
        return {**lease, "devices": devices}


@dataclass(frozen=True)
class Owner:
    """The caller that creates, renews or ends a lease, or benches under it.

    Attributes:
        name: the name of the caller's token or certificate; empty without one.
        is_admin: the caller may use the leases of all owners.
    """

    name: str = ""
    is_admin: bool = False

    def check(self, lease: Lease) -> None:
        """Raises ForbiddenError unless this owner may use the lease.

        Every operator may use a lease that was taken without a token. A caller without a token may use every lease,
        because its scope applies to all callers of that kind.
        """
        if self.is_admin or not self.name or lease.owner in {"", self.name}:
            return
        raise ForbiddenError(
            f"lease {lease.id} ({lease.purpose}) belongs to {lease.owner}, and {self.name} asks; only its owner, or "
            "the scope admin, may renew it, end it or bench under it",
            hint=f"ask with the token or certificate of {lease.owner}, with a token of scope admin, or take a lease "
            "with another id; a lease ends by itself when it is not renewed (expires_in_s)",
        )


class LeaseRegistry:
    """The active leases, in memory. Only stored leases are added."""

    def __init__(self, boot: BootClock) -> None:
        self._boot = boot
        self._stored: dict[str, StoredLease] = {}
        self._places: tuple[object, _Places] | None = None
        self._version = 0

    def key(self) -> object:
        """Returns a value that changes when the active leases change."""
        return self._version, len(self.active())

    def active(self) -> tuple[StoredLease, ...]:
        """Returns the active leases, oldest first."""
        now_s = self._boot.since_boot_s()
        return tuple(held for held in self._stored.values() if held.until_s > now_s)

    def list_expired(self) -> tuple[StoredLease, ...]:
        """Returns the expired leases that are not yet stored as ended."""
        active = {held.lease.id for held in self.active()}
        return tuple(held for held in self._stored.values() if held.lease.id not in active)

    def find(self, lease_id: str) -> StoredLease | None:
        """Returns an active lease."""
        return next((held for held in self.active() if held.lease.id == lease_id), None)

    def covering(self, device: Device) -> StoredLease | None:
        """Returns the lease that covers a device."""
        if self._places is None or self._places[0] != self.key():
            self._places = (self.key(), _index_leases(self.active()))
        names = _list_names(device, device.mig.parent_uuid if device.mig else None)
        found = (entry for name in names for entry in self._places[1].get(name, ()))
        return next((held for leased, held in found if covers(leased, device)), None)

    def list_covering(self, devices: Iterable[Device], *, but: str | None = None) -> tuple[StoredLease, ...]:
        """Returns the leases that cover any of the devices, oldest first, except `but`."""
        found = {held.lease.id for device in devices if (held := self.covering(device)) is not None}
        return tuple(held for held in self.active() if held.lease.id in found - {but})

    def mark(self, devices: Devices) -> Devices:
        """Returns the host with the leases marked on its devices."""
        if not self.active():
            return devices
        return devices.model_copy(update={"devices": tuple(map(self._mark_one, devices.devices))})

    def _mark_one(self, device: Device) -> Device:
        held = self.covering(device)
        if held is None:
            return device
        return device.model_copy(update={"lease": self.show(held).model_copy(update={"devices": ()})})

    def show(self, held: StoredLease) -> Lease:
        """Returns a lease in the form of replies."""
        return held.lease.model_copy(update={"expires_in_s": self._left_s(held)})

    def _left_s(self, held: StoredLease) -> float:
        return max(0.0, held.until_s - self._boot.since_boot_s())

    def refuse(
        self,
        in_the_way: Sequence[StoredLease],
        devices: Sequence[Device],
        asked: str,
        there: Sequence[Device] = (),
        own: str | None = None,
    ) -> DeviceLeasedError:
        """Returns the error for `asked` on these leased devices; the caller may use those `there` that are free, and
        those of its `own` lease."""
        named = "; ".join(self._describe(held, devices) for held in in_the_way)
        shown = [held.lease.id for held in in_the_way[:MAX_SHOWN]]
        left_s = max(map(self._left_s, in_the_way))
        free = [each.local_index for each in there if not self.list_covering((each,), but=own)][:MAX_SHOWN]
        return DeviceLeasedError(
            f"{asked} needs devices that are reserved: {named}; a device has one lease at a time",
            hint=(f'use "devices": {free}; or ' if free else "")
            + f"wait for the end of {' and '.join(shown)} ({left_s:.0f} s at most), or have it ended: "
            + " and ".join(f"DELETE /leases/{lease}" for lease in shown),
        )

    def _describe(self, held: StoredLease, devices: Sequence[Device]) -> str:
        lease = held.lease
        covered = [each.local_index for each in devices if (own := self.covering(each)) and own.lease.id == lease.id]
        owner = f" of {lease.owner}" if lease.owner else ""
        words = f"device {_list_shown(covered)} by {lease.id}{owner} ({lease.purpose})"
        return f"{words}, which has {self._left_s(held):.0f} s left"

    def date(self, lease: Lease, ttl_s: float) -> StoredLease:
        """Returns a lease that ends `ttl_s` from now."""
        until_s = self._boot.since_boot_s() + ttl_s
        held = StoredLease(lease=lease, boot_id=self._boot.boot_id, until_s=until_s)
        return held.model_copy(update={"lease": self.show(held)})

    def put(self, *leases: StoredLease) -> None:
        """Adds stored leases, or replaces them."""
        self._stored |= {held.lease.id: held for held in leases}
        self._version += 1

    def remove(self, *leases: StoredLease) -> None:
        """Removes leases that are stored as ended."""
        for held in leases:
            self._stored.pop(held.lease.id, None)
        self._version += 1

    def is_of_this_boot(self, held: StoredLease) -> bool:
        """Returns whether a lease began in this boot.

        If the kernel does not report a boot id, a lease that begins after the current boot time is of another boot.
        """
        lasted_s = held.lease.expires_in_s
        return held.boot_id == self._boot.boot_id and held.until_s - lasted_s <= self._boot.since_boot_s() + ROUNDING_S


@dataclass
class LeaseService:
    """Makes, renews and ends leases.

    Attributes:
        devices: returns the host; raises UnavailableError while it is not known.
        here: returns the host as plans see it, for a request that counts devices.
        find_runs: returns the queued and running benches that would open one of these devices.
        free: ends these runs, and the worker if it has the devices.
        spawn: starts work that the agent ends when it closes.
    """

    registry: LeaseRegistry
    store: Store
    devices: Callable[[], Devices]
    here: Callable[[], Inventory]
    find_runs: Callable[[Sequence[Device]], tuple[str, ...]]
    free: Free
    spawn: Spawn

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._unsure: dict[str, StoredLease] = {}
        """Leases in writes that failed: the store may have kept them."""

    async def recall(self) -> None:
        """Reads the stored leases of an earlier agent, and ends those of an earlier boot.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = tuple(parse_bodies(StoredLease, await self.store.list_documents(LEASE, states=[HELD])))
        self.registry.put(*(held for held in found if self.registry.is_of_this_boot(held)))
        of_before = [held for held in found if not self.registry.is_of_this_boot(held)]
        await self.store.write(*(_build_document(held, RESTARTED) for held in of_before))

    async def run(self) -> None:
        """Stores expired leases as ended, and again what a failed write may have kept otherwise, until cancelled."""
        while True:
            async with self._lock:
                with suppress(StoreUnavailableError):
                    there = [(self.registry.find(each), each) for each in self._unsure]
                    await self._write(
                        *((held or self._unsure[each], "" if held else NOT_WRITTEN) for held, each in there)
                    )
                if expired := self.registry.list_expired():
                    with suppress(StoreUnavailableError):  # it has expired anyway
                        await self._end(expired, EXPIRED)
            await asyncio.sleep(SWEEP_S)

    async def put(self, lease_id: str, request: LeaseRequest, *, by: Owner) -> tuple[Lease, bool]:
        """Returns a new lease and True, or a renewed lease and False. A disconnect of the caller does not stop it.

        Raises:
            ForbiddenError: the lease belongs to another owner.
            InvalidRequestError: a device does not exist.
            DeviceLeasedError: another lease covers a device, other leases leave too few devices, or the active lease
                has other devices.
            DeviceBusyError: a bench uses a device of a preemptible lease, or the agent's worker does not end.
            StoreUnavailableError: nothing has changed.
        """
        return await asyncio.shield(self.spawn(self._put(lease_id, request, by)))

    async def _put(self, lease_id: str, request: LeaseRequest, by: Owner) -> tuple[Lease, bool]:
        async with self._lock:
            held = self.registry.find(lease_id)
            if held is None:
                return self.registry.show(await self._create(lease_id, request, by)), True
            by.check(held.lease)
            self._check_same(held.lease, request)
            dated = self.registry.date(held.lease.model_copy(update={"purpose": request.purpose}), request.ttl_s)
            renewed = dated.model_copy(update={"verdict": held.verdict})
            await self._write((renewed, ""))
            self.registry.put(renewed)
            return self.registry.show(renewed), False

    def _check_same(self, lease: Lease, request: LeaseRequest) -> None:
        """Raises DeviceLeasedError unless the request names the devices of the lease."""
        has = [leased.local_index for leased in lease.devices]
        if isinstance(request.devices, DeviceSelection):
            count, exclude = request.devices.count, request.devices.exclude or ()
            left_out = choose_devices(
                request.model_copy(update={"devices": exclude}), self.devices().devices, self.here
            )
            is_covered = any(covers(each, one) for one in left_out for each in lease.devices)
            is_same = count in (None, len(has)) and not is_covered
            asked = f"{count} device(s)" if count else "a choice"
            asked += f" without {_list_shown([one.local_index for one in left_out])}" if left_out else ""
        elif request.devices != "all" and _names_exactly(request.devices, lease):  # also of a simulated fleet
            is_same, asked = True, ""
        else:
            named = choose_devices(request, self.devices().devices, self.here)
            is_same = len(named) == len(has) and all(any(covers(each, one) for one in named) for each in lease.devices)
            asked = f"device {_list_shown([device.local_index for device in named])}"
        differing = [f"it holds device {_list_shown(has)}, and {asked} is asked for"] if not is_same else []
        if request.preemptible != lease.preemptible:
            differing.append(f"it has preemptible {lease.preemptible}, and {request.preemptible} is asked for")
        if differing:
            raise DeviceLeasedError(
                f"lease {lease.id} holds already: {'; '.join(differing)}; a renewal may change ttl_s and purpose only",
                hint=f'renew with "devices": {has} and "preemptible": {json.dumps(lease.preemptible)}, end it first '
                f"(DELETE /leases/{lease.id}), or use another id",
            )

    async def _create(self, lease_id: str, request: LeaseRequest, by: Owner) -> StoredLease:
        self.here()  # refuses while the devices are not known
        there = self.devices().devices
        devices = choose_devices(request, there, self.here)
        in_the_way = self.registry.list_covering(devices)
        firm = [held for held in in_the_way if request.preemptible or not held.lease.preemptible]
        if firm:
            raise self.registry.refuse(firm, devices, "a lease", there)
        runs = self.find_runs(devices)
        if runs and request.preemptible:
            raise _refuse_for_runs(runs, devices)
        reason = f"preempted by lease {lease_id} ({request.purpose})"
        lease = Lease(
            id=lease_id,
            devices=tuple(device.to_reference() for device in devices),
            purpose=request.purpose,
            preemptible=request.preemptible,
            owner=by.name,
            expires_in_s=0.0,
            preempted_leases=tuple(each.lease.id for each in in_the_way),
            cancelled_runs=runs,
        )
        held = self.registry.date(lease, request.ttl_s)
        await self._write((held, ""), *((each, reason) for each in in_the_way))
        self.registry.remove(*in_the_way)
        self.registry.put(held)
        try:  # a bench may have begun while the lease was written
            gone = await self.free(self.find_runs(devices), reason)
        except DeviceBusyError as error:  # those that were in the way get their devices back
            with suppress(StoreUnavailableError):
                await self._write((held, f"not given: {error.detail}"), *((each, "") for each in in_the_way))
            self.registry.remove(held)
            self.registry.put(*in_the_way)
            raise
        kept = held.model_copy(update={"lease": held.lease.model_copy(update={"cancelled_runs": gone})})
        self.registry.put(kept)
        if gone != runs:
            with suppress(StoreUnavailableError):
                await self._write((kept, ""))
        return kept

    async def end(self, lease_id: str, *, by: Owner) -> Lease:
        """Ends a lease and returns its last state.

        Raises:
            NotFoundError: the lease does not exist or has ended.
            ForbiddenError: the lease belongs to another owner.
            StoreUnavailableError: the lease stays active.
        """
        async with self._lock:
            held = await self._find(lease_id)
            by.check(held.lease)
            await self._end([held], "ended by request (DELETE)")
            return self.registry.show(held)

    async def _write(self, *leases: tuple[StoredLease, str]) -> None:
        """Stores leases, each with why it has ended; "" while it stands."""
        try:
            await self.store.write(*(_build_document(*each) for each in leases))
        except StoreUnavailableError:
            self._unsure |= {held.lease.id: held for held, _ in leases}
            raise
        for held, _ in leases:
            self._unsure.pop(held.lease.id, None)

    async def _end(self, leases: Sequence[StoredLease], reason: str) -> None:
        await self._write(*((held, reason) for held in leases))
        self.registry.remove(*leases)

    async def put_verdict(self, lease_id: str, verdict: Verdict, *, by: Owner) -> Verdict:
        """Keeps what a preflight under a lease found on this host, until the lease ends.

        Raises:
            NotFoundError, ForbiddenError, StoreUnavailableError: as `end`.
        """
        async with self._lock:
            held = await self._find(lease_id)
            by.check(held.lease)
            kept = held.model_copy(update={"verdict": verdict})
            await self._write((kept, ""))
            self.registry.put(kept)
            return verdict

    async def get_verdict(self, lease_id: str) -> Verdict:
        """Returns the verdict of the last preflight under a lease.

        Raises:
            NotFoundError: the lease has ended, or no preflight under it has.
        """
        verdict = (await self._find(lease_id)).verdict
        if verdict is None:
            detail = f"no preflight under lease {lease_id} has ended yet"
            raise NotFoundError(detail, hint=f"meshwright preflight --lease {lease_id} --hosts … makes one")
        return verdict

    async def get(self, lease_id: str) -> Lease:
        """Returns an active lease. Raises NotFoundError with the reason unless the lease is active."""
        return self.registry.show(await self._find(lease_id))

    def list_leases(self) -> tuple[Lease, ...]:
        """Returns the active leases, oldest first."""
        return tuple(map(self.registry.show, self.registry.active()))

    async def _find(self, lease_id: str) -> StoredLease:
        if (held := self.registry.find(lease_id)) is not None:
            return held
        detail = f"there is no lease {lease_id[:80]!r} here"
        if (document := await self.store.get(LEASE, lease_id)) is not None:
            detail = f"lease {lease_id[:80]!r} has ended: {parse_body(StoredLease, document).ended or EXPIRED}"
        raise NotFoundError(detail, hint="GET /leases lists those that hold; PUT /leases/{id} makes one")


def _names_exactly(names: Sequence[int | str], lease: Lease) -> bool:
    asked = {name if isinstance(name, int) else name.lower() for name in names}
    held = [
        {each.local_index, f"{each.host}/{each.local_index}".lower(), (each.uuid or "").lower()}
        for each in lease.devices
    ]
    return all(each & asked for each in held) and all(any(name in each for each in held) for name in asked)


def _build_document(held: StoredLease, ended: str = "") -> Document:
    """Returns the stored form of a lease. An ended lease becomes the newest, so that it is not pruned first."""
    body = held.model_copy(update={"ended": ended}).model_dump_json()
    return Document(LEASE, held.lease.id, body, ENDED if ended else HELD, keeps_place=not ended)


def read_held(path: Path, boot: BootClock) -> tuple[StoredLease, ...] | None:
    """Returns the active leases of a store that is not opened, oldest first; None if it cannot be read."""
    registry, documents = LeaseRegistry(boot), read_held_leases(path)
    if documents is None:
        return None
    registry.put(*filter(registry.is_of_this_boot, parse_bodies(StoredLease, documents)))
    return registry.active()


# ---- the devices of a request ----------------------------------------------------------------------------------------


def choose_devices(
    request: LeaseRequest, devices: Sequence[Device], find_here: Callable[[], Inventory]
) -> tuple[Device, ...]:
    """Returns the devices that the request names, in the order of the host.

    The uuid or PCI bus id of a card names all its MIG instances. A count chooses devices that are healthy and free.

    Raises:
        InvalidRequestError: a device does not exist, the host is without devices, or a count exceeds their number.
        DeviceLeasedError: other leases leave too few devices for a count.
    """
    if not devices:
        raise _refuse("this host has no device that can be leased; a lease covers at least one", "see GET /devices")
    if request.devices == "all":
        return tuple(devices)
    if len({device.host for device in devices}) > 1:
        raise _refuse(
            "devices chooses devices of a simulated fleet, whose hosts number alike; an agent leases devices of one "
            "host",
            'use "devices": "all", or simulate one host, such as h100:8',
        )
    if isinstance(request.devices, DeviceSelection):
        here = find_here()
        places = select_for_lease(request.devices, here.topology, here.health, is_preemptible=request.preemptible)
        return tuple(here.topology.devices[place] for place in sorted(places))
    named: dict[int | str, list[int]] = {}
    for device in devices:
        parent = device.mig.parent_uuid if device.mig else None
        texts = (str(device.local_index), f"{device.host}/{device.local_index}", device.uuid, device.pci_bus_id, parent)
        names: tuple[int | str, ...] = (device.local_index, *(text.lower() for text in texts if text))
        for name in names:
            named.setdefault(name, []).append(device.local_index)
    wanted = {index for name in request.devices for index in _find_named(name, named, devices)}
    return tuple(device for device in devices if device.local_index in wanted)


def _find_named(name: int | str, named: Mapping[int | str, Sequence[int]], devices: Sequence[Device]) -> Sequence[int]:
    if found := named.get(name if isinstance(name, int) else name.lower()):
        return found
    there = _list_shown([device.local_index for device in devices])
    detail = f"devices names {name!r}; this host has {len(devices)} ({there}) and is {devices[0].host}; a name is a "
    detail += "local index, host/index, a uuid or a PCI bus id"
    counted = (
        f'; for {name} devices use {{"count": {name}}}' if isinstance(name, int) and 0 < name <= len(devices) else ""
    )
    raise _refuse(detail, f"use {devices[0].uuid or devices[0].local_index!r} or another of GET /devices{counted}")


def _refuse(detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError.of("devices", detail, hint, detail.rpartition("; ")[2])


def _refuse_for_runs(runs: Sequence[str], devices: Sequence[Device]) -> DeviceBusyError:
    named = ", ".join(str(device.local_index) for device in devices)
    return DeviceBusyError(
        f"a preemptible lease was asked for device {named}, which {', '.join(runs)} would open; a preemptible "
        "lease does not preempt",
        hint=f"wait for {runs[-1]}, cancel it (DELETE /runs/{runs[-1]}), or ask with preemptible: false",
    )


def _list_shown(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:MAX_SHOWN])) + (", …" if len(indices) > MAX_SHOWN else "")


_Name = tuple[str, str | int]
_Places = dict[_Name, list[tuple[DeviceRef, StoredLease]]]


def _index_leases(active: Iterable[StoredLease]) -> _Places:
    """Returns an index of leased devices by each of their names, which avoids quadratic comparisons."""
    places: _Places = {}
    for held in active:
        for leased in held.lease.devices:
            for name in _list_names(leased):
                places.setdefault(name, []).append((leased, held))
    return places


def _list_names(device: DeviceRef, card_uuid: str | None = None) -> list[_Name]:
    names = ("uuid", device.uuid), ("uuid", card_uuid), ("pci", device.pci_bus_id), ("index", device.local_index)
    return [(kind, name) for kind, name in names if name is not None]


def covers(leased: DeviceRef, device: Device) -> bool:
    """Returns whether a leased device is this device, or the card of this MIG instance.

    It compares the strongest name that both have, because a host that lost a card renumbers the others.
    """
    if leased.uuid and device.uuid:
        return leased.uuid == device.uuid or (device.mig is not None and device.mig.parent_uuid == leased.uuid)
    if leased.pci_bus_id and device.pci_bus_id:
        return leased.pci_bus_id == device.pci_bus_id
    return leased.local_index == device.local_index

"""Which devices a lease request means. Pure.

Rule: a name that means no device is refused with those that do; the uuid of a card means all its MIG instances. A count
means devices that are well and free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from meshwright.errors import InvalidRequestError
from meshwright.planning.selection import Health, select_for_lease
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device
from meshwright.wire.leases import DeviceCount, LeasedDevice, LeaseRequest

NAMED_MOST: Final = 8

View = Callable[[], tuple[Topology, Health]]
"""The devices as plans see them, with their leases and their states."""


def choose_devices(request: LeaseRequest, devices: Sequence[Device], view: View) -> tuple[Device, ...]:
    """Returns the devices that the request means, in the order of the host.

    Raises:
        InvalidRequestError: a device is not there, there is none, or a count is larger than what is there.
        DeviceLeasedError: other leases have too many of the devices for a count.
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
    if isinstance(request.devices, DeviceCount):
        topology, health = view()
        places = select_for_lease(request.devices.count, topology, health, is_preemptible=request.preemptible)
        return tuple(topology.devices[place] for place in sorted(places))
    named = _index(devices)
    wanted = {index for name in request.devices for index in _find(name, named, devices)}
    return tuple(device for device in devices if device.local_index in wanted)


def build_leased(device: Device) -> LeasedDevice:
    """Returns a device as a lease names it."""
    return LeasedDevice(local_index=device.local_index, uuid=device.uuid, pci_bus_id=device.pci_bus_id)


def _index(devices: Sequence[Device]) -> dict[int | str, list[int]]:
    """Returns name → local indices of the devices that it means."""
    named: dict[int | str, list[int]] = {}
    for device in devices:
        names: tuple[int | str, ...] = (device.local_index, *_list_uuids(device))
        for name in names:
            named.setdefault(name, []).append(device.local_index)
    return named


def _find(name: int | str, named: Mapping[int | str, Sequence[int]], devices: Sequence[Device]) -> Sequence[int]:
    if found := named.get(name if isinstance(name, int) else name.lower()):
        return found
    there = ", ".join(str(device.local_index) for device in devices[:NAMED_MOST])
    more = ", …" if len(devices) > NAMED_MOST else ""
    detail = f"devices names {name!r}; this host has {len(devices)} ({there}{more}); a name is a local index or a uuid"
    counted = f'; for {name} devices use {{"count": {name}}}' if isinstance(name, int) and name > 0 else ""
    raise _refuse(detail, f"use {devices[0].uuid or devices[0].local_index!r} or another of GET /devices{counted}")


def _list_uuids(device: Device) -> tuple[str, ...]:
    names = (device.uuid, device.mig.parent_uuid if device.mig else None)
    return tuple(name.lower() for name in names if name)


def _refuse(detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(detail, hint=hint, errors=[{"field": "devices", "message": detail.rpartition("; ")[2]}])

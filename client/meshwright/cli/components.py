"""Finds the component of the host's health for a name: the component's own name, or the index of a device.

Rule: a name listed in /health is that component. Nothing is guessed: an index belongs to one device, whose component is
found by its names (uuid, PCI address).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from meshwright.cli.output import clean
from meshwright.errors import MeshwrightError
from meshwright.wire.devices import Device

if TYPE_CHECKING:
    from meshwright import Client

MOST_NAMED: Final = 16


def find_component(client: Client, name: str) -> str:
    """Returns the component of a name such as "device:3"; the name itself where no component matches.

    Raises:
        MeshwrightError: the agent does not report its health.
    """
    part, _, index = name.partition(":")
    if not (index.isascii() and index.isdigit()):
        return name
    names = list_components(client)
    if name in names:
        return name
    with contextlib.suppress(MeshwrightError):  # no devices are known yet: the name is as good as any
        for device in client.devices().devices:
            if device.local_index == int(index):
                return next((each for each in _list_names(part, device) if each in names), name)
    return name


def _list_names(part: str, device: Device) -> list[str]:
    keys = (device.uuid, device.mig.parent_uuid if device.mig else None, device.pci_bus_id)
    return [f"{part}:{key}" for key in keys if key]


def list_components(client: Client) -> tuple[str, ...]:
    """Returns the names of all components.

    Raises:
        MeshwrightError: the agent does not answer.
    """
    return tuple(component.name for component in client.health().components)


def describe_components(name: str, names: Collection[str]) -> str:
    """Returns which components there are: those of the same kind as the name's, if there are any."""
    kind = name.partition(":")[0]
    alike = [each for each in names if each.partition(":")[0] == kind] or [*names]
    more = f" and {len(alike) - MOST_NAMED} more; `meshwright health` names all" if len(alike) > MOST_NAMED else ""
    return clean(f"there are {', '.join(alike[:MOST_NAMED])}{more}")

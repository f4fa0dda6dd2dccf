"""Identity: what a mesh is called, and what a device is called in a plan and in a running job.

A device has up to three names. Strongest first: its uuid (GPU, MIG instance); slice, coordinates and core (TPU);
granule ordinal and position in the granule, which every device has and of which fingerprints are made. Pure;
knows neither jax nor drivers. Which device of a job a plan means is decided in `meshwright.topology.binding`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

Position = tuple[int, int]
"""(granule ordinal, position in the granule's canonical order): the name that every device has."""

DeviceKey = tuple[int, int]
"""(process index, jax.Device.id): a device of a running job, unique in it."""

PREFIX: Final = "mw1-"


def fingerprint(axes: Sequence[tuple[str, int]], axis_types: Sequence[str], positions: Sequence[Position]) -> str:
    """Returns the name of a mesh: "mw1-" and 32 hexadecimal digits, equal for equal meshes on any host.

    Args:
        axes: (name, size), outermost first.
        axis_types: "auto", "explicit" or "manual", one an axis.
        positions: where the device at each mesh position stands, row-major; as many as the sizes' product.

    Raises:
        ValueError: the three do not fit each other.
    """
    if len(axis_types) != len(axes) or math.prod(size for _, size in axes) != len(positions):
        raise ValueError(
            f"{len(axes)} axes with {len(axis_types)} types and {len(positions)} devices make no mesh; "
            f"there must be one type an axis and as many devices as the product of the sizes"
        )
    head = json.dumps([[name, size, kind] for (name, size), kind in zip(axes, axis_types, strict=True)])
    body = " ".join(f"{granule}.{position}" for granule, position in positions)
    return PREFIX + hashlib.sha256(f"{head}\n{body}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class JobDevice:
    """A device of a running job, as the process that owns it describes it to the others.

    Attributes:
        process: the owner's index in the job.
        id: jax.Device.id; may start anywhere and have holes.
        host: equal for two processes exactly when they run on one machine (its boot id, else its name).
        platform: "cpu", "gpu" or "tpu".
        uuid: of the GPU or MIG instance, where the driver told.
        coords, core_on_chip, slice_index: of a TPU, as JAX says them.
        host_position: its place among all such devices of the host, also those that the job does not see.
    """

    process: int
    id: int
    host: str
    platform: str
    uuid: str | None = None
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    slice_index: int | None = None
    host_position: int | None = None

    @property
    def key(self) -> DeviceKey:
        """Its name inside the job."""
        return self.process, self.id

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobDevice:
        """Returns the device that `to_json` wrote.

        Raises:
            TypeError: a field is missing or unknown, as when another release wrote it.
        """
        coords = data.get("coords")
        return cls(**{**data, "coords": None if coords is None else tuple(coords)})

    def __str__(self) -> str:
        place = self.uuid or (f"coords {write_chip(self.coords, self.core_on_chip)}" if self.coords else "")
        return f"{place or 'device'} (id {self.id} of process {self.process})"


def number_devices(job: Iterable[JobDevice]) -> dict[DeviceKey, Position]:
    """Returns the granule and position of each device of a job that no plan has told anything about.

    Granules: TPU slices by index, else hosts by their first process. Positions: the place on the host where
    the driver told it, else the canonical order among the job's devices: x, y, z counting x fastest, then
    core (TPU); process, then id.
    """
    places: dict[DeviceKey, Position] = {}
    for ordinal, members in enumerate(group_devices(job)):
        told = [member.host_position for member in members if member.host_position is not None]
        positions = told if len(set(told)) == len(members) else range(len(members))
        places |= {member.key: (ordinal, position) for member, position in zip(members, positions, strict=True)}
    return places


def group_devices(job: Iterable[JobDevice]) -> list[list[JobDevice]]:
    """Returns the job's granules in their order, each in canonical order."""
    groups: dict[Hashable, list[JobDevice]] = defaultdict(list)
    for device in sorted(job, key=_canonical):
        groups[device.host if device.coords is None else (device.slice_index or 0)].append(device)
    return sorted(groups.values(), key=lambda group: (group[0].slice_index or 0, min(d.process for d in group)))


def _canonical(device: JobDevice) -> tuple[Any, ...]:
    if device.coords is not None:
        return (device.slice_index or 0, *reversed(device.coords), device.core_on_chip or 0)
    return device.process, device.id


def write_chip(coords: tuple[int, ...] | None, core: int | None) -> str:
    """Returns a core of a TPU chip as people write it: "(0,1,2) core 0"."""
    return f"({','.join(map(str, coords or ()))}) core {core or 0}"

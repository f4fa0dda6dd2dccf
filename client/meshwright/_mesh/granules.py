"""Granules of a running job: which of its devices a fast network joins, and the planner's order over them.

Rule: slices are granules where there are several. Inside one slice, TPUs are one torus, of however many hosts, and GPUs
one fast domain (JAX numbers a host or an NVLink fabric as a slice): one granule. Else processes are granules.
Independent of axis types; builds no `Mesh`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from meshwright._warning import warn
from meshwright.planning.device_order import order_group
from meshwright.planning.granules import Weights, order_granules, split_axes, weigh_axes
from meshwright.planning.torus import cut_torus, list_grid
from meshwright.spec import MeshSpec
from meshwright.topology.model import Topology
from meshwright.topology.torus import Grid, build_grid, build_place, find_rings
from meshwright.wire.devices import Device, Granule, parse_platform

NUM_SLICES: Final = "MEGASCALE_NUM_SLICES"
"""How many slices a job has, as launchers of multi-slice TPU jobs set it."""


@dataclass(frozen=True)
class Layout:
    """The requested layout of devices.

    Attributes:
        dcn: how each axis is split over granules, one entry may be -1; None: chosen here.
        is_sorted: granules are in the order of their key (slice or process index), otherwise in the order of the
            devices.
        split: a dimension of a torus may be shared by several axes.
    """

    dcn: tuple[int, ...] | None = None
    is_sorted: bool = True
    split: bool = True


def order_devices(spec: MeshSpec, devices: Sequence[Any], layout: Layout, slices: str = "") -> tuple[Any, ...]:
    """Returns the devices in mesh order, row-major.

    Args:
        spec: without -1; it has one place for each device.
        devices: `jax.Device`s of one platform, each once.
        layout: the requested layout.
        slices: their number from the environment; "" where it is not set.

    Raises:
        ValueError: the split over granules does not fit, or a torus would have to be split and this is not allowed.
    """
    granules = group_devices(devices, is_sorted=layout.is_sorted, slices=slices)
    weights = weigh_axes(spec.names, spec.sizes)
    counts = [len(granule) for granule in granules]
    dcn = read_dcn(layout.dcn, spec, counts)
    if len(set(counts)) > 1:
        warn(
            f"mesh {spec} lies on granules (slices or processes) of {counts} devices: its axes cross them unevenly; "
            f"for an even mesh choose as many devices on each",
            UserWarning,
        )

    def order_one(sizes: tuple[int, ...], weights: Weights, members: Sequence[Any]) -> Sequence[Any]:
        return _order_granule(spec, sizes, weights, members, split=layout.split)

    return order_granules(spec.sizes, weights, granules, order_one, dcn)


def group_devices(devices: Sequence[Any], *, is_sorted: bool = True, slices: str = "") -> list[list[Any]]:
    """Returns the devices by granule, each granule in the given order.

    Raises:
        ValueError: the environment has a number of slices that the devices cannot have.
    """
    told = [getattr(device, "slice_index", None) for device in devices]
    known = [index for index in told if index is not None]
    keys = known if len(known) == len(told) else _deal_slices(devices, slices) or [0] * len(told)
    is_joined = devices[0].platform == "tpu" or (devices[0].platform == "gpu" and None not in told)
    if len(set(keys)) == 1 and not is_joined:
        keys = [device.process_index for device in devices]
    groups: dict[int, list[Any]] = defaultdict(list)
    for key, device in zip(keys, devices, strict=True):
        groups[key].append(device)
    return [groups[key] for key in (sorted(groups) if is_sorted else groups)]


def _deal_slices(devices: Sequence[Any], slices: str) -> list[int] | None:
    """Returns the slice of each device by the environment: equal runs in the order of process and id."""
    if slices in {"", "1"}:
        return None
    everyone = _list_job(devices)
    is_one_process = devices[0].platform != "tpu" and len({device.process_index for device in everyone}) == 1
    count = int(slices) if slices.isascii() and slices.isdigit() and len(slices) < 10 else 0
    if is_one_process and count > 1 and len(everyone) % count:
        return None  # the CPU of one process of a job on other devices; the number means the slices of those
    if count < 1 or len(everyone) % count:
        raise ValueError(
            f"{NUM_SLICES} is {slices!r}; the job has {len(everyone)} devices, which do not say their slice; slices "
            f"are equal parts of them; unset it, or set it to a number that divides {len(everyone)}, such as 1"
        )
    ranked = sorted(everyone, key=lambda device: (device.process_index, device.id))
    dealt = {device: rank * count // len(ranked) for rank, device in enumerate(ranked)}
    return [dealt[device] for device in devices]


def _list_job(devices: Sequence[Any]) -> Sequence[Any]:
    """Returns all devices of the job that these are of."""
    client = getattr(devices[0], "client", None)
    return devices if client is None else list(client.devices())


def read_dcn(asked: Sequence[int] | None, spec: MeshSpec, counts: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the number of granules that each axis is split over; None where nothing was requested, and `split_axes`
    chooses.

    With a single granule there is nothing to split: any request is accepted, with a warning.

    Args:
        asked: one entry per axis, one may be -1; None: chosen here.
        spec: without -1.
        counts: the number of devices of each granule.

    Raises:
        ValueError: granules of different sizes; or the entries do not match the axes, do not divide the sizes, or do
            not multiply to the granules.
    """
    if asked is None:
        return None
    parts, count = list(asked), len(counts)
    if len(set(counts)) > 1:
        raise ValueError(
            f"dcn_mesh_dims is {tuple(asked)} for mesh {spec}; the {count} granules have {list(counts)} devices; "
            f"a split over granules needs as many on each; use dcn_mesh_dims=None, or choose devices of equal granules"
        )
    product = math.prod(size for size in parts if size != -1)
    if -1 in parts and product > 0 and count % product == 0:
        parts[parts.index(-1)] = count // product
    is_split = len(parts) == len(spec.sizes) and min(parts, default=0) > 0 and math.prod(parts) == count
    if is_split and all(size % part == 0 for size, part in zip(spec.sizes, parts, strict=True)):
        return tuple(parts)
    if count == 1:
        warn(
            f"dcn_mesh_dims is {tuple(asked)} for mesh {spec}; all devices are in one granule (one slice, or one "
            f"process), so there is nothing to split and dcn_mesh_dims has no effect here",
            UserWarning,
        )
        return None
    raise ValueError(
        f"dcn_mesh_dims is {tuple(asked)} for mesh {spec}; there are {count} granules (slices, or processes without a "
        f"fast network between them); it has one entry an axis, each divides its axis, and together they multiply to "
        f"{count}; use {split_axes(spec.sizes, count)} or None"
    )


def _order_granule(
    spec: MeshSpec, sizes: tuple[int, ...], weights: Weights, granule: Sequence[Any], *, split: bool
) -> Sequence[Any]:
    """Returns one granule's devices in the order of a mesh of these sizes: a torus is cut, others stay as given."""
    if granule[0].platform != "tpu" or len(granule) < 3:
        return granule
    grid = read_device_grid(granule)
    if grid is None:
        order, _ = order_group(sizes, weights, read_topology(granule), range(len(granule)))
        return [granule[rank] for rank in order]
    cut = cut_torus(sizes, grid.dimensions, weights.inside, split=split)
    if cut is None:
        raise ValueError(
            f"mesh {spec} would share a dimension of the torus between axes, and allow_split_physical_axes is False; "
            f"each axis must then be whole dimensions of it; use allow_split_physical_axes=True"
        )
    return [granule[rank] for rank in list_grid(cut, grid)]


def read_device_grid(devices: Sequence[Any]) -> Grid | None:
    """Returns the box that the devices of one TPU slice fill; None where they do not fill a box."""
    places = [build_place(getattr(device, "coords", None), getattr(device, "core_on_chip", None)) for device in devices]
    kind = devices[0].device_kind
    return build_grid(places, range(len(devices)), lambda sizes: find_rings(kind, sizes))


def read_topology(devices: Sequence[Any]) -> Topology:
    """Returns the devices of one TPU slice in the planner's form; links follow from the coordinates."""
    now = datetime.now(UTC)
    seen = [_read_device(rank, device, now) for rank, device in enumerate(devices)]
    return Topology(tuple(seen), granules=(Granule(ordinal=0, kind="slice", name="", device_count=len(seen)),))


def _read_device(rank: int, device: Any, now: datetime) -> Device:
    coords = getattr(device, "coords", None)
    return Device(
        host="",
        local_index=rank,
        position=rank,
        platform=parse_platform(device.platform),
        kind=device.device_kind,
        coords=None if coords is None else tuple(coords),
        core_on_chip=getattr(device, "core_on_chip", None),
        basis="live",
        observed_at=now,
        age_s=0.0,
    )

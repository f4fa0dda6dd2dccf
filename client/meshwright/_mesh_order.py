"""The planner's order over the devices of a running job, and its granules: which devices a fast network joins.

Slices are granules where there are several. Inside one slice, TPUs are one torus, of however many hosts, and GPUs one
fast domain (JAX numbers a host or an NVLink fabric as a slice): one granule. Else processes are granules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from meshwright._jax_devices import Device, warn
from meshwright.planning.device_order import order_group
from meshwright.planning.granules import Weights, order_granules, split_axes, weigh_axes
from meshwright.planning.torus import cut_torus, list_grid
from meshwright.spec import MeshSpec
from meshwright.topology.model import Topology
from meshwright.topology.torus import build_grid, build_place, find_rings
from meshwright.wire import devices as wire

NUM_SLICES: Final = "MEGASCALE_NUM_SLICES"
"""How many slices a job has, as launchers of multi-slice TPU jobs set it."""


def order_devices(
    spec: MeshSpec,
    devices: Sequence[Device],
    *,
    dcn: Sequence[int] | None = None,
    is_sorted: bool = True,
    may_split: bool = True,
    slices: str = "",
) -> tuple[Device, ...]:
    """Returns the devices in mesh order, row-major.

    Args:
        spec: without -1; it has one place for each device.
        devices: of one platform, each once.
        dcn: how each axis is split over granules, one entry may be -1; None: chosen here.
        is_sorted: granules are in the order of their key (slice or process index), otherwise in that of the devices.
        may_split: a dimension of a torus may be shared by several axes.
        slices: their number from the environment; "" where it is not set.

    Raises:
        ValueError: the split over granules does not fit, or a torus would have to be split and this is not allowed.
    """
    granules = group_devices(devices, is_sorted=is_sorted, slices=slices)
    counts = [len(granule) for granule in granules]
    split = None if dcn is None else _read_dcn(dcn, spec, counts)
    if len(set(counts)) > 1:
        warn(
            f"mesh {spec} lies on granules (slices or processes) of {counts} devices: its axes cross them unevenly; "
            f"for an even mesh choose as many devices on each",
            UserWarning,
        )

    order_one = partial(_order_granule, spec, may_split)
    return order_granules(spec.sizes, weigh_axes(spec.names, spec.sizes), granules, order_one, split)


def group_devices(devices: Sequence[Device], *, is_sorted: bool = True, slices: str = "") -> list[list[Device]]:
    """Returns the devices by granule, each granule in the given order.

    Raises:
        ValueError: the environment has a number of slices that the devices cannot have.
    """
    known: list[Any] = [getattr(device, "slice_index", None) for device in devices]
    keys = _deal_slices(devices, slices) if None in known else known
    is_joined = devices[0].platform == "tpu" or (devices[0].platform == "gpu" and None not in known)
    if len(set(keys)) == 1 and not is_joined:
        keys = [device.process_index for device in devices]
    groups: dict[int, list[Device]] = {}
    for key, device in zip(keys, devices, strict=True):
        groups.setdefault(key, []).append(device)
    return [groups[key] for key in (sorted(groups) if is_sorted else groups)]


def _deal_slices(devices: Sequence[Device], slices: str) -> list[int]:
    """Returns the slice of each device by the environment: equal runs in the order of process and id."""
    if slices in {"", "1"}:
        return [0] * len(devices)
    client = getattr(devices[0], "client", None)
    job = devices if client is None else client.devices()
    count = int(slices) if slices.isascii() and slices.isdigit() and len(slices) < 10 else 0
    if count < 1 or len(job) % count:
        is_other = devices[0].platform != "tpu" and len({device.process_index for device in job}) == 1
        if is_other and count > 1:  # the CPU of one process of a job on other devices; the number means their slices
            return [0] * len(devices)
        raise ValueError(
            f"{NUM_SLICES} is {slices!r}; the job has {len(job)} devices, which do not say their slice; slices are "
            f"equal parts of them; unset it, or set it to a number that divides {len(job)}, such as 1"
        )
    ranked = sorted(job, key=lambda device: (device.process_index, device.id))
    ranks = {device: rank * count // len(ranked) for rank, device in enumerate(ranked)}
    return [ranks[device] for device in devices]


def _read_dcn(asked: Sequence[int], spec: MeshSpec, counts: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the number of granules that each axis is split over; `counts` has the devices of each granule.

    With a single granule there is nothing to split: any request is accepted, with a warning, and the result is None.
    """
    parts, count, is_even = list(asked), len(counts), len(set(counts)) == 1
    product = math.prod(size for size in parts if size != -1)
    if -1 in parts and product > 0 and count % product == 0:
        parts[parts.index(-1)] = count // product
    is_split = len(parts) == len(spec.sizes) and min(parts, default=0) > 0 and math.prod(parts) == count
    if is_even and is_split and all(size % part == 0 for size, part in zip(spec.sizes, parts, strict=True)):
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
        f"fast network between them) of {list(counts)} devices, which must have as many each; it has one entry an "
        f"axis, each divides its axis, and together they multiply to {count}; use "
        f"{f'{split_axes(spec.sizes, count)} or ' if is_even else ''}None"
    )


def _order_granule(
    spec: MeshSpec, may_split: bool, sizes: tuple[int, ...], weights: Weights, granule: Sequence[Device]
) -> Sequence[Device]:
    """Returns one granule's devices in the order of a mesh of these sizes: a torus is cut, others stay as given."""
    if granule[0].platform != "tpu" or len(granule) < 3:
        return granule
    kind = granule[0].device_kind
    places = [build_place(getattr(device, "coords", None), getattr(device, "core_on_chip", None)) for device in granule]
    grid = build_grid(places, range(len(granule)), lambda dimensions: find_rings(kind, dimensions))
    if grid is None:  # the devices do not fill a box
        order, _ = order_group(sizes, weights, _build_topology(granule), range(len(granule)))
        return [granule[rank] for rank in order]
    cut = cut_torus(sizes, grid.dimensions, weights.inside, split=may_split)
    if cut is None:
        raise ValueError(
            f"mesh {spec} would share a dimension of the torus between axes, and allow_split_physical_axes is False; "
            f"each axis must then be whole dimensions of it; use allow_split_physical_axes=True"
        )
    return [granule[rank] for rank in list_grid(cut, grid)]


def _build_topology(devices: Sequence[Device]) -> Topology:
    """Returns the devices of one TPU slice in the planner's form; links follow from the coordinates."""
    now = datetime.now(UTC)
    seen = [
        wire.Device(
            host="",
            local_index=rank,
            position=rank,
            platform="tpu",
            kind=device.device_kind,
            coords=None if getattr(device, "coords", None) is None else tuple(device.coords),
            core_on_chip=getattr(device, "core_on_chip", None),
            basis="live",
            observed_at=now,
            age_s=0.0,
        )
        for rank, device in enumerate(devices)
    ]
    return Topology(tuple(seen), granules=(wire.Granule(ordinal=0, kind="slice", name="", device_count=len(seen)),))

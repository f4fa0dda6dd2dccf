"""What each parallel axis runs over: its part inside a node or slice, and its part across the network.

Rule: axes are laid from the inside out, tensor first and pipeline last, as ranks are numbered by every launcher and as
`planning.order` weighs them; so the axis with the most traffic has the fastest wires. Sizes only: which device stands
where is the order's affair, and a plan that has an order is priced by `read_spans`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

from meshwright.planning.cost.collectives import (
    Figure,
    Flags,
    Operation,
    Wire,
    calibrate,
    network_wire,
    switch_wire,
    time_all_gather,
    time_all_gather_across,
    time_all_reduce,
    time_all_reduce_across,
    time_all_to_all,
    time_all_to_all_across,
    time_permute,
    torus_wire,
)
from meshwright.planning.cost.layout import Layout, Numbers
from meshwright.topology.chips import Chip, find_chip
from meshwright.wire.mesh import Plan, PlanAxis, PlanGranule

AXES: Final = ("tp", "cp", "ep", "fsdp", "dp", "pp")
"""From the inside out."""

NETWORK_BYTES_PER_S: Final = 12.5e9
"""A device's share of the network between hosts where the chip table has none: a NIC of 100 Gbit/s."""

_INSIDE: Final[Mapping[str, Callable[[Numbers, Wire], Figure]]] = {
    "all_reduce": time_all_reduce,
    "all_gather": time_all_gather,
    "reduce_scatter": time_all_gather,
    "all_to_all": time_all_to_all,
}
_ACROSS: Final[Mapping[str, Callable[..., Figure]]] = {
    "all_reduce": time_all_reduce_across,
    "all_gather": time_all_gather_across,
    "reduce_scatter": time_all_gather_across,
    "all_to_all": time_all_to_all_across,
}


@dataclass(frozen=True)
class Span:
    """The wires of one axis.

    Attributes:
        inner: among the devices of a group that share a node or slice.
        outer: among nodes or slices; of size 1 where a group stays in one.
        family, platform: whose measured rates count (`reached.csv`).
        is_partial: whether a group that crosses has several devices of a node, but not all of them.
    """

    inner: Wire
    outer: Wire
    family: str
    platform: Literal["gpu", "tpu"]
    is_partial: Flags = False

    def time(self, operation: Operation, byte_count: Any) -> Any:
        """Returns the seconds of a collective on this many bytes of the whole array; see `collectives`."""
        inner = calibrate(self.inner, self.family, self.platform, operation)
        if np.all(np.equal(self.outer.size, 1)):
            return _INSIDE[operation](byte_count, inner)
        outer = calibrate(self.outer, self.family, self.platform, operation, "across")
        across = _ACROSS[operation](byte_count, inner, outer, pipelined=self.platform == "gpu")
        return np.where(np.equal(self.outer.size, 1), _INSIDE[operation](byte_count, inner), across)

    def send(self, byte_count: Any) -> Any:
        """Returns the seconds in which a device sends this many bytes to its neighbour on the axis."""
        inner = time_permute(byte_count, calibrate(self.inner, self.family, self.platform, "all_gather"))
        outer = time_permute(byte_count, calibrate(self.outer, self.family, self.platform, "all_gather", "across"))
        return np.maximum(inner, outer)


Spans = Mapping[str, Span]
"""By axis: each of `AXES`."""


def lay_on_hosts(
    layout: Layout, family: str, host_size: Numbers, inside_bytes_per_s: float, across_bytes_per_s: float
) -> Spans:
    """Returns what the axes run over on hosts of GPUs.

    Args:
        layout: sizes of the axes.
        family: of the chip.
        host_size: GPUs that NVLink or PCIe joins: of a host, or of an NVLink domain over several.
        inside_bytes_per_s: of one GPU to the others of its host, one way.
        across_bytes_per_s: one GPU's share of the network, one way.
    """
    spans, inside = {}, np.asarray(1.0)
    for axis in AXES:
        size = np.asarray(getattr(layout, axis), dtype=np.float64)
        held = np.clip(host_size // inside, 1, size)
        held = np.where(size % held == 0, held, _find_divisor(size, held))
        inner, outer = switch_wire(inside_bytes_per_s, held), network_wire(across_bytes_per_s, size / held)
        spans[axis] = Span(inner, outer, family, "gpu", (held > 1) & (held < host_size) & (size > held))
        inside = inside * size
    return spans


def _find_divisor(size: Any, most: Any) -> Any:
    return np.gcd(np.asarray(size, dtype=np.int64), np.asarray(np.maximum(most, 1), dtype=np.int64)).astype(float)


def lay_on_torus(
    layout: Layout,
    family: str,
    shape: Sequence[int],
    wraps: Sequence[bool],
    link_bytes_per_s: float,
    across_bytes_per_s: float,
    devices_per_chip: int = 1,
) -> Spans:
    """Returns what the axes run over on TPU slices.

    Args:
        layout: sizes of the axes.
        family: of the chip.
        shape: of one slice, in chips.
        wraps: which of its dimensions close to rings.
        link_bytes_per_s: one device's share of one ICI link, one way.
        across_bytes_per_s: one device's share of the network between slices, one way.
        devices_per_chip: JAX devices of a chip, which stand side by side and have its links in common.

    Raises:
        ValueError: not as many wraps as dimensions, or a rate that no wire has.
    """
    sizes = np.broadcast_arrays(*(np.asarray(getattr(layout, axis), dtype=np.int64) for axis in AXES))
    unique, back = np.unique(np.stack([np.ravel(size) for size in sizes], axis=1), axis=0, return_inverse=True)
    cuts = [cut_torus(tuple(map(int, row)), tuple(shape), tuple(wraps), devices_per_chip) for row in unique]
    form = sizes[0].shape

    def spread(values: Sequence[Any]) -> Any:
        return np.moveaxis(np.asarray(values)[np.ravel(back)].reshape(*form, -1), -1, 0)

    spans = {}
    for place, axis in enumerate(AXES):
        parts = [cut[place] for cut in cuts]
        dims, rings, strides = (
            spread([getattr(part, name) for part in parts]) for name in ("dims", "rings", "strides")
        )
        outer = np.asarray([part.slices for part in parts])[np.ravel(back)].reshape(form)
        inner = torus_wire(link_bytes_per_s, list(dims), list(rings), strides=list(strides))
        spans[axis] = Span(inner, network_wire(across_bytes_per_s, outer), family, "tpu")
    return spans


CORE_STRIDE: Final = 0.5
"""Hops between two devices of one chip: they count as two links, as in `planning.order`."""


@dataclass(frozen=True)
class Cut:
    """Where a group of one axis stands in a torus; the dimension after the torus' own are the devices of a chip.

    Attributes:
        dims: devices of the group along each dimension.
        rings: which of these close.
        strides: hops from one to the next; inner axes stand between them.
        slices: over how many slices the group goes.
    """

    dims: tuple[int, ...]
    rings: tuple[bool, ...]
    strides: tuple[float, ...]
    slices: int


@lru_cache(maxsize=65536)
def cut_torus(sizes: tuple[int, ...], shape: tuple[int, ...], wraps: tuple[bool, ...], cores: int) -> tuple[Cut, ...]:
    """Returns how axes of these sizes, the innermost first, divide a slice.

    An axis takes whole dimensions where they make its size, else the block with the most links to each of its devices:
    8 of 16×16 stand 4×2. Outer axes step over what inner ones took. What does not fit crosses slices.

    Agrees with the orders of `planning.mesh_plan` on meshes that fill a slice, but for some in which an axis steps over
    parts of three dimensions; a plan that has its order is read by `read_spans`.
    """
    full = (*shape, cores)
    used, found = (1,) * len(full), []
    for size in sizes:
        dims = _choose_block(size, full, used, (*wraps, False))
        found.append(
            Cut(
                dims,
                tuple(_close(full, used, (*wraps, False), dims)),
                tuple(_step_over(used, len(shape))),
                size // math.prod(dims),
            )
        )
        used = tuple(part * taken for part, taken in zip(dims, used, strict=True))
    return tuple(found)


Sizes = tuple[int, ...]


@lru_cache(maxsize=65536)
def _choose_block(size: int, full: Sizes, used: Sizes, wraps: tuple[bool, ...]) -> Sizes:
    left = [whole // taken for whole, taken in zip(full, used, strict=True)]
    inside = math.gcd(size, math.prod(left))
    if inside == 1:
        return (1,) * len(full)
    strides = _step_over(used, len(full) - 1)

    def judge(dims: Sizes) -> tuple[bool, float, int, Sizes]:
        cut = sum(1 < part < there for part, there in zip(dims, left, strict=True))
        rings = _close(full, used, wraps, dims)
        links = [(1 + ring) / stride for part, ring, stride in zip(dims, rings, strides, strict=True) if part > 1]
        return not cut, sum(links), -cut, dims

    return max(_list_blocks(inside, left), key=judge, default=(1,) * len(full))


def _close(full: Sizes, used: Sizes, wraps: Sequence[bool], dims: Sizes) -> list[bool]:
    places = zip(full, used, wraps, dims, strict=True)
    return [wrap and part > 2 and part * taken == whole for whole, taken, wrap, part in places]


def _step_over(used: Sizes, cores_at: int) -> list[float]:
    return [*map(float, used[:cores_at]), CORE_STRIDE]


def _list_blocks(size: int, left: Sequence[int]) -> Iterator[Sizes]:
    """Yields the ways to write a size as a product of divisors of what is left of each dimension."""
    if not left:
        if size == 1:
            yield ()
        return
    if math.prod(left) % size == 0:
        for part in _list_divisors(math.gcd(size, left[0])):
            yield from ((part, *rest) for rest in _list_blocks(size // part, left[1:]))


@lru_cache(maxsize=4096)
def _list_divisors(size: int) -> Sizes:
    return tuple(part for part in range(1, size + 1) if size % part == 0)


def read_spans(plan: Plan, names: Mapping[str, str] | None = None, *, domain: int | None = None) -> Spans:
    """Returns what the axes of a made plan run over, in its real order; an axis of `AXES` that it has not is of size 1.

    Args:
        plan: on a known chip.
        names: what the plan calls each of `AXES` that it has; None: as they are called here.
        domain: GPUs that a fast network joins; None: those of a granule.

    Raises:
        ValueError: the plan is on no chip that the chip table has, or has no granules.
    """
    kind = plan.granules[0].device_kind if plan.granules else None
    chip = find_chip(kind) if kind else None
    if chip is None:
        raise ValueError(f"a plan for {kind or 'nothing'} has no known wires; read_spans needs one for a known chip")
    found = {axis.name: axis for axis in plan.axes}
    called = {axis: (names or {}).get(axis, axis) for axis in AXES}
    axes = {axis: found.get(name, PlanAxis(name=name, size=1)) for axis, name in called.items()}
    granule = plan.granules[0]
    if chip.platform == "tpu":
        return {axis: _read_torus_span(made, granule, chip) for axis, made in axes.items()}
    return {axis: _read_host_span(made, domain or granule.device_count, chip) for axis, made in axes.items()}


def _read_host_span(axis: PlanAxis, domain: int, chip: Chip) -> Span:
    """Returns the wires of one axis over GPUs: what the plan found between neighbours that share no NVLink."""
    inside = axis.size // axis.dcn_size
    across = chip.scaleout_bytes_per_s or NETWORK_BYTES_PER_S
    rate = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s or across
    if axis.link in ("pcie", "host") and axis.bandwidth_bytes_per_s:
        rate = min(rate, axis.bandwidth_bytes_per_s)
    is_partial = axis.dcn_size > 1 and 1 < inside < domain
    return Span(switch_wire(rate, inside), network_wire(across, axis.dcn_size), chip.family, "gpu", is_partial)


def _read_torus_span(axis: PlanAxis, granule: PlanGranule, chip: Chip) -> Span:
    """Returns the wires of one axis: as many links as its devices have in the plan, rings where it goes all round."""
    inside, shared = axis.size // axis.dcn_size, chip.jax_devices_per_chip
    link = (chip.link_bytes_per_s or 0.0) / shared
    dims = [*(axis.group_shape or ()), 1]
    dims[-1] = max(1, inside // math.prod(dims))
    closed = [whole == part for whole, part in zip(granule.shape or (), dims, strict=False)]
    wraps = [wrap and ring for wrap, ring in zip(granule.wrap or (), closed, strict=False)]
    wraps += [False] * (len(dims) - len(wraps))
    inner = torus_wire(link, dims, wraps) if math.prod(dims) == inside else torus_wire(link, [inside], [False])
    if axis.links:
        more = link * axis.links / float(np.asarray(inner.bytes_per_s))
        middle = np.asarray(inner.middle_bytes_per_s) * more
        inner = replace(inner, bytes_per_s=link * axis.links, middle_bytes_per_s=middle)
    across = (chip.scaleout_bytes_per_s or link) / shared
    return Span(inner, network_wire(across, axis.dcn_size), chip.family, "tpu")

"""The time of a collective: its bytes over the links of its group, and its steps.

A time is the start of the collective, its steps, and its bytes over the links that it uses at once. Figures in, seconds
out, each one number or an array over candidates. Independent of chips and meshes: `Wire` has all figures. The real
rates of wires are in `reached.py`. A collective of no bytes, or over a group of one device, takes exactly 0 s.

Source: jax-ml/scaling-book at 0819a7d8, sharding.md (torus), and at 1a55377a, gpus.md (switches, several nodes).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.planning.cost.layout import Numbers
from meshwright.topology.chips import read_table

Figure = float | NDArray[np.float64]
"""A result: one number where all that went in were numbers, else an array over candidates."""

Flags = bool | NDArray[np.bool_]
"""Yes or no, or one a candidate."""


def read_figure(value: ArrayLike) -> NDArray[np.float64]:
    """Returns the argument of a formula as an array, without dimensions for a single number."""
    return np.asarray(value, dtype=np.float64)


def give_figure(value: NDArray[np.float64]) -> Figure:
    """Returns a plain number for an array without dimensions, any other as it is."""
    return value if np.ndim(value) else float(value)


ICI_HOP_S: Final = 1e-6
"""Of one hop between TPU chips. Source: jax-ml/scaling-book, sharding.md, "A note on ICI latency"."""

NVLINK_HOP_S: Final = 2.0e-6
"""Of one step of NCCL's ring inside a node. Source: fit to A100 (`reached.csv`); NCCL itself assumes 1.9 µs
(LL128) to 3.4 µs (Simple): NVIDIA/nccl at 01afd20a, src/graph/tuning.cc, hwLat."""

NETWORK_HOP_S: Final = 8.5e-6
"""Of one step of NCCL's tree between nodes. Source: NVIDIA/nccl at 01afd20a, src/graph/tuning.cc, hwLat (LL128)."""


@dataclass(frozen=True)
class Wire:
    """The links between the devices of one mesh axis's group.

    Attributes:
        size: devices in the group.
        bytes_per_s: into one device from its group, one way, over all links that a collective uses at once: both ways
            round a ring and all dimensions of a torus together; one link of a line.
        middle_bytes_per_s: one way from one half of the group to the other, where a quarter of an all-to-all crosses.
            Infinite behind a non-blocking switch.
        neighbor_bytes_per_s: from one device to the next of its group, one way; None: `bytes_per_s`.
        hops: sequential steps of an all-gather: n ÷ 2 round a ring both ways, n − 1 along a line or one way round, over
            several dimensions their sum.
        neighbor_hops: steps from one device to the next of its group.
        hop_s: latency of one step.
        start_s: time before the first byte: launch and protocol.
        ramp_s_per_root_byte: added for each √byte that comes into a device: messages reach full speed slowly.
        reached_ratio: part of the rates that long messages reach.
        is_ring: whole parts go both ways round, so that the last one of an even ring may come from both sides.
        hides_latency: steps overlap with the bytes under way, so that the longer of both counts; else their sum.
    """

    size: Numbers
    bytes_per_s: Numbers
    middle_bytes_per_s: Numbers = float("inf")
    neighbor_bytes_per_s: Numbers | None = None
    hops: Numbers = 0
    neighbor_hops: Numbers = 1
    hop_s: Numbers = 0.0
    start_s: Numbers = 0.0
    ramp_s_per_root_byte: Numbers = 0.0
    reached_ratio: Numbers = 1.0
    is_ring: Flags = False
    hides_latency: Flags = False

    @property
    def gathered_ratio(self) -> Figure:
        """The part of the whole array that comes into a device when it is gathered.

        All but its own, (n − 1) ÷ n; round a ring 2⌊n ÷ 2⌋ ÷ n, which is 1 for even n.

        Source: sharding.md: ⌊n ÷ 2⌋ hops, each with one part in either direction.
        """
        size = read_figure(self.size)
        return give_figure(np.where(self.is_ring, 2 * (size // 2), size - 1) / size)


def time_all_gather(byte_count: Numbers, wire: Wire) -> Figure:
    """Returns the seconds in which every device gets all parts of an array.

    Round rings V ÷ W with W both ways and all wrapped dimensions together, whatever the size of the group; along a
    line, or behind a switch, V·(n − 1) ÷ (n·W). At least the steps' latency, or that on top.

    Args:
        byte_count: of the whole array, gathered (V).
        wire: the links of the group.

    Source: sharding.md, "How is an AllGather actually performed?"; gpus.md, "Intra-node collectives".
    """
    return _time(wire, read_figure(byte_count) * wire.gathered_ratio, read_figure(wire.hops))


def time_all_reduce(byte_count: Numbers, wire: Wire) -> Figure:
    """Returns the seconds of a reduce-scatter and an all-gather in one: twice the bytes and the steps, one start.

    Args:
        byte_count: of the array that each device has, before and after.
        wire: the links of the group.

    Source: sharding.md, Case 3; gpus.md, "Intra-node collectives" (without reductions in the switch).
    """
    return _time(wire, 2 * read_figure(byte_count) * wire.gathered_ratio, 2 * read_figure(wire.hops))


def time_all_to_all(byte_count: Numbers, wire: Wire) -> Figure:
    """Returns the seconds in which every device sends each other one its part.

    Bound by the bytes into a device, V·(n − 1) ÷ (n²·W), or by the bytes across the middle, V ÷ (4·W_middle): a quarter
    of an all-gather's on a ring, n times less on a switch.

    Args:
        byte_count: of the whole array over all devices (V): n times the part of one device.
        wire: the links of the group.

    Source: sharding.md, "Our final communication primitive: the AllToAll", and its count of chunks; gpus.md, AllToAlls.
    """
    size = read_figure(wire.size)
    crossing = read_figure(wire.bytes_per_s) / read_figure(wire.middle_bytes_per_s) / 4
    return _time(wire, read_figure(byte_count) * np.maximum((size - 1) / size**2, crossing), read_figure(wire.hops))


def time_permute(byte_count: Numbers, wire: Wire) -> Figure:
    """Returns the seconds in which every device sends to the next one: a ring's shift, or from one stage to the next.

    Args:
        byte_count: bytes that one device sends.
        wire: the links of the group.

    Source: tpus.md, Question 5: the first byte comes after the latency, the others at the link's rate.
    """
    rate = wire.bytes_per_s if wire.neighbor_bytes_per_s is None else wire.neighbor_bytes_per_s
    step = replace(wire, bytes_per_s=rate, hides_latency=False)
    return _time(step, read_figure(byte_count), read_figure(wire.neighbor_hops))


def time_all_gather_across(byte_count: Numbers, inner: Wire, outer: Wire, *, pipelined: Flags = True) -> Figure:
    """Returns the seconds of an all-gather, or a reduce-scatter, over several nodes.

    Devices of the same place in each node gather across, each its 1 ÷ g of the array; then the node gathers.

    Args:
        byte_count: of the whole array, gathered.
        inner: the g devices of one node.
        outer: devices of the same place in each node; `bytes_per_s` is one device's share of the network.
        pipelined: both go on at the same time, so that the longer counts (NCCL); else one after the other (XLA's TPU
            compiler over slices).

    Source: gpus.md, "Cross-node collectives".
    """
    across = time_all_gather(read_figure(byte_count) / read_figure(inner.size), outer)
    return _join(across, time_all_gather(byte_count, inner), pipelined)


def time_all_reduce_across(byte_count: Numbers, inner: Wire, outer: Wire, *, pipelined: Flags = True) -> Figure:
    """Returns the seconds of an all-reduce over several nodes.

    The node reduces and scatters, devices of the same place all-reduce across their 1 ÷ g, the node gathers.

    Args:
        byte_count: of the array that each device has.
        inner: the g devices of one node.
        outer: devices of the same place in each node; `bytes_per_s` is one device's share of the network.
        pipelined: as in `time_all_gather_across`.

    Source: gpus.md, "Cross-node collectives". That NCCL pipelines: on nodes of 8 A100 with 8 NICs of 200 Gbit/s NVIDIA
    measures 192 of 200 GB/s of bus bandwidth (github.com/NVIDIA/nccl/issues/812); one after the other would be 115.
    """
    across = time_all_reduce(read_figure(byte_count) / read_figure(inner.size), outer)
    return _join(across, time_all_reduce(byte_count, inner), pipelined)


def time_all_to_all_across(byte_count: Numbers, inner: Wire, outer: Wire, *, pipelined: Flags = True) -> Figure:
    """Returns the seconds of an all-to-all over M nodes: V·(M − 1) ÷ (M²·g·W) across, and the part that stays in each
    node.

    Args:
        byte_count: of the whole array over all devices.
        inner: the g devices of one node.
        outer: devices of the same place in each node; `bytes_per_s` is one device's share of the network.
        pipelined: as in `time_all_gather_across`.

    Source: gpus.md, "Cross-node collectives", Other collectives.
    """
    whole = read_figure(byte_count)
    inside = time_all_to_all(whole / read_figure(outer.size) ** 2, inner)
    return _join(time_all_to_all(whole / read_figure(inner.size), outer), inside, pipelined)


def torus_wire(
    link_bytes_per_s: Numbers,
    dims: Sequence[Numbers],
    wraps: Sequence[Flags],
    *,
    strides: Sequence[Numbers] | None = None,
    hop_s: Numbers = ICI_HOP_S,
) -> Wire:
    """Returns the wire of a group that fills these dimensions of a torus.

    A ring gives a device two links at once, a line one (its ends have no more); all dimensions are used together.
    Worked example: a v5p axis over 4×4 of wrapped links of 90 GB/s has 360 GB/s; over 4 chips in a line 90.

    Args:
        link_bytes_per_s: of one link, one way.
        dims: the number of devices of the group along each dimension; 1: the dimension is not used.
        wraps: whether they close to a ring there; two devices are a line.
        strides: hops from one device of the group to the next along each dimension; this is also the number of groups
            that share the links. None: 1.
        hop_s: latency of one hop.

    Raises:
        ValueError: the number of wraps or strides differs from that of dimensions, or a figure is out of range.

    Source: sharding.md, "What happens when we AllGather over multiple axes?", and the quiz on a v5e without wrap. The
    middle of the group is its narrowest cut: all rows along its longest dimension, both ways round a ring.
    """
    steps = [1] * len(dims) if strides is None else strides
    if not len(dims) == len(wraps) == len(steps) > 0:
        raise ValueError(f"{len(dims)} dims, {len(wraps)} wraps, {len(steps)} strides; give as many of each, 1 or more")
    link, *others = np.broadcast_arrays(*map(read_figure, (link_bytes_per_s, *dims, *wraps, *steps)))
    length, wrap, stride = np.stack(others).reshape(3, len(dims), *link.shape)
    is_wide, is_closed = length > 1, np.logical_and(wrap, length > 2)
    rate = link * np.where(is_closed, 2, 1) / stride
    size = np.prod(length, axis=0)
    halves = (length // 2) * (length - length // 2)
    middle = rate * size / length * (length**2 / np.maximum(4 * halves, 1))
    far = np.max(np.where(is_wide, stride, 1), axis=0)
    is_ring = np.any(is_closed, axis=0)
    return Wire(
        size=give_figure(size),
        bytes_per_s=give_figure(np.where(size > 1, np.sum(np.where(is_wide, rate, 0), axis=0), link)),
        middle_bytes_per_s=give_figure(np.min(np.where(is_wide, middle, np.inf), axis=0)),
        neighbor_bytes_per_s=give_figure(link / far),
        hops=give_figure(np.sum(stride * np.where(is_closed, length // 2, length - 1), axis=0)),
        neighbor_hops=give_figure(far),
        hop_s=hop_s,
        is_ring=is_ring if np.ndim(is_ring) else bool(is_ring),
        hides_latency=True,
    )


def gpu_wire(
    bytes_per_s: Numbers, size: Numbers, *, hop_s: Numbers = NVLINK_HOP_S, pair_bytes_per_s: float | None = None
) -> Wire:
    """Returns the wire of the GPUs of a host, or of an NVLink domain, with a ring of n − 1 steps.

    Behind switches each GPU has all its links to any other. Without switches it has only its links to the n − 1 others
    of its group.

    Args:
        bytes_per_s: of one GPU's links together, one way (450e9 of an H100).
        size: GPUs in the group.
        hop_s: latency of one step.
        pair_bytes_per_s: from one GPU to one other, one way; None: its whole rate.

    Source: gpus.md, "Intra-node collectives"; stas00/ml-engineering at 744d01e, network/README.md: between MI300X
    64 GB/s from one to one, 448 GB/s among eight.
    """
    hops = give_figure(read_figure(size) - 1)
    if pair_bytes_per_s is None:
        return Wire(size=size, bytes_per_s=bytes_per_s, hops=hops, hop_s=hop_s)
    joined = give_figure(np.minimum(bytes_per_s, pair_bytes_per_s * np.maximum(1, hops)))
    nearest = give_figure(np.minimum(bytes_per_s, pair_bytes_per_s))
    return Wire(size=size, bytes_per_s=joined, neighbor_bytes_per_s=nearest, hops=hops, hop_s=hop_s)


def network_wire(bytes_per_s: Numbers, size: Numbers, *, hop_s: Numbers = NETWORK_HOP_S) -> Wire:
    """Returns the wire between devices of different hosts or slices: a non-blocking network, by a tree of ⌈log₂ n⌉.

    Args:
        bytes_per_s: one device's share of its host's NICs, one way.
        size: hosts or slices in the group.
        hop_s: latency of one step.

    Source: gpus.md, "Beyond the node level" (fat tree); NCCL's latency, src/graph/tuning.cc: 2·log₂(nodes) steps of an
    all-reduce.
    """
    return Wire(size=size, bytes_per_s=bytes_per_s, hops=give_figure(np.ceil(np.log2(read_figure(size)))), hop_s=hop_s)


def _time(wire: Wire, moved_bytes: NDArray[np.float64], hops: NDArray[np.float64]) -> Figure:
    """Returns the seconds in which these bytes come into a device, in this number of steps."""
    carried_s = moved_bytes / (read_figure(wire.bytes_per_s) * read_figure(wire.reached_ratio))
    carried_s = carried_s + read_figure(wire.ramp_s_per_root_byte) * np.sqrt(moved_bytes)
    latency_s = hops * read_figure(wire.hop_s)
    both_s = np.where(wire.hides_latency, np.maximum(latency_s, carried_s), latency_s + carried_s)
    is_any = np.logical_and(read_figure(wire.size) > 1, moved_bytes > 0)
    return give_figure(np.where(is_any, read_figure(wire.start_s) + both_s, 0.0))


def _join(one_s: Figure, other_s: Figure, pipelined: Flags) -> Figure:
    return give_figure(np.where(pipelined, np.maximum(one_s, other_s), np.add(one_s, other_s)))


Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Place = Literal["inside", "across"]
"""Inside a node or slice, or across the network between them."""


@dataclass(frozen=True)
class Reached:
    """One row: the measured efficiency of one collective over a group of `size` devices.

    Attributes:
        family: a chip's hardware type ("a100"), or a platform ("gpu", "tpu") for all others.
        reached_ratio: part of the chip's published rate, one way, of all links that it uses.
        start_s, hop_s, ramp_s_per_root_byte: as in `Wire`; None: not known.
        source: where it comes from.
    """

    family: str
    place: Place
    operation: Operation
    size: int
    reached_ratio: float
    source: str
    start_s: float | None = None
    hop_s: float | None = None
    ramp_s_per_root_byte: float | None = None


def calibrate(wire: Wire, family: str, platform: str, operation: Operation, place: Place = "inside") -> Wire:
    """Returns the wire with the table's calibration for each of its group sizes; it keeps the published rates.

    Uses the row of the largest group that is no larger, otherwise that of the smallest group.

    Args:
        wire: with published rates.
        family: of the chip, a value of `HardwareType`, such as "a100".
        platform: "gpu" or "tpu": its row is used where the family has none.
        operation: which collective; one without a row uses that of the all-reduce.
        place: inside a node or slice, or across.

    Raises:
        ValueError: neither family nor platform has a row.
    """
    rows = find_reached(family, platform, operation, place)
    sizes = np.asarray([row.size for row in rows])
    chosen = np.maximum(np.searchsorted(sizes, np.asarray(wire.size), side="right") - 1, 0)

    def pick(known: Sequence[float | None], own: Numbers) -> Figure:
        values = np.asarray([np.nan if value is None else value for value in known])[chosen]
        return give_figure(np.where(np.isnan(values), read_figure(own), values))

    return replace(
        wire,
        reached_ratio=pick([row.reached_ratio for row in rows], wire.reached_ratio),
        start_s=pick([row.start_s for row in rows], wire.start_s),
        hop_s=pick([row.hop_s for row in rows], wire.hop_s),
        ramp_s_per_root_byte=pick([row.ramp_s_per_root_byte for row in rows], wire.ramp_s_per_root_byte),
    )


def find_reached(family: str, platform: str, operation: Operation, place: Place = "inside") -> tuple[Reached, ...]:
    """Returns the rows that apply to a chip's collective, the smallest group first.

    Raises:
        ValueError: neither family nor platform has a row.
    """
    for name in (family, platform):
        for wanted in (operation, "all_reduce"):
            if found := _by_key().get((name, place, wanted)):
                return found
    raise ValueError(f"reached.csv has no row for {family!r} or {platform!r} {place}; platforms are 'gpu' and 'tpu'")


@functools.cache
def read_reached() -> tuple[Reached, ...]:
    """Returns the whole table, in its order."""
    return read_table("meshwright.planning.cost", "reached.csv", Reached)


@functools.cache
def _by_key() -> Mapping[tuple[str, str, str], tuple[Reached, ...]]:
    found: dict[tuple[str, str, str], list[Reached]] = {}
    for row in read_reached():
        found.setdefault((row.family, row.place, row.operation), []).append(row)
    return {key: tuple(sorted(rows, key=lambda row: row.size)) for key, rows in found.items()}

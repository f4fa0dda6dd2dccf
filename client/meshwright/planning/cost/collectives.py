"""The time of a collective: its bytes over the links of its group, and its steps.

A time is the start of the collective, its steps, and its bytes over the links that it uses at once. Figures in, seconds
out, each one number or an array over candidates. Independent of chips and meshes: `AxisLinks` has all figures. The real
rates of wires are in `reached.csv`. A collective of no bytes, or over a group of one device, takes exactly 0 s.

Source: jax-ml/scaling-book at 0819a7d8, sharding.md (torus), and at 1a55377a, gpus.md (switches, several nodes).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.chips import Chip, read_table

Numbers = int | float | NDArray[Any]
"""One figure, or one a candidate."""

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

ICI_HOP_S: Final = 1e-6
"""Of one hop between TPU chips. Source: jax-ml/scaling-book, sharding.md, "A note on ICI latency"."""

NVLINK_HOP_S: Final = 2.0e-6
"""Of one step of NCCL's ring inside a node. Source: fit to A100 (`reached.csv`); NCCL itself assumes 1.9 µs
(LL128) to 3.4 µs (Simple): NVIDIA/nccl at 01afd20a, src/graph/tuning.cc, hwLat."""

NETWORK_HOP_S: Final = 4.0e-6
"""Of one step of NCCL's ring between nodes. Source: NVIDIA/nccl at 01afd20a, src/graph/tuning.cc, hwLat (LL128)."""

NETWORK_TREE_HOP_S: Final = 8.5e-6
"""Of one step of its tree."""


@dataclass(frozen=True)
class AxisLinks:
    """The links between the devices of one mesh axis's group.

    Attributes:
        bytes_per_s: into one device from its group, one way, over all links that a collective uses at once: both ways
            round a ring and all dimensions of a torus together; one link of a line.
        middle_bytes_per_s: one way from one half of the group to the other, where a quarter of an all-to-all crosses.
            Infinite behind a non-blocking switch.
        neighbor_bytes_per_s: from one device to the next of its group, one way; None: `bytes_per_s`.
        hops: sequential steps of an all-gather: n ÷ 2 round a ring both ways, n − 1 along a line or one way round, over
            several dimensions their sum.
        neighbor_hops: steps from one device to the next of its group.
        hop_s: latency of one step.
        tree_s: latency of an all-reduce by a tree, and twice that of an all-to-all; None: that of the hops.
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
    tree_s: Numbers | None = None
    start_s: Numbers = 0.0
    ramp_s_per_root_byte: Numbers = 0.0
    reached_ratio: Numbers = 1.0
    is_ring: Any = False
    hides_latency: bool = False

    @property
    def gathered_ratio(self) -> Any:
        """The part of the whole array that comes into a device when it is gathered.

        All but its own, (n − 1) ÷ n; round a ring 2⌊n ÷ 2⌋ ÷ n, which is 1 for even n.

        Source: sharding.md: ⌊n ÷ 2⌋ hops, each with one part in either direction.
        """
        size = np.asarray(self.size)
        return np.where(self.is_ring, 2 * (size // 2), size - 1) / size


def time_collective(operation: Operation, byte_count: Any, wire: AxisLinks) -> Any:
    """Returns the seconds of a collective.

    - all-gather, reduce-scatter: round rings V ÷ W with W both ways and all wrapped dimensions together, whatever the
      size of the group; along a line, or behind a switch, V·(n − 1) ÷ (n·W). At least the steps' latency, or that on
      top.
    - all-reduce: both in one: twice the bytes and the steps, one start.
    - all-to-all: bound by the bytes into a device, V·(n − 1) ÷ (n²·W), or by the bytes across the middle, V ÷
      (4·W_middle): a quarter of an all-gather's on a ring, n times less on a switch.

    Args:
        byte_count: V: of the whole array, gathered; of an all-reduce of the array that each device has; of an
            all-to-all of the whole array over all devices, n times the part of one.

    Source: sharding.md, "How is an AllGather actually performed?", Case 3, and "Our final communication primitive: the
    AllToAll"; gpus.md, "Intra-node collectives" (without reductions in the switch), AllToAlls.
    """
    if operation in ("all_reduce", "all_to_all") and wire.tree_s is not None:
        wire = replace(wire, hops=1, hop_s=wire.tree_s / 2)
    if operation == "all_to_all":
        size = np.asarray(wire.size)
        crossing = np.asarray(wire.bytes_per_s) / np.asarray(wire.middle_bytes_per_s) / 4
        return _time(wire, byte_count * np.maximum((size - 1) / size**2, crossing), wire.hops)
    ways = 2 if operation == "all_reduce" else 1
    return _time(wire, ways * byte_count * wire.gathered_ratio, ways * np.asarray(wire.hops))


def time_permute(byte_count: Any, wire: AxisLinks) -> Any:
    """Returns the seconds in which every device sends to the next one: a ring's shift, or from one stage to the next.

    Args:
        byte_count: bytes that one device sends.

    Source: tpus.md, Question 5: the first byte comes after the latency, the others at the link's rate.
    """
    rate = wire.bytes_per_s if wire.neighbor_bytes_per_s is None else wire.neighbor_bytes_per_s
    return _time(replace(wire, bytes_per_s=rate, hides_latency=False), byte_count, wire.neighbor_hops)


def time_across(
    operation: Operation, byte_count: Any, inner: AxisLinks, outer: AxisLinks, *, pipelined: bool = True
) -> Any:
    """Returns the seconds of a collective over several nodes.

    Devices of the same place in each node gather, or reduce, across, each its 1 ÷ g of the array; the node does the
    rest. Of an all-to-all V·(M − 1) ÷ (M²·g·W) goes across, and the rest stays in each of M nodes.

    Args:
        inner: the g devices of one node.
        outer: devices of the same place in each node; `bytes_per_s` is one device's share of the network.
        pipelined: both go on at the same time, so that the longer counts (NCCL); else one after the other (XLA's TPU
            compiler over slices).

    Source: gpus.md, "Cross-node collectives". That NCCL pipelines: on nodes of 8 A100 with 8 NICs of 200 Gbit/s NVIDIA
    measures 192 of 200 GB/s of bus bandwidth (github.com/NVIDIA/nccl/issues/812); one after the other would be 115.
    """
    stays = byte_count / np.asarray(outer.size) ** 2 if operation == "all_to_all" else byte_count
    inside_s = time_collective(operation, stays, inner)
    across_s = time_collective(operation, byte_count / np.asarray(inner.size), outer)
    return np.maximum(across_s, inside_s) if pipelined else across_s + inside_s


def torus_wire(
    link_bytes_per_s: Numbers,
    dims: Sequence[Numbers],
    wraps: Sequence[Any],
    *,
    strides: Sequence[Numbers] | None = None,
) -> AxisLinks:
    """Returns the wire of a group that fills these dimensions of a torus.

    A ring gives a device two links at once, a line one (its ends have no more); all dimensions are used together.
    Worked example: a v5p axis over 4×4 of wrapped links of 90 GB/s has 360 GB/s; over 4 chips in a line 90.

    Args:
        link_bytes_per_s: of one link, one way.
        dims: the number of devices of the group along each dimension; 1: the dimension is not used.
        wraps: whether they close to a ring there; two devices are a line.
        strides: hops from one device of the group to the next along each dimension; this is also the number of groups
            that share the links. None: 1.

    Source: sharding.md, "What happens when we AllGather over multiple axes?", and the quiz on a v5e without wrap. The
    middle of the group is its narrowest cut: all rows along its longest dimension, both ways round a ring.
    """
    steps = [1] * len(dims) if strides is None else strides
    given = (link_bytes_per_s, *dims, *wraps, *steps)
    link, *others = np.broadcast_arrays(*(np.asarray(value, float) for value in given))
    length, wrap, stride = np.stack(others).reshape(3, len(dims), *link.shape)
    is_wide, is_closed = length > 1, np.logical_and(wrap, length > 2)
    rate = link * np.where(is_closed, 2, 1) / stride
    size = np.prod(length, axis=0)
    halves = (length // 2) * (length - length // 2)
    middle = rate * size / length * (length**2 / np.maximum(4 * halves, 1))
    far = np.max(np.where(is_wide, stride, 1), axis=0)
    return AxisLinks(
        size=size,
        bytes_per_s=np.where(size > 1, np.sum(np.where(is_wide, rate, 0), axis=0), link),
        middle_bytes_per_s=np.min(np.where(is_wide, middle, np.inf), axis=0),
        neighbor_bytes_per_s=link / far,
        hops=np.sum(stride * np.where(is_closed, length // 2, length - 1), axis=0),
        neighbor_hops=far,
        hop_s=ICI_HOP_S,
        is_ring=np.any(is_closed, axis=0),
        hides_latency=True,
    )


def gpu_wire(bytes_per_s: Numbers, size: Numbers, *, pair_bytes_per_s: float | None = None) -> AxisLinks:
    """Returns the wire of the GPUs of a host, or of an NVLink domain, with a ring of n − 1 steps.

    Behind switches each GPU has all its links to any other. Without switches it has only its links to the n − 1 others
    of its group.

    Args:
        bytes_per_s: of one GPU's links together, one way (450e9 of an H100).
        pair_bytes_per_s: from one GPU to one other, one way; None: its whole rate.

    Source: gpus.md, "Intra-node collectives"; stas00/ml-engineering at 744d01e, network/README.md: between MI300X
    64 GB/s from one to one, 448 GB/s among eight.
    """
    hops, pair = np.asarray(size) - 1, pair_bytes_per_s or np.inf
    joined, nearest = np.minimum(bytes_per_s, pair * np.maximum(1, hops)), np.minimum(bytes_per_s, pair)
    return AxisLinks(size=size, bytes_per_s=joined, neighbor_bytes_per_s=nearest, hops=hops, hop_s=NVLINK_HOP_S)


def network_wire(bytes_per_s: Numbers, size: Numbers) -> AxisLinks:
    """Returns the wire between devices of different hosts or slices: a non-blocking network.

    NCCL gathers and scatters in a ring of n − 1 steps, and reduces by a tree of ⌈log₂ n⌉. Two latencies are assumed,
    without a source: an all-to-all, whose sends run concurrently, has one way of the tree, and TPU slices have NCCL's.

    Args:
        bytes_per_s: one device's share of its host's NICs, one way.
        size: hosts or slices in the group.

    Source: gpus.md, "Beyond the node level" (fat tree); NCCL's latency, src/graph/tuning.cc: nodes − 1 steps of a ring
    (its PAT algorithm has 2.8 µs a node too), and 2·log₂(nodes) of an all-reduce's tree.
    """
    tree_s = 2 * np.ceil(np.log2(size)) * NETWORK_TREE_HOP_S
    return AxisLinks(size, bytes_per_s, hops=np.asarray(size) - 1, hop_s=NETWORK_HOP_S, tree_s=tree_s)


def _time(wire: AxisLinks, moved_bytes: Any, hops: Any) -> Any:
    """Returns the seconds in which these bytes come into a device, in this number of steps."""
    carried_s = moved_bytes / (np.asarray(wire.bytes_per_s) * np.asarray(wire.reached_ratio))
    carried_s = carried_s + np.asarray(wire.ramp_s_per_root_byte) * np.sqrt(moved_bytes)
    latency_s = np.asarray(hops) * np.asarray(wire.hop_s)
    both_s = np.maximum(latency_s, carried_s) if wire.hides_latency else latency_s + carried_s
    return np.where((np.asarray(wire.size) > 1) & (moved_bytes > 0), np.asarray(wire.start_s) + both_s, 0.0)


Tier = Literal["inside", "across"]
"""Inside a node or slice, or across the network between them."""


@dataclass(frozen=True)
class Reached:
    """One row: the measured efficiency of one collective over a group of `size` devices.

    Attributes:
        family: a chip's hardware type ("a100"), or a platform ("gpu", "tpu") for all others.
        reached_ratio: part of the chip's published rate, one way, of all links that it uses.
        start_s, hop_s, ramp_s_per_root_byte: as in `AxisLinks`; None: not known.
        source: where it comes from.
    """

    family: str
    tier: Tier
    operation: Operation
    size: int
    reached_ratio: float
    source: str
    start_s: float | None = None
    hop_s: float | None = None
    ramp_s_per_root_byte: float | None = None


def calibrate(wire: AxisLinks, chip: Chip, operation: Operation, tier: Tier = "inside") -> AxisLinks:
    """Returns the wire with the table's calibration for each of its group sizes; it keeps the published rates.

    Uses the row of the largest group that is no larger, otherwise that of the smallest group.

    Args:
        wire: with published rates.
        chip: the row of its family is used, or that of its platform.
        operation: which collective; one without a row uses that of the all-reduce.
        tier: inside a node or slice, or across.
    """
    keys = ((name, tier, wanted) for name in (chip.family, chip.platform) for wanted in (operation, "all_reduce"))
    rows = next(_by_key()[key] for key in keys if key in _by_key())
    sizes = np.asarray([row.size for row in rows])
    chosen = np.maximum(np.searchsorted(sizes, np.asarray(wire.size), side="right") - 1, 0)
    figures: dict[str, Any] = {}
    for name in ("reached_ratio", "start_s", "hop_s", "ramp_s_per_root_byte"):
        known = np.asarray([getattr(row, name) for row in rows], dtype=np.float64)[chosen]
        figures[name] = np.where(np.isnan(known), getattr(wire, name), known)
    return replace(wire, **figures)


@functools.cache
def _by_key() -> Mapping[tuple[str, str, str], tuple[Reached, ...]]:
    found: dict[tuple[str, str, str], list[Reached]] = {}
    for row in read_table("meshwright.planning.cost", "reached.csv", Reached):
        found.setdefault((row.family, row.tier, row.operation), []).append(row)
    return {key: tuple(sorted(rows, key=lambda row: row.size)) for key, rows in found.items()}

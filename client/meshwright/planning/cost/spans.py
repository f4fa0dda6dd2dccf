"""How a step is laid out over devices, and what each parallel axis runs over: inside a node or slice, and across.

`Layout` is a struct of arrays: one run and a million candidates are priced by the same code.

Rule: axes are split over granules and cut out of a torus as `planning.device_order` does for the devices of a plan, by
their sizes alone. A plan that has an order, perhaps another one, is read by `read_spans`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.collectives import (
    AxisLinks,
    Numbers,
    Operation,
    calibrate,
    gpu_wire,
    network_wire,
    time_across,
    time_collective,
    time_permute,
    torus_wire,
)
from meshwright.planning.granules import split_axes, weigh_axes
from meshwright.planning.parallelism import SEARCH_AXES, name_axis
from meshwright.planning.torus import cut_torus, find_box
from meshwright.topology.chips import Chip
from meshwright.topology.torus import Dimension, list_dimensions
from meshwright.wire.devices import Granule
from meshwright.wire.mesh import Plan, PlanAxis
from meshwright.wire.model import Remat

AXES: Final = tuple(SEARCH_AXES.values())
"""As a mesh has them, the outermost first: least traffic outside (`planning.parallelism.ROLES`)."""

NETWORK_BYTES_PER_S: Final = 12.5e9
"""Of a host, or a slice, to others, assumed where the chip table has no figure: a NIC of 100 Gbit/s."""

REMATS: Final[tuple[Remat, ...]] = get_args(Remat)
"""The values that a layout's `remat` indexes; from "full" on each layer is computed again."""

REMAT_NONE, REMAT_MINIMAL, REMAT_FULL, REMAT_OFFLOAD = map(REMATS.index, ("none", "minimal", "full", "offload"))


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes, and how the batch goes through them.

    Attributes:
        dp: copies of the whole model; each works on its part of the batch.
        fsdp: parts of weights, gradients and optimizer state, gathered a layer at a time; splits the batch too. The
            context and expert axes cut weights with it.
        tp: parts of each matmul and of the heads.
        cp: parts of the sequence.
        ep: parts of the experts; splits the batch too.
        pp: pipeline stages; where they do not divide the layers, the fullest has one more than others.
        micro_batch_size: sequences that one data-parallel part works on at a time.
        gradient_accumulation_steps: micro-batches one after the other in a step; a pipeline's too.
        remat: REMAT_NONE, REMAT_MINIMAL (all but matmuls), REMAT_FULL (each layer) or REMAT_OFFLOAD (each layer, whose
            inputs wait in the host's memory).
        optimizer_bytes: of the optimizer's state of one parameter.
        pipeline_runs: of a pipeline: how often its loop runs in a step, each time with equally many micro-batches.
        gathers_once: of a pipeline over fsdp: weights are gathered before its loop and stay whole, else for each pass.
    """

    dp: Numbers = 1
    fsdp: Numbers = 1
    tp: Numbers = 1
    cp: Numbers = 1
    ep: Numbers = 1
    pp: Numbers = 1
    micro_batch_size: Numbers = 1
    gradient_accumulation_steps: Numbers = 1
    remat: Numbers = REMAT_FULL
    optimizer_bytes: Numbers = 8
    pipeline_runs: Numbers = 1
    gathers_once: Any = False

    @property
    def data_parts(self) -> Numbers:
        """Over how many parts the batch is laid."""
        return self.dp * self.fsdp * self.ep

    def cut_weights(self, size: int) -> tuple[Any, Any]:
        """Returns into how many parts the axes of `MeshAxes.shard_weights` cut dense weights, and those of experts.

        Args:
            size: of the dimension that is cut.
        """
        parts = np.asarray(self.fsdp)
        experts = parts * np.where(size % (parts * self.cp) == 0, self.cp, 1)
        return experts * np.where(size % (experts * self.ep) == 0, self.ep, 1), experts

    def count_repeats(self, layers: int) -> Any:
        """Returns into how many pieces a stage's layers are cut, which run in turn: the times that a micro-batch goes
        round the stages of a circular pipeline. Single layers, as MaxText has it, where micro-batches fill the stages.

        Source: Narayanan et al., arXiv:2104.04473, section 2.2 (interleaved stages; micro-batches are a multiple).
        """
        stages = np.asarray(self.pp)
        return np.where((stages > 1) & (self.micro_batches_at_once % stages == 0), np.ceil(layers / stages), 1)

    @property
    def micro_batches_at_once(self) -> Any:
        """Of a pipeline: micro-batches of one run of its loop, whose activations are kept together."""
        return np.where(np.asarray(self.pp) > 1, self.gradient_accumulation_steps // self.pipeline_runs, 1)

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Of one candidate: its axes that are larger than 1."""
        return {axis: int(getattr(self, axis)) for axis in AXES if int(getattr(self, axis)) > 1}

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | int) -> Layout:
        """Returns the candidates that a mask or indices choose; single figures stay."""
        return Layout(**{n: v[chosen] if isinstance(v, np.ndarray) and v.ndim else v for n, v in vars(self).items()})


@dataclass(frozen=True)
class Span:
    """The wires of one axis.

    Attributes:
        inner: among the devices of a group that share a node or slice.
        outer: among nodes or slices; of size 1 where a group stays in one.
        chip: its family, or platform, has measured rates (`reached.csv`).
    """

    inner: AxisLinks
    outer: AxisLinks
    chip: Chip

    def time(self, operation: Operation, byte_count: Any) -> Any:
        """Returns the seconds of a collective on this many bytes of the whole array; see `collectives`."""
        inner = calibrate(self.inner, self.chip, operation)
        inside = time_collective(operation, byte_count, inner)
        if np.all(np.equal(self.outer.size, 1)):
            return inside
        outer = calibrate(self.outer, self.chip, operation, "across")
        across = time_across(operation, byte_count, inner, outer, pipelined=self.chip.platform == "gpu")
        return np.where(np.equal(self.outer.size, 1), inside, across)

    def send(self, byte_count: Any) -> Any:
        """Returns the seconds in which a device sends this many bytes to its neighbor on the axis."""
        inner = time_permute(byte_count, calibrate(self.inner, self.chip, "all_gather"))
        return np.maximum(inner, self.send_across(byte_count))

    def send_across(self, byte_count: Any) -> Any:
        """Returns the same for a neighbor in another node or slice."""
        return time_permute(byte_count, calibrate(self.outer, self.chip, "all_gather", "across"))


_GROUPS: Final = {axis: (axis,) for axis in AXES} | {
    "dense_weights": ("fsdp", "ep", "cp"),
    "expert_weights": ("fsdp", "cp"),
}

GROUPS: Final = {name: tuple(map(AXES.index, axes)) for name, axes in _GROUPS.items()}
"""What one collective goes over, as places in `AXES`: an axis alone, or the axes that cut weights."""

Spans = Mapping[str, Span]
"""Of each of `GROUPS`."""


def lay_on_hosts(layout: Layout, chip: Chip, host_size: int, pair_bytes_per_s: float | None = None) -> Spans:
    """Returns the spans of the axes on hosts of GPUs.

    Args:
        host_size: GPUs joined by NVLink or PCIe: of a host, or of an NVLink domain over several.
        pair_bytes_per_s: of one GPU to one other of its host, one way; None: its whole rate, as behind a switch.
    """
    rows = _Rows(layout)
    splits = [_split(sizes, host_size) for sizes in rows.sizes]
    spans = {}
    for name, places in GROUPS.items():
        size, hosts = _multiply(rows.sizes, places), _multiply(splits, places)
        spans[name] = rows.spread(_join_hosts(chip, size / hosts, hosts, pair_bytes_per_s))
    return spans


def _join_hosts(
    chip: Chip, inside: Numbers, hosts: Numbers, pair_bytes_per_s: float | None, most_bytes_per_s: float = math.inf
) -> Span:
    """Returns the links of an axis over GPUs; `most_bytes_per_s`: what a link inside a host has at most."""
    rate = chip.scaleup_bytes_per_s or pair_bytes_per_s or chip.pcie_bytes_per_s or 0.0  # pairs of PCIe cards
    inner = gpu_wire(min(rate, most_bytes_per_s), inside, pair_bytes_per_s=pair_bytes_per_s)
    return Span(inner, network_wire(_share_network(chip), hosts), chip)


def _share_network(chip: Chip) -> float:
    """Returns one device's share of the network between hosts or slices, one way."""
    return (chip.scaleout_bytes_per_s or NETWORK_BYTES_PER_S) / chip.jax_devices_per_chip


def _share_link(chip: Chip) -> float:
    """Returns one device's share of an ICI link, one way; the devices of a chip are neighbors and share its links."""
    return (chip.link_bytes_per_s or 0.0) / chip.jax_devices_per_chip


def lay_on_torus(layout: Layout, chip: Chip, shape: Sequence[int], wraps: Sequence[bool]) -> Spans:
    """Returns the spans of the axes on TPU slices; fewer devices than a slice has form a box in it.

    Args:
        shape: of one slice, in chips: x, y, z.
        wraps: which of its dimensions close to rings.
    """
    dimensions = list_dimensions(shape[::-1], wraps[::-1], chip.jax_devices_per_chip)
    slice_size = math.prod(dimension.size for dimension in dimensions)
    rows = _Rows(layout)
    splits = [_split(sizes, slice_size) for sizes in rows.sizes]
    cuts = np.array([_cut(sizes, split, dimensions) for sizes, split in zip(rows.sizes, splits, strict=True)])
    spans = {}
    for name, places in GROUPS.items():
        dims, rings, strides = map(list, cuts[:, places].reshape(len(cuts), -1, 3).T)
        wire = torus_wire(_share_link(chip), dims, rings, strides=strides)
        spans[name] = rows.spread(Span(wire, network_wire(_share_network(chip), _multiply(splits, places)), chip))
    return spans


class _Rows:
    """The sizes of all candidates' axes, each combination once."""

    def __init__(self, layout: Layout) -> None:
        columns = np.broadcast_arrays(*(np.asarray(getattr(layout, axis), dtype=np.int64) for axis in AXES))
        rows = list(zip(*(np.ravel(column).tolist() for column in columns), strict=True))
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        self._back = np.array([numbers[row] for row in rows]).reshape(columns[0].shape)
        self.sizes = list(numbers)

    def spread(self, span: Span) -> Span:
        """Returns a span that has figures of each combination, over the candidates."""
        return replace(span, inner=self._spread(span.inner), outer=self._spread(span.outer))

    def _spread(self, links: AxisLinks) -> AxisLinks:
        return replace(links, **{name: value[self._back] for name, value in vars(links).items() if np.ndim(value)})


def _multiply(figures: Sequence[Sequence[int]], places: Sequence[int]) -> Any:
    """Returns for each row the product of its figures at these places."""
    return np.prod(np.array(figures, dtype=np.int64)[:, places], axis=1)


def _split(sizes: Sequence[int], granule_size: int) -> tuple[int, ...]:
    """Returns the number of granules of each axis: the least number with equally many devices each."""
    count = math.prod(sizes)
    granules = next(n for n in range(max(1, math.ceil(count / granule_size)), count + 1) if count % n == 0)
    split = split_axes(sizes, granules)
    assert split is not None, "a divisor of the number of devices divides a mesh of them"
    return split


def _cut(
    sizes: tuple[int, ...], split: Sequence[int], dimensions: tuple[Dimension, ...]
) -> list[list[tuple[int, bool, float]]]:
    """Returns the parts of a slice of each axis, one for each dimension: size, whether it is a ring, stride in hops."""
    inner = tuple(size // part for size, part in zip(sizes, split, strict=True))
    box = find_box(math.prod(inner), dimensions)
    cut = cut_torus(inner, box, weigh_axes(AXES, inner).inside)
    assert cut is not None, "split, a torus takes every mesh of its size"
    parts = [[(part.size, part.is_closed(box), part.measure_step(box)) for part in axis.parts] for axis in cut]
    return [[*own, *[(1, False, 1.0)] * (max(len(dimensions), 1) - len(own))] for own in parts]


def read_spans(plan: Plan, chip: Chip, pair_bytes_per_s: float | None = None) -> Spans:
    """Returns the spans of a plan, in its real order. Axes of one role are one of `AXES`, of unknown names dp.

    Args:
        pair_bytes_per_s: as in `lay_on_hosts`.
    """
    axes = [[axis for axis in plan.axes if name_axis(axis.name) == name] for name in AXES]
    groups = {name: [axis for at in places for axis in axes[at]] for name, places in GROUPS.items()}
    if chip.platform == "tpu":
        return {name: _read_torus_span(group, plan.granules[0], chip) for name, group in groups.items()}
    return {name: _read_host_span(group, chip, pair_bytes_per_s) for name, group in groups.items()}


def _read_host_span(axes: Sequence[PlanAxis], chip: Chip, pair_bytes_per_s: float | None) -> Span:
    """Returns the wires of a group over GPUs: from the plan's links between neighbors without a common NVLink."""
    slow = (axis.bandwidth_bytes_per_s for axis in axes if axis.link in ("pcie", "host"))
    size, hosts = math.prod(axis.size for axis in axes), math.prod(axis.dcn_size for axis in axes)
    return _join_hosts(chip, size // hosts, hosts, pair_bytes_per_s, min(filter(None, slow), default=math.inf))


def _read_torus_span(axes: Sequence[PlanAxis], granule: Granule, chip: Chip) -> Span:
    """Returns the wires of a group: with the links of its devices in the plan, and rings where an axis closes."""
    link, sides, rings = _share_link(chip), [1], [False]
    for axis in axes:
        inside = axis.size // axis.dcn_size
        dims = [*(axis.group_shape or ()), 1]
        dims[-1] = max(1, inside // math.prod(dims))
        whole = zip(granule.wrap or (), granule.shape or (), dims, strict=False)
        wraps = [wrap and side == part for wrap, side, part in whole]
        wraps += [False] * (len(dims) - len(wraps))
        is_whole = math.prod(dims) == inside
        sides, rings = [*sides, *(dims if is_whole else [inside])], [*rings, *(wraps if is_whole else [False])]
    inner = torus_wire(link, sides, rings)
    if links := sum(axis.links or 0.0 for axis in axes):
        more = link * links / float(np.asarray(inner.bytes_per_s))
        middle = np.asarray(inner.middle_bytes_per_s) * more
        inner = replace(inner, bytes_per_s=link * links, middle_bytes_per_s=middle)
    slices = math.prod(axis.dcn_size for axis in axes)
    return Span(inner, network_wire(_share_network(chip), slices), chip)

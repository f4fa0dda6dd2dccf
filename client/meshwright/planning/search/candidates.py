"""The candidates of a search: all meshes that divide model, batch and devices equally, and the cost of each.

Rule: a candidate is legal before it is priced, by the same rule of divisibility as a given mesh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.cost.collectives import AxisLinks
from meshwright.planning.cost.memory import PartBytes, StepMemory, build_execution, count_optimizer_bytes
from meshwright.planning.cost.spans import (
    AXES,
    NETWORK_BYTES_PER_S,
    REMATS,
    Layout,
    Spans,
    lay_on_hosts,
    lay_on_torus,
    read_spans,
)
from meshwright.planning.cost.step_time import DeviceRates, StepTime, count_offloaded
from meshwright.planning.cost.work import Work, build_work
from meshwright.planning.hardware import find_capacity
from meshwright.planning.parallelism import SEARCH_AXES, AxisRule, list_divisors, list_rules
from meshwright.planning.search.measured import (
    COPY_ALONE,
    KINDS,
    MATMUL_ALONE,
    NETWORK_SIZE_BYTES,
    Factor,
    Measurements,
)
from meshwright.topology.chips import Chip, find_chip
from meshwright.topology.links import classify_link
from meshwright.topology.model import Topology
from meshwright.wire.devices import MeasuredNetwork
from meshwright.wire.mesh import Plan
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec

CONTEXT_LEAST: Final = 1024
"""Tokens of a sequence that one device keeps at least: shorter parts are all latency."""

HOST_FRACTION: Final = 0.9
"""Part of a host's memory that may hold what its devices offload. Assumed: of the published run of Llama 3.1 405B on
TPU7x the inputs of layers are 0.85 (3 × 8,192 × 16,384 × 2 bytes × 126 layers × 8 devices ÷ 960 GB)."""

UNEQUAL_MOST: Final = 0.05
"""How much longer the fullest stage of a pipeline may be than if all were equal."""

MICRO_BATCHES: Final = 12
"""Micro-batches that are tried for a layout: divisors of its part of the batch, the smallest first."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """The choices of a search.

    Attributes:
        axes: sizes that are given.
        at_most: greatest sizes.
        remats: to choose from; empty: all that the hardware has.
        gradient_accumulation_steps: given accumulation steps; None: free.
        optimizer_bytes: states of the optimizer to choose from, bytes a parameter, the preferred first; empty: that of
            training.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    remats: tuple[Remat, ...] = ()
    gradient_accumulation_steps: int | None = None
    optimizer_bytes: tuple[int, ...] = ()

    def allows(self, axis: str, size: int) -> bool:
        """Returns whether an axis may have this size."""
        return size == self.axes.get(axis, size) and size <= self.at_most.get(axis, size)


@dataclass(frozen=True)
class Left:
    """A size that some axis cannot have, and the rule."""

    axis: str
    size: int
    rule: str


@dataclass(frozen=True)
class Space:
    """Candidates, and the parts that were left out.

    Attributes:
        layout: arrays of one length.
        left: sizes that divide the devices and not the model.
    """

    layout: Layout
    left: tuple[Left, ...]

    @property
    def size(self) -> int:
        """How many candidates."""
        return len(np.asarray(self.layout.dp))


def list_space(devices: int, model: ModelSpec, training: TrainingSpec, bounds: Bounds) -> Space:
    """Returns all layouts of a model's training on `devices` devices.

    Args:
        devices: all of which are used.
        model: the model, whose heads, experts, layers, widths and vocabulary are cut.
        training: sequence length and batch.
    """
    left: list[Left] = []
    sizes = list_divisors(devices)
    # each candidate has its own accumulation steps
    listed = list_rules(model, training.model_copy(update={"gradient_accumulation_steps": 1}))
    rules = {axis: [rule for rule in listed if SEARCH_AXES[rule.roles[0]] == axis] for axis in AXES}
    choices = {axis: _choose(axis, sizes, rules[axis], bounds, left) for axis in AXES}
    states = bounds.optimizer_bytes or (count_optimizer_bytes(training),)
    layout = _add_batches(_cross(devices, model, choices), training.global_batch_size, bounds, states)
    return Space(layout, tuple(left))


def _choose(axis: str, sizes: list[int], rules: Sequence[AxisRule], bounds: Bounds, left: list[Left]) -> list[int]:
    """Returns the sizes that an axis may have; adds to `left` those that only a rule keeps out."""
    kept = []
    for size in sizes:
        if not bounds.allows(axis, size):
            continue
        broken = next((rule for rule in rules if not rule.allows(size)), None)
        if broken is None and (axis in bounds.axes or not _is_wasteful(axis, size, rules)):
            kept.append(size)
        elif broken is not None and (axis not in ("dp", "ep") or size == bounds.axes.get(axis)):
            left.append(Left(axis, size, broken.refuse(f"{axis}:{size}")))
    return kept


def _is_wasteful(axis: str, size: int, rules: Sequence[AxisRule]) -> bool:
    """Returns whether parts are too small, or too unequal, for any mesh of them to be the best."""
    whole = rules[0].size if rules else 1
    if axis == "pp":
        return -(-whole // size) * size > (1 + UNEQUAL_MOST) * whole
    return axis == "cp" and size > 1 and whole // size < CONTEXT_LEAST


def _cross(devices: int, model: ModelSpec, choices: Mapping[str, list[int]]) -> dict[str, Numbers]:
    """Returns all combinations whose product is the number of devices, and that cut weights equally; `dp` is the
    remaining factor."""
    names = ("tp", "cp", "ep", "pp", "fsdp")
    grid = np.meshgrid(*(np.asarray(choices[axis], dtype=np.int64) for axis in names), indexing="ij")
    found = dict(zip(names, map(np.ravel, grid), strict=True))
    product = np.prod(list(found.values()), axis=0)
    found["dp"] = devices // product
    is_allowed = (devices % product == 0) & np.isin(found["dp"], choices["dp"])
    is_allowed &= model.hidden_size % (found["fsdp"] * found["cp"] * found["ep"]) == 0
    return {name: values[is_allowed] for name, values in found.items()}


def _add_batches(grid: dict[str, Numbers], batch: int, bounds: Bounds, states: Sequence[int]) -> Layout:
    """Returns the layouts with each micro-batch that divides their part of the batch, each remat and each state, and
    pipelines in one run or in several, and over fsdp with weights gathered for each pass or once."""
    parts = grid["dp"] * grid["fsdp"] * grid["ep"]
    remats = [REMATS.index(remat) for remat in bounds.remats or REMATS]
    legal = np.flatnonzero(batch % parts == 0)
    shares = (batch // parts[legal]).tolist()
    tried = {share: _list_micro_batches(share, bounds.gradient_accumulation_steps) for share in set(shares)}
    pairs = sorted((micro, row) for row, share in zip(legal.tolist(), shares, strict=True) for micro in tried[share])
    choices = np.meshgrid((False, True), (False, True), np.arange(len(pairs)), remats, states, indexing="ij")
    filled, once, pair, remat, optimizer = map(np.ravel, choices)
    micro, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)[pair].T
    stages, steps = grid["pp"][rows], batch // parts[rows] // micro
    fits = ~once | (stages > 1) & (grid["fsdp"] > 1)[rows]
    # all micro-batches in one run; or in each as many as stages
    fits &= ~filled | (stages > 1) & (steps % stages == 0) & (steps > stages)
    runs = np.where(fits & filled, steps // stages, 1)
    sizes = {name: values[rows] for name, values in grid.items()} | {"pipeline_runs": runs}
    batches = {"micro_batch_size": micro, "gradient_accumulation_steps": steps, "gathers_once": once}
    return Layout(**sizes, **batches, remat=remat, optimizer_bytes=optimizer).take(fits)


def _list_micro_batches(share: int, steps: int | None) -> list[int]:
    """Returns the micro-batches to try of a layout's part of the batch; with given accumulation steps the only one."""
    if steps:
        return [] if share % steps else [share // steps]
    return list_divisors(share)[:MICRO_BATCHES]


@dataclass(frozen=True)
class Hardware:
    """The facts of a topology that a search needs.

    Attributes:
        chip: of every device.
        domain: devices joined by a fast network: of a host, an NVLink domain or a slice. Where their sizes differ, a
            common divisor; of devices that are all used, the least of any.
        shape, wrap: of a slice, in chips; empty for GPUs.
        memory_bytes: the least memory of any device, where its host reports it; None: that of the chip table.
        measured: bench results of these devices; empty: the tables' figures are used.
        pair_bytes_per_s: of one GPU to one other of its host, one way; None where it is unknown, or where
            some pairs have no link.
        network: between the hosts, as preflights measured it; None where one of them has not.
        is_network_assumed: the chip table has no rate between hosts, and `chip` has a share of a usual NIC.
    """

    chip: Chip
    devices: int
    domain: int
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    memory_bytes: int | None = None
    measured: Measurements = field(default_factory=Measurements)
    pair_bytes_per_s: float | None = None
    network: MeasuredNetwork | None = None
    is_network_assumed: bool = False

    @classmethod
    def of(cls, topology: Topology, devices: int, chosen: Sequence[int], measured: Measurements | None = None) -> Self:
        """Returns the facts of `devices` devices of a topology.

        Args:
            chosen: places of the devices that may be among them: kinds and memory are theirs; a fast domain counts with
                all of its devices.
            measured: bench results of them, where the topology is this host's.

        Raises:
            PlanInfeasibleError: its devices are of several kinds or not in the chip table, or its granules differ.
        """
        kinds = {topology.devices[index].kind for index in chosen}
        chip = find_chip(next(iter(kinds))) if len(kinds) == 1 else None
        if chip is None:
            rule = "no figures of it are known" if len(kinds) == 1 else "a model is priced on one kind of chip"
            raise _refuse(f"the devices are {', '.join(sorted(kinds)) or 'none'}; {rule}")
        ordinals = {topology.devices[index].granule for index in chosen}
        domains = {topology.domains[ordinal] for ordinal in ordinals}
        near = (index for index, each in enumerate(topology.devices) if topology.domains[each.granule] in domains)
        sizes = {len(group) for group in topology.group(near)}
        held = [len(group) for group in topology.group(chosen)]
        shapes = {(granule.shape, granule.wrap) for granule in map(topology.by_ordinal.__getitem__, ordinals)}
        if chip.platform == "tpu" and (len(sizes | shapes) > 2 or None in next(iter(shapes))):
            raise _refuse("slices differ in size or shape; a model is priced on equal ones")
        is_assumed = not chip.scaleout_bytes_per_s
        if is_assumed:
            chip = replace(chip, scaleout_bytes_per_s=NETWORK_BYTES_PER_S / max(sizes) * chip.jax_devices_per_chip)
        memory = [topology.equipment[ordinal][1] for ordinal in ordinals]
        shape, wrap = next(iter(shapes)) if chip.platform == "tpu" else ((), ())
        return cls(
            chip=chip,
            devices=devices,
            domain=min(min(held) if len(chosen) == devices else math.gcd(*sizes), max(held), devices),
            shape=tuple(shape or ()),
            wrap=tuple(wrap or ()),
            memory_bytes=min((least for least in memory if least is not None), default=None),
            measured=measured or Measurements(),
            pair_bytes_per_s=_find_pair_rate(topology, chosen[0]),
            network=topology.network if len(ordinals) > 1 else None,
            is_network_assumed=is_assumed,
        )

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The measurements beside the tables' figures, also those that no such chip can have."""
        chip, found = self.chip, []
        if matmul := self.measured.find("matmul", chip.dtype):
            alone = MATMUL_ALONE[chip.platform] * chip.flops_per_s
            expected = (chip.measured_flops_per_s or alone) / chip.jax_devices_per_chip
            found.append(Factor.of(matmul, expected, chip.device_flops_per_s))
        if copy := self.measured.find("memory_bandwidth"):
            peak = chip.device_memory_bytes_per_s
            found.append(Factor.of(copy, COPY_ALONE * peak, peak))
        if reduced := self.measured.find("all_reduce"):
            group = reduced.large.axis_size or 1
            span = self._lay_published(Layout(tp=group), group)["tp"]
            rows = (reduced.large, reduced.small) if reduced.small else (reduced.large,)
            seconds = [float(span.time("all_reduce", row.size_bytes)) for row in rows]
            estimated_s = seconds[0] - sum(seconds[1:])
            expected = reduced.rate * reduced.seconds / estimated_s
            found.append(Factor.of(reduced, expected, float(np.max(span.inner.bytes_per_s))))
        if (net := self.network) is not None:
            span = self._lay_published(Layout(dp=2 * self.domain), self.domain)["dp"]
            expected = NETWORK_SIZE_BYTES / float(span.send_across(NETWORK_SIZE_BYTES))
            found.append(Factor("network", net.bytes_per_s, net.run_id, net.age_s, expected, expected))
        return tuple(found)

    def find_ratio(self, case: str) -> float:
        """Returns by how much a figure differs from the tables'; 1 where it was not measured."""
        return next((factor.ratio for factor in self.factors if factor.case == case and factor.is_taken), 1.0)

    def build_machine(self) -> DeviceRates:
        """Returns the figures of one device: of a GPU that is slower alone than those with runs, as much less."""
        alone = 1.0
        if self.chip.platform == "gpu" and self.chip.measured_flops_per_s:
            alone = min(self.chip.measured_flops_per_s / self.chip.flops_per_s / MATMUL_ALONE["gpu"], 1.0)
        return DeviceRates(
            platform=self.chip.platform,
            flops_per_s=self.chip.device_flops_per_s * alone * self.find_ratio("matmul"),
            memory_bytes_per_s=self.chip.device_memory_bytes_per_s * self.find_ratio("memory_bandwidth"),
            host_bytes_per_s=(self.chip.pcie_bytes_per_s or math.inf) / self.chip.jax_devices_per_chip,
        )

    @property
    def host_capacity_bytes(self) -> float:
        """Bytes of a host's memory that one of its devices may take."""
        return HOST_FRACTION * (self.chip.host_bytes or math.inf) / self.chip.jax_devices_per_chip

    def read(self, plan: Plan) -> Spans:
        """Returns the links of a plan's axes in its own order."""
        return self._scale(read_spans(plan, self.chip, self.pair_bytes_per_s))

    def lay(self, layout: Layout) -> Spans:
        """Returns the links of the axes of each candidate."""
        return self._scale(self._lay_published(layout, self.domain))

    def _scale(self, spans: Spans) -> Spans:
        """Returns the links of axes with all rates at what was measured; latencies do not change.

        All GPUs of a host have one rate: a slower link that a plan found on its axis was measured with the rest.
        """
        across = self.find_ratio("network")
        if across != 1.0:
            spans = {axis: replace(span, outer=scale_links(span.outer, across)) for axis, span in spans.items()}
        factor = next((factor for factor in self.factors if factor.case == "all_reduce" and factor.is_taken), None)
        if factor is None:
            return spans
        rate = factor.ratio * factor.peak if self.chip.platform == "gpu" else None
        return {
            axis: replace(
                span, inner=scale_links(span.inner, rate / np.asarray(span.inner.bytes_per_s) if rate else factor.ratio)
            )
            for axis, span in spans.items()
        }

    @property
    def basis(self) -> str:
        """The source of the constants of a step's time, with the measured figures beside the published ones."""
        words = [KINDS[factor.case][2] for factor in self.factors if factor.is_taken]
        basis = f"fit to published runs on {'TPUs' if self.chip.platform == 'tpu' else 'GPUs'}"
        where = "" if self.network else " on this host"
        return f"{basis}; measured{where}: {', '.join(words)}" if words else basis

    def _lay_published(self, layout: Layout, domain: int) -> Spans:
        """Returns the same at published rates; `domain`: devices that a fast network joins."""
        if self.chip.platform == "tpu":
            return lay_on_torus(layout, self.chip, self.shape, self.wrap)
        return lay_on_hosts(layout, self.chip, domain, self.pair_bytes_per_s)


def scale_links(links: AxisLinks, ratio: Any) -> AxisLinks:
    """Returns the links with their rates scaled."""
    near = None if links.neighbor_bytes_per_s is None else links.neighbor_bytes_per_s * ratio
    rates = {"bytes_per_s": links.bytes_per_s * ratio, "middle_bytes_per_s": links.middle_bytes_per_s * ratio}
    return replace(links, neighbor_bytes_per_s=near, **rates)


def _find_pair_rate(topology: Topology, gpu: int) -> float | None:
    """Returns the slowest NVLink or xGMI rate between a GPU and another of its host, where it has one to each."""
    own = (link for link in topology.links if gpu in (link.a, link.b))
    rates = [link.bandwidth_bytes_per_s for link in own if classify_link(link.kind) in ("nvlink", "xgmi")]
    known = [rate for rate in rates if rate is not None]
    peers = sum(device.host == topology.devices[gpu].host for device in topology.devices) - 1
    return min(known) if 0 < peers == len(known) else None


def _refuse(reason: str) -> PlanInfeasibleError:
    hint = "name the hardware as a target, such as v5p:4x4x4; or POST /mesh/plan a mesh, which needs no prices"
    return PlanInfeasibleError.of("target", f"no mesh can be chosen for a model here: {reason}", hint, reason)


PARTS: Final = ("compute", "remat", "tp", "cp", "ep", "fsdp", "dp", "pp", "bubble")
"""Of a step's time; they add up to all of it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """Candidates with their cost: arrays of one length.

    Attributes:
        parts: seconds of a step by part: each of `PARTS`.
        memory: bytes of the fullest device by part.
        capacity_bytes: bytes of a device that a job may use.
        host_bytes: bytes of a device that lie in its host's memory.
    """

    layout: Layout
    parts: Mapping[str, Floats]
    memory: Mapping[str, Floats]
    capacity_bytes: int
    host_bytes: Floats
    spans: Spans
    hardware: Hardware
    work: Work

    @cached_property
    def total_s(self) -> Floats:
        """Of a step."""
        return np.asarray(np.sum([self.parts[part] for part in PARTS], axis=0), dtype=np.float64)

    @cached_property
    def memory_bytes(self) -> Floats:
        """Of the fullest device."""
        return np.asarray(np.sum(list(self.memory.values()), axis=0), dtype=np.float64)

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the memory is within the capacity, and what lies in the host's within a part of that."""
        return (self.memory_bytes <= self.capacity_bytes) & (self.host_bytes <= self.hardware.host_capacity_bytes)

    def name_wire(self, part: str, place: int) -> str:
        """Returns the wire of an axis of a candidate: "dcn", or the links inside: "ici", "nvlink", "xgmi", "pcie"."""
        span = self.spans.get(part)
        if span is None:
            return part
        outer = np.broadcast_to(np.asarray(span.outer.size), self.total_s.shape)[place]
        chip, pair = self.hardware.chip, self.hardware.pair_bytes_per_s
        joined = "xgmi" if chip.family.startswith("mi") else "nvlink"  # AMD Instinct: mi300x, mi355x …
        inside = "ici" if chip.platform == "tpu" else joined if chip.link_bytes_per_s or pair else "pcie"
        return "dcn" if outer > 1 else inside


@dataclass(frozen=True)
class Question:
    """The step and the hardware to price.

    Attributes:
        model, training: the step.
        memory_fraction: part of a GPU's memory that the job may take.
    """

    model: ModelSpec
    training: TrainingSpec
    hardware: Hardware
    memory_fraction: float
    price_per_device_hour: float | None = None

    def list_space(self, bounds: Bounds) -> Space:
        """Returns all candidates within bounds."""
        bounds = replace(bounds, remats=bounds.remats or self.remats)
        return list_space(self.hardware.devices, self.model, self.training, bounds)

    @property
    def remats(self) -> tuple[Remat, ...]:
        """All that may be chosen; offload only where the host's memory is known."""
        return REMATS if self.hardware.chip.host_bytes else tuple(remat for remat in REMATS if remat != "offload")

    def with_batch(self, global_batch_size: int) -> Question:
        """Returns the question for another batch."""
        return replace(self, training=self.training.model_copy(update={"global_batch_size": global_batch_size}))

    def price(self, layout: Layout, spans: Spans | None = None) -> Priced:
        """Returns the cost of candidates; `spans` are the links of axes, where an order of devices gives them."""
        training, hardware = self.training, self.hardware
        work = build_work(self.model, training.seq_len)
        execution = build_execution(self.model, training, hardware.chip)
        spans = hardware.lay(layout) if spans is None else spans
        parts = StepTime(work, layout, hardware.build_machine(), spans, execution).price()
        shape = np.broadcast_shapes((1,), *map(np.shape, vars(layout).values()))

        def spread(figures: Mapping[str, Any]) -> dict[str, Floats]:
            return {name: np.broadcast_to(np.asarray(each, dtype=np.float64), shape) for name, each in figures.items()}

        memory = spread(self.price_memory(layout))
        (host_bytes,) = spread({"host": self.count_host_bytes(layout)}).values()
        return Priced(layout, spread(parts), memory, self.capacity_bytes, host_bytes, spans, hardware, work)

    def fits(self, layout: Layout) -> NDArray[np.bool_]:
        """Returns whether candidates fit, by their memory alone."""
        in_device = sum(self.price_memory(layout).values()) <= self.capacity_bytes
        return np.asarray(in_device & (self.count_host_bytes(layout) <= self.hardware.host_capacity_bytes))

    def count_host_bytes(self, layout: Layout) -> Any:
        """Returns the bytes of a device of candidates that lie in its host's memory."""
        execution = build_execution(self.model, self.training, self.hardware.chip)
        return count_offloaded(build_work(self.model, self.training.seq_len), layout, execution.value_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of a device that the job may use."""
        return find_capacity(self.hardware.chip, self.hardware.memory_bytes, self.memory_fraction)

    def price_memory(self, layout: Layout) -> PartBytes:
        """Returns the bytes of the fullest device of candidates."""
        work = build_work(self.model, self.training.seq_len)
        return StepMemory.of(work, layout, self.model, self.training, self.hardware.chip).price()

"""A plan for a given mesh: its devices in order, the links of each axis, and its warnings.

Uses only the topology and the chip table; a figure that neither has is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.device_order import AxisScore, DeviceOrder, list_edges, list_lines, score_layout, search_layout
from meshwright.planning.device_selection import (
    Health,
    Pool,
    describe_left_out,
    find_foreign,
    find_leased,
    is_own,
    list_packings,
    name_holders,
    name_hosts,
    name_leases,
    refuse,
    refuse_leased,
    select_devices,
    sort_plain,
)
from meshwright.planning.granules import Weights, check_importance, read_dcn, split_axes, weigh_axes
from meshwright.planning.hardware import find_memory_fraction
from meshwright.planning.hf_config import UnsupportedModelError
from meshwright.planning.job_code import build_job_environment, find_differing, write_code
from meshwright.planning.models import fill_sequence_length, read_model
from meshwright.planning.parallelism import MeshAxes, list_rules, offer_shapes, search_shapes
from meshwright.spec import AxisType, MeshSpec, parse_axis_types
from meshwright.topology.chips import find_chip
from meshwright.topology.identity import fingerprint
from meshwright.topology.links import classify_link, price_pair
from meshwright.topology.model import NAMES_SHOWN, Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Granule
from meshwright.wire.mesh import Plan, PlanAxis, PlanRequest
from meshwright.wire.model import TrainingSpec

Lines = tuple[tuple[int, ...], ...]
"""The devices along an axis, one tuple for each place on the other axes."""


def build_axes(spec: MeshSpec, topology: Topology, layout: DeviceOrder) -> tuple[PlanAxis, ...]:
    """Returns the links of each axis."""
    scores = layout.score.axes if layout.score else (AxisScore(),) * len(spec.sizes)
    return tuple(
        _build_axis(name, size, topology, _list_some(spec.sizes, axis, layout), scores[axis])
        for axis, (name, size) in enumerate(spec)
    )


def leave_out_devices(plan: Plan) -> Plan:
    """Returns the plan for `include_devices=false`: without what grows with the number of devices."""
    return plan.model_copy(update={"devices": ()})


def _list_some(sizes: Sequence[int], axis: int, layout: DeviceOrder) -> Lines:
    """Returns the lines that have to be inspected: one where all are alike."""
    if not layout.is_regular:
        return list_lines(sizes, axis, layout.order)
    stride = math.prod(sizes[axis + 1 :])
    return (layout.order[: sizes[axis] * stride : stride],)


def _build_axis(name: str, size: int, topology: Topology, lines: Lines, score: AxisScore) -> PlanAxis:
    if size == 1:
        return PlanAxis(name=name, size=1)
    known: dict[str, Any] = {"name": name, "size": size, "max_hops": score.hops, "links": score.links}
    known["group_shape"] = _measure_shape(topology, lines)
    if score.granules > 1:
        chip, network = find_chip(topology.devices[lines[0][0]].kind), topology.network
        declared = chip.scaleout_bytes_per_s / chip.jax_devices_per_chip if chip and chip.scaleout_bytes_per_s else None
        rate = network.bytes_per_s if network else declared
        basis = "measured" if network else "declared" if rate else None
        return PlanAxis(**known, dcn_size=score.granules, link="dcn", bandwidth_bytes_per_s=rate, basis=basis)
    # all links of a torus are alike, so the first edge of a line represents the others
    edges = (edge for line in lines for edge in (list_edges(line) if score.step is None else [(line[0], line[1])]))
    slowest = max(edges, key=lambda edge: price_pair(topology, *edge))
    link, rate, basis = _read_link(topology, slowest)
    return PlanAxis(**known, link=link, bandwidth_bytes_per_s=rate, basis=basis)


def _read_link(topology: Topology, edge: tuple[int, int]) -> tuple[str | None, float | None, str | None]:
    """Returns the class of a direct link, its bandwidth, and how that is known; of an ICI link that is not listed, the
    table's."""
    link, hops, chip = topology.link(*edge), topology.hops(*edge), find_chip(topology.devices[edge[0]].kind)
    name = "ici" if hops is not None else "host" if topology.platform == "cpu" else None
    is_far = len({topology.places[index][0] for index in edge}) == 2
    if link is None and is_far and topology.platform == "gpu" and topology.is_joined(*edge):
        # hosts of one NVLink domain, whose links are not listed
        name, inside = "nvlink", topology.links_of(edge[0])
        link = next((link for link in inside if classify_link(link.kind) == "nvlink"), None)
    name = classify_link(link.kind) if link else name
    if link is not None and link.bandwidth_bytes_per_s is not None:
        return name, link.bandwidth_bytes_per_s, link.basis
    rate = chip.link_bytes_per_s if chip and hops is not None else None
    return name, rate, "declared" if rate else None


def _measure_shape(topology: Topology, lines: Lines) -> tuple[int, ...] | None:
    """Returns the number of places of a line along each dimension; None where lines differ or coordinates are
    unknown."""
    places = [[topology.devices[index].coords or () for index in line] for line in lines]
    if not all(map(all, places)):
        return None
    shapes = {tuple(len(set(values)) for values in zip(*line, strict=False)) for line in places}
    return shapes.pop() if len(shapes) == 1 else None


CLEARLY_RATIO: Final = 0.99
"""An order must cost less than this part of another one before a warning names it."""


def plan_mesh(
    request: PlanRequest,
    topology: Topology,
    *,
    health: Health | None = None,
    target: str | None = None,
    notices: Sequence[Notice] = (),
) -> Plan:
    """Returns the plan of a mesh.

    Args:
        request: the mesh, the devices that may be used, and how.
        health: the state of each device by its place in `topology.devices`; those that are not in it are taken to be
            well.
        target: the plan's name of its hardware, where that is not this host.
        notices: about the topology: every plan carries them.

    Raises:
        InvalidMeshError: the mesh or its axis types are malformed.
        InvalidRequestError: `dcn` or `importance` names no axis of the mesh.
        PlanInfeasibleError: more devices than there are, sizes that cannot divide them, an unknown or doubled device,
            or a split over granules that does not fit.
        PlanInfeasibleError: devices would be left unused without permission in the request.
        DeviceLeasedError: leases of others have too many of the devices.
    """
    asked = MeshSpec.parse(request.mesh)
    axis_types = parse_axis_types(request.axis_types, asked.names)
    importance = check_importance(request.importance, asked.names)
    pool = select_devices(request.devices, topology, health or {}, request.lease)
    spec = _resolve(request, asked, pool, topology)
    planner = _Planner(request, topology, health or {}, pool, spec, weigh_axes(spec.names, spec.sizes, importance))
    unused, layout = planner.check_unused(), planner.lay_out()
    warnings = (*notices, *pool.notices, *unused, *planner.build_notices(layout))
    return planner.build_plan(axis_types, layout, target, warnings)


@dataclass(frozen=True)
class _Planner:
    """A mesh without -1 on the devices that it may use."""

    request: PlanRequest
    topology: Topology
    health: Health
    pool: Pool
    spec: MeshSpec
    weights: Weights

    def check_unused(self) -> tuple[Notice, ...]:
        """Returns the warning of unused devices; raises PlanInfeasibleError where the request does not allow them."""
        spec, pool, there = self.spec, self.pool, len(self.pool.indices)
        if spec.device_count == there:
            return ()
        here = _describe_there(pool, self.topology, self.request.lease)
        detail = f"mesh {spec} uses {spec.device_count} devices; {here}; {there - spec.device_count} would stay idle"
        if not (pool.is_named or self.request.allow_unused):
            rule = "a plan uses all devices unless allow_unused is set"
            hint = f"{_offer(self.request, spec, there)}; or name devices, or set allow_unused"
            raise PlanInfeasibleError.of("mesh", f"{detail}, and {rule}", hint, rule, code="devices_unused")
        return (Notice(code="devices_unused", message=detail, hint=_offer(self.request, spec, there)),)

    def lay_out(self) -> DeviceOrder:
        """Returns the order of the devices that is asked for, or the best."""
        if self.request.device_order == "given":
            order = self.pool.indices[: self.spec.device_count]
            return score_layout(self.spec.sizes, self.weights, self.topology, order)
        pool = self.pool.alternatives if self.pool.is_counted else self.pool.indices
        return self._search(sort_plain(self.topology, pool), self.request.dcn)

    def _search(self, pool: Sequence[int], asked: str | Mapping[str, int] | None) -> DeviceOrder:
        """Returns the best layout on devices of the pool: of the sets that may be taken, the one with the best
        score."""
        spec, topology = self.spec, self.topology
        found, refused = [], []
        for chosen in list_packings(topology, pool, spec.device_count):
            try:
                dcn = None if asked is None else read_dcn(asked, spec, list(map(len, topology.group(chosen))))
            except PlanInfeasibleError as error:
                refused.append(error)
                continue
            found.append(search_layout(spec.sizes, self.weights, topology, chosen, dcn=dcn))
        if not found:
            raise refused[0]
        return min(found, key=lambda layout: layout.score.key if layout.score else ())

    def _find_better(self, layout: DeviceOrder) -> tuple[int, ...] | None:
        """Returns a clearly cheaper order of free devices, the same or others; None where there is none."""
        pool, request = self.pool, self.request
        is_chosen = pool.is_named and not pool.is_counted
        is_free = request.device_order == "planned" and request.dcn is None and not is_chosen
        if layout.score is None or is_free or len(pool.alternatives) < self.spec.device_count:
            return None
        found = self._search(pool.alternatives, None)
        return found.order if found.score and _is_clearly_better(found.score.key, layout.score.key) else None

    def build_plan(
        self, axis_types: tuple[AxisType, ...], layout: DeviceOrder, target: str | None, warnings: tuple[Notice, ...]
    ) -> Plan:
        """Returns the plan of a layout."""
        spec, topology, request, order = self.spec, self.topology, self.request, layout.order
        name = fingerprint(spec.axes, axis_types, list(map(topology.places.__getitem__, order)))
        fraction = find_memory_fraction(request.memory_strategy, trains=request.model is not None)
        environment = build_job_environment(topology, order, fraction)
        return Plan(
            fingerprint=name,
            mesh_shape=dict(spec.axes),
            axis_types=dict(zip(spec.names, axis_types, strict=True)),
            platform=topology.platform,
            devices=tuple(topology.devices[index].to_reference() for index in order) if request.include_devices else (),
            granules=list_granules(topology),
            axes=build_axes(spec, topology, layout),
            device_order=layout.method,
            target=target,
            environment=environment,
            code=write_code(spec, axis_types, topology, order, environment=environment, fingerprint=name),
            warnings=warnings,
        )

    # ---- warnings --------------------------------------------------------------------------------------

    def build_notices(self, layout: DeviceOrder) -> Iterator[Notice]:
        """Yields the warnings about the devices of a layout, and about their order."""
        planned, request = set(layout.order), self.request
        used = [index for index in self.topology.order if index in planned]
        yield from self._describe_states(used)
        yield from self._describe_parts(used)
        if better := self._find_better(layout):
            yield from self._describe_slow(layout.order, better)
        if request.dcn is None and request.importance is None and request.device_order == "planned":
            yield from self._describe_crossing(layout.order)

    def _describe_states(self, used: Sequence[int]) -> Iterator[Notice]:
        """Warns of devices that are not healthy, or that others have; also of those that are assumed to be free because
        their processes are unknown. A target has no processes, and the job's reserved devices belong to the job."""
        topology, health, lease = self.topology, self.health, self.request.lease
        for state in sorted({"unhealthy", "degraded"} & set(health.values()), reverse=True):
            if found := [index for index in used if health.get(index) == state]:
                message = f"device {topology.describe(found)} is {state}"
                hint = "see GET /health for the reason; leave devices out with devices.exclude"
                yield Notice(code=f"devices_{state}", message=message, hint=hint)
        if prohibited := [index for index in used if topology.devices[index].compute_mode == "prohibited"]:
            message = f"device {topology.describe(prohibited)} is closed to all processes"
            hint = "nvidia-smi -c DEFAULT on the host, or leave devices out with devices.exclude"
            yield Notice(code="devices_prohibited", message=message, hint=hint)
        if leased := find_leased(topology, used, lease):
            hint = "wait until it ends (GET /leases), give the job's own `lease`, or choose with devices.count"
            yield Notice(code="devices_leased", message=name_leases(topology, leased), hint=hint)
        if held := find_foreign(topology, used):
            hint = "wait for it, or choose among free devices with devices.count"
            yield Notice(code="devices_shared", message=name_holders(topology, held), hint=hint)
        devices = topology.devices
        unknown = [i for i in used if devices[i].processes is None and devices[i].basis != "declared"]
        if unknown := [index for index in unknown if not is_own(topology, index, lease)]:
            message = f"the processes on device {topology.describe(unknown)} are unknown: it may be taken"
            hint = "let the agent look into all processes (root or CAP_SYS_PTRACE; in a pod hostPID), or reserve the "
            hint += "devices with a lease and give it as `lease`"
            yield Notice(code="holders_unknown", message=message, hint=hint)

    def _describe_parts(self, used: Sequence[int]) -> Iterator[Notice]:
        """Warns of devices that are parts of a GPU, that differ, or that hosts have in different numbers."""
        topology = self.topology
        if instances := [index for index in used if topology.devices[index].mig]:
            message = f"device {topology.describe(instances)} is a MIG instance: a part of a GPU, without NVLink"
            if len(used) > 1:
                message += "; a process can use one instance only, so a mesh of several needs a process for each"
            yield Notice(code="mig_instances", message=message, hint="plan on whole GPUs, or on one instance")
        kinds = sorted({topology.devices[index].kind for index in used})
        if len(kinds) > 1:
            message = f"the mesh joins {len(kinds)} kinds: {', '.join(kinds)}; the slowest sets the pace"
            yield Notice(code="devices_differ", message=message, hint="name devices of one kind in `devices`")
        counts = [len(group) for group in topology.group(used)]
        if len(set(counts)) > 1:
            told = ", ".join(map(str, counts[:NAMES_SHOWN])) + (", …" if len(counts) > NAMES_SHOWN else "")
            message = f"mesh {self.spec} lies on {len(counts)} granules (slices, or hosts) with {told} of its devices: "
            message += "unless its axes divide both, some groups of an axis cross them and others do not"
            hint = "compare it with as many devices on each, by name or by devices.exclude"
            yield Notice(code="granules_uneven", message=message, hint=hint)
        if found := find_differing(topology, used):
            name, values = found
            told = "; ".join(f"{host}: {value or 'unset'}" for host, value in list(values.items())[:NAMES_SHOWN])
            more = f"; … ({len(values) - NAMES_SHOWN} more)" if len(values) > NAMES_SHOWN else ""
            message = f"hosts need different values of {name}, which `environment` leaves out: {told}{more}"
            hint = f"start the process of each host with its own {name}"
            yield Notice(code="environment_differs", message=message, hint=hint)

    def _describe_slow(self, order: Sequence[int], better: Sequence[int]) -> Iterator[Notice]:
        topology = self.topology
        planned = set(order)
        others = [index for index in better if index not in planned]
        name = f"name devices {topology.describe(sorted(better))}"
        choose = name if len(better) <= NAMES_SHOWN else f'choose them by number: devices {{"count": {len(better)}}}'
        hint = "leave dcn out" if self.request.dcn is not None else 'use device_order "planned"'
        for axis, (name, _) in enumerate(self.spec):
            ours, theirs = (self._find_slowest(axis, devices) for devices in (order, better))
            if ours and theirs and ours[0] > theirs[0]:
                yield Notice(
                    code="slow_link",
                    message=f"axis {name} runs over {_name_edge(topology, *ours[1])}; "
                    f"it could do with {_name_edge(topology, *theirs[1])}",
                    hint=choose if others else hint,
                )

    def _describe_crossing(self, used: Sequence[int]) -> Iterator[Notice]:
        """Warns of an axis that crosses granules while one with less traffic stays inside: the order of the axes or
        their sizes make it so."""
        spec, topology = self.spec, self.topology
        counts = [len(group) for group in topology.group(used)]
        split = split_axes(spec.sizes, len(counts)) if len(set(counts)) == 1 else None
        if split is None or len(counts) == 1:
            return
        traffic = weigh_axes(spec.names, spec.sizes).inside
        inside = [axis for axis, size in enumerate(spec.sizes) if split[axis] < size]
        for axis in sorted(range(len(spec.sizes)), key=traffic.__getitem__, reverse=True):
            lighter = [other for other in inside if traffic[other] < traffic[axis]]
            if split[axis] == 1 or not lighter:
                continue
            granule = topology.by_ordinal[topology.devices[used[0]].granule]
            name, kind = spec.names[axis], "NVLink domain" if granule.domain else granule.kind
            turned = MeshSpec(tuple(spec.axes[place] for place in sorted(range(len(traffic)), key=traffic.__getitem__)))
            shapes = [turned, *search_shapes(spec, spec.device_count, most=16)]
            less = (shape for shape in shapes if _count_crossed(shape, name, len(counts)) < split[axis])
            better = [shape for shape in less if _is_cut(self.request, shape)]
            yield Notice(
                code="axis_crosses",
                message=f"axis {name} crosses {split[axis]} {kind}s, while axis {spec.names[lighter[0]]}, which has "
                f"less traffic, stays inside; granules are spread over the outermost axes first",
                hint=f"use {better[0]}" if better else f"choose sizes whose outer axes take all {len(counts)} {kind}s",
            )
            return

    def _find_slowest(self, axis: int, order: Sequence[int]) -> tuple[float, tuple[int, int]] | None:
        """Returns the cost and the devices of the slowest edge along an axis, on a torus without the way back to the
        start; None for an axis without edges."""
        pair = pairwise if self.topology.platform == "tpu" else list_edges
        edges = [edge for line in list_lines(self.spec.sizes, axis, order) for edge in pair(line)]
        costs = ((round(price_pair(self.topology, *edge), 6), edge) for edge in edges)
        return max(costs, key=lambda cost: cost[0], default=None)


def _resolve(request: PlanRequest, asked: MeshSpec, pool: Pool, topology: Topology) -> MeshSpec:
    """Returns the mesh without -1, that the pool has enough devices for."""
    count, needed = len(pool.indices), asked.device_count
    if needed <= count and not (-1 in asked.sizes and count % needed):
        return asked.resolve(count)
    works, there = _offer(request, asked, count), _describe_there(pool, topology, request.lease)
    if pool.leased and needed <= count and (count + len(pool.leased)) % needed == 0:
        words = f"mesh {asked} needs a multiple of {needed} devices"
        raise refuse_leased(words, topology, pool.leased, pool.why_held, works, field="mesh")
    if needed <= count:
        free = asked.names[asked.sizes.index(-1)]
        found = f"{there}; the sizes beside {free} make {needed}, and the rest of the devices fills an axis only if the"
        raise refuse(f"mesh {asked}: {found} others divide them", works, "mesh")
    words = f"mesh {asked} needs {'at least ' if -1 in asked.sizes else ''}{needed} devices"
    if needed <= count + len(pool.leased):
        raise refuse_leased(words, topology, pool.leased, pool.why_held, works, field="mesh")
    raise refuse(f"{words}; {there}; the product of the sizes cannot be more", works, "mesh")


def _describe_there(pool: Pool, topology: Topology, lease: str | None) -> str:
    here = f"{name_hosts(topology)} {len(topology.devices)}"
    if pool.is_named:
        return f"{here}, of which {len(pool.indices)} were chosen{f' by lease {lease}' * bool(lease)}{pool.why_held}"
    left_out = f", of which {describe_left_out(topology, pool.left_out)} as not well" if pool.left_out else ""
    return here + left_out + pool.why_held


def _offer(request: PlanRequest, asked: MeshSpec, count: int) -> str:
    """Returns near meshes of so many devices, as a hint: those that cut the model, where there is one."""
    shapes = offer_shapes(asked, count, lambda shape: _is_cut(request, shape))[:2]
    if not shapes:
        return "no near mesh cuts the model into equal parts; POST /mesh/search finds one"
    if -1 not in asked.sizes and count > 1:
        (name, _), *rest = shapes[0].axes
        shapes = [shapes[0], MeshSpec(((name, -1), *rest))]
    return f"use {' or '.join(dict.fromkeys(map(str, shapes)))}"


def _is_clearly_better(one: Sequence[float], other: Sequence[float]) -> bool:
    """True when the first part in which two scores differ clearly is smaller in the first."""
    pairs = zip(one, other, strict=True)
    return next((a < b for a, b in pairs if a < CLEARLY_RATIO * b or b < CLEARLY_RATIO * a), False)


def _count_crossed(spec: MeshSpec, name: str, granule_count: int) -> int:
    """Returns over how many granules the groups of an axis go."""
    split = split_axes(spec.sizes, granule_count)
    return granule_count if split is None else split[spec.names.index(name)]


def _is_cut(request: PlanRequest, shape: MeshSpec) -> bool:
    """Returns whether a shape cuts the request's model, where it has one; batch and sequence where they are given."""
    count, axes = shape.device_count, MeshAxes.of(dict(shape.axes))
    training = request.training or TrainingSpec(global_batch_size=count, seq_len=count)
    try:
        model = request.model and read_model(request.model)
    except UnsupportedModelError:
        return False
    rules = list_rules(model, fill_sequence_length(model, training)) if model else ()
    return all(replace(rule, may_differ=False).allows(axes.count_parts(rule.roles)) for rule in rules)


def _name_edge(topology: Topology, a: int, b: int) -> str:
    if not topology.is_joined(a, b):
        kind = topology.by_ordinal[topology.places[a][0]].kind
        return f"the network between {kind}s (devices {topology.describe((a, b))})"
    link, hops = topology.link(a, b), topology.hops(a, b)
    way = f"{hops} ICI hops" if hops is not None else link.kind if link else "no direct link"
    return f"{way} (devices {topology.describe((a, b))})"


def list_granules(topology: Topology) -> tuple[Granule, ...]:
    """Returns the granules of a topology in the form of a plan."""
    granules = []
    for granule in topology.granules:
        kinds, memory_bytes = topology.equipment[granule.ordinal]
        found = {"device_kind": kinds[0] if len(kinds) == 1 else None, "device_memory_bytes": memory_bytes}
        granules.append(granule.model_copy(update=found))
    return tuple(granules)

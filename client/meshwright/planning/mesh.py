"""Plans for explicit meshes: which device stands where, and everything that JAX would have let through
silently.

Rule: pure; a request and a topology in, plans or a refusal out. The steps: read the mesh, choose the devices,
fill in the -1, refuse what does not fit, order, and tell. Knows no model, so memory and step time stay null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.errors import DevicesUnusedError
from meshwright.planning.assign import price_order, search_subset
from meshwright.planning.axes import build_axes
from meshwright.planning.code import build_job_environment, write_code
from meshwright.planning.notices import build_notices
from meshwright.planning.order import search_assignment
from meshwright.planning.selection import Health, Pool, name_hosts, refuse, select_devices, tell_taken
from meshwright.planning.shapes import search_shapes
from meshwright.spec import AxisType, MeshSpec, parse_axis_types
from meshwright.topology.identity import fingerprint
from meshwright.topology.links import price_pairs
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, PlanGranule, PlanRequest, Plans

SCORE_UNIT: Final = "time of a byte over PCIe 4.0 x16; worst plus mean edge; an axis counts a quarter of the one inside"

CLEARLY_RATIO: Final = 0.99
"""An order must cost less than this part of another one before a warning names it."""


@dataclass(frozen=True)
class _Layout:
    """Devices in mesh order (row-major), what the order costs, and what the plain order of the same devices
    does."""

    order: tuple[int, ...]
    cost: float | None
    plain_cost: float | None
    method: str


def plan_mesh(request: PlanRequest, topology: Topology, *, health: Health | None = None) -> Plans:
    """Returns the plan for an explicit mesh.

    Args:
        request: the mesh, the devices that may be used, and how.
        topology: what is there.
        health: the state of each device by local index; devices that are not in it are taken to be well.

    Raises:
        InvalidMeshError: the mesh or its axis types are malformed.
        PlanInfeasibleError: more devices than there are, sizes that cannot divide them, or an unknown or
            doubled device.
        DevicesUnusedError: devices would be left unused without anybody having said so.
    """
    health = health or {}
    asked = MeshSpec.parse(request.mesh)
    axis_types = parse_axis_types(request.axis_types, asked.names)
    pool = select_devices(request.devices, topology, health)
    spec = _resolve(asked, pool, topology)
    unused = _check_unused(spec, pool, topology, request)
    layout = _lay_out(spec, pool, topology, is_given=request.device_order == "given")
    better = _find_better(spec, pool, topology, layout)
    notices = pool.notices + unused + build_notices(spec, topology, layout.order, health=health, better=better)
    return Plans(plans=(_build_plan(spec, axis_types, topology, layout, request, notices),))


def _resolve(asked: MeshSpec, pool: Pool, topology: Topology) -> MeshSpec:
    """Returns the mesh without -1, that the pool has enough devices for."""
    count = len(pool.indices)
    needed = asked.device_count
    if count < 1 or (-1 in asked.sizes and needed <= count and count % needed):
        free = asked.names[asked.sizes.index(-1)] if -1 in asked.sizes else asked.names[0]
        raise refuse(
            f"mesh {asked}: {_tell_there(pool, topology)}; the sizes beside {free} make {needed}, and the "
            f"rest of the "
            f"devices fills an axis only if the others divide them",
            _offer(asked, count),
            "mesh",
        )
    if needed > count:
        raise refuse(
            f"mesh {asked} needs {'at least ' if -1 in asked.sizes else ''}{needed} devices; "
            f"{_tell_there(pool, topology)}; "
            f"the product of the sizes cannot be more",
            _offer(asked, count),
            "mesh",
        )
    return asked.resolve(count)


def _tell_there(pool: Pool, topology: Topology) -> str:
    here = f"{name_hosts(topology)} {len(topology.devices)}"
    if pool.is_named:
        return f"{len(pool.indices)} were chosen of those that {here}{tell_taken(topology, pool.held)}"
    left_out = f", of which {topology.describe(pool.left_out)} are left out as not well" if pool.left_out else ""
    return here + left_out + tell_taken(topology, pool.held)


def _offer(asked: MeshSpec, count: int) -> str:
    shapes = [str(shape) for shape in search_shapes(asked, count)]
    if -1 not in asked.sizes and shapes:
        (name, _), *rest = search_shapes(asked, count)[0].axes
        shapes = [shapes[0], str(MeshSpec(((name, -1), *rest)))] if count > 1 else shapes
    return (
        f"use {' or '.join(dict.fromkeys(shapes))}"
        if shapes
        else "no device is left to plan on; GET /health and GET /devices say why"
    )


def _check_unused(spec: MeshSpec, pool: Pool, topology: Topology, request: PlanRequest) -> tuple[Notice, ...]:
    needed, there = spec.device_count, len(pool.indices)
    if needed == there:
        return ()
    detail = f"mesh {spec} uses {needed} devices; {_tell_there(pool, topology)}; {there - needed} would stay idle"
    if not (pool.is_named or request.allow_unused):
        raise DevicesUnusedError(
            f"{detail}, and a plan uses all devices unless it was told otherwise",
            hint=f"{_offer(spec, there)}; or name the devices, or set allow_unused",
            errors=[{"field": "mesh", "message": "a plan uses all devices unless it was told otherwise"}],
        )
    return (Notice(code="devices_unused", message=detail, hint=_offer(spec, there)),)


def _lay_out(spec: MeshSpec, pool: Pool, topology: Topology, *, is_given: bool) -> _Layout:
    count = spec.device_count
    if is_given:
        return _price_given(spec, topology, pool.indices[:count])
    ranks = {index: rank for rank, index in enumerate(topology.order)}
    plain = tuple(sorted(pool.indices, key=ranks.__getitem__))
    if topology.is_uniform:
        return _Layout(plain[:count], None, None, "uniform")
    chosen = _pack(plain, topology, count)
    found = search_assignment(spec.sizes, topology, chosen)
    return _Layout(
        tuple(chosen[rank] for rank in found.order),
        found.cost,
        _price_plain(spec, topology, chosen),
        found.method,
    )


def _pack(plain: tuple[int, ...], topology: Topology, count: int) -> tuple[int, ...]:
    """Returns the `count` devices with the least between them, in plain order."""
    if count == len(plain):
        return plain
    return tuple(plain[rank] for rank in search_subset(count, price_pairs(topology, plain)))


def _price_plain(spec: MeshSpec, topology: Topology, chosen: Sequence[int]) -> float:
    return price_order(range(len(chosen)), spec.sizes, price_pairs(topology, chosen))[0]


def _price_given(spec: MeshSpec, topology: Topology, order: tuple[int, ...]) -> _Layout:
    if topology.is_uniform:
        return _Layout(order, None, None, "given")
    ranks = {index: rank for rank, index in enumerate(topology.order)}
    plain = sorted(order, key=ranks.__getitem__)
    return _Layout(order, _price_plain(spec, topology, order), _price_plain(spec, topology, plain), "given")


def _find_better(spec: MeshSpec, pool: Pool, topology: Topology, layout: _Layout) -> tuple[int, ...] | None:
    """Returns an order of free devices, the same or others, that is clearly cheaper; None where there is
    none."""
    if layout.cost is None or len(pool.alternatives) < spec.device_count:
        return None
    chosen = _pack(pool.alternatives, topology, spec.device_count)
    found = search_assignment(spec.sizes, topology, chosen)
    return tuple(chosen[rank] for rank in found.order) if found.cost < CLEARLY_RATIO * layout.cost else None


def _build_plan(
    spec: MeshSpec,
    axis_types: tuple[AxisType, ...],
    topology: Topology,
    layout: _Layout,
    request: PlanRequest,
    notices: tuple[Notice, ...],
) -> Plan:
    order = layout.order
    name = fingerprint(spec.axes, axis_types, [topology.place(index) for index in order])
    environment = build_job_environment(topology, order, request.memory_strategy)
    code = write_code(spec, axis_types, topology, order, environment=environment, fingerprint=name)
    return Plan(
        fingerprint=name,
        mesh_shape=dict(spec.axes),
        axis_types=dict(zip(spec.names, axis_types, strict=True)),
        platform=topology.platform,
        devices=tuple(topology.references[index] for index in order) if request.include_devices else None,
        granules=_list_granules(topology, order),
        axes=build_axes(spec, topology, order),
        score=_tell_score(layout),
        environment=environment,
        code=code,
        warnings=notices,
    )


def _list_granules(topology: Topology, order: Sequence[int]) -> tuple[PlanGranule, ...]:
    places = [topology.place(index) for index in order]
    return tuple(
        PlanGranule(
            ordinal=granule.ordinal,
            kind=granule.kind,
            name=granule.name,
            device_count=granule.device_count,
            used_positions=tuple(sorted(position for ordinal, position in places if ordinal == granule.ordinal)),
        )
        for granule in topology.granules
    )


def _tell_score(layout: _Layout) -> dict[str, float | str] | None:
    if layout.cost is None or layout.plain_cost is None:
        return {"method": layout.method}
    return {
        "method": layout.method,
        "cost": round(layout.cost, 6),
        "plain_cost": round(layout.plain_cost, 6),
        "unit": SCORE_UNIT,
    }

"""Plans for explicit meshes: which device stands where, and everything that JAX would have let through
silently.

Rule: pure; a request and a topology in, plans or a refusal out. The steps: read the mesh, choose the devices,
fill in the -1, refuse what does not fit, order, and tell. Knows no model, so memory and step time stay null; and not
where the topology comes from (`meshwright.planning.request`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from meshwright.errors import DevicesUnusedError, PlanInfeasibleError
from meshwright.planning.axes import build_axes
from meshwright.planning.device_selection import (
    Health,
    Pool,
    list_packings,
    name_hosts,
    refuse,
    refuse_leased,
    say_left_out,
    select_devices,
    sort_plain,
)
from meshwright.planning.granules import read_dcn
from meshwright.planning.importance import Weights, check_importance, weigh_axes
from meshwright.planning.job_code import build_job_environment, write_code
from meshwright.planning.notices import build_notices, warn_crossing
from meshwright.planning.order import Layout, score_layout, search_layout
from meshwright.planning.parallelism import search_shapes
from meshwright.spec import AxisType, MeshSpec, parse_axis_types
from meshwright.topology.identity import fingerprint
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Granule
from meshwright.wire.mesh import Plan, PlanGranule, PlanRequest, Plans, PlanScore

SCORE_UNIT: Final = (
    "time of a byte over PCIe 4.0 x16; an axis counts 4 times the next one in rank (64 between granules)"
)

CLEARLY_RATIO: Final = 0.99
"""An order must cost less than this part of another one before a warning names it."""


def plan_mesh(
    request: PlanRequest,
    topology: Topology,
    *,
    health: Health | None = None,
    target: str | None = None,
    notices: Sequence[Notice] = (),
) -> Plans:
    """Returns the plan for an explicit mesh.

    Args:
        request: the mesh, the devices that may be used, and how.
        topology: what is there.
        health: the state of each device by its place in `topology.devices`; those that are not in it are taken to be
            well.
        target: what the plan calls the hardware that it was made for, where that is not here.
        notices: about the topology: every plan carries them.

    Raises:
        InvalidMeshError: the mesh or its axis types are malformed.
        InvalidRequestError: `dcn` or `importance` names no axis of the mesh.
        PlanInfeasibleError: more devices than there are, sizes that cannot divide them, an unknown or doubled device,
            or a split over granules that does not fit.
        DevicesUnusedError: devices would be left unused without anybody having said so.
        DeviceLeasedError: leases of others have too many of the devices.
    """
    health = health or {}
    assert request.mesh is not None, "who plans has a mesh: one is searched for in `planning.search`"
    asked = MeshSpec.parse(request.mesh)
    axis_types = parse_axis_types(request.axis_types, asked.names)
    importance = check_importance(request.importance, asked.names)
    pool = select_devices(request.devices, topology, health, request.lease)
    spec = _resolve(asked, pool, topology)
    unused = _check_unused(spec, pool, topology, request)
    weights = weigh_axes(spec.names, spec.sizes, importance)
    layout = _lay_out(spec, weights, pool, topology, request)
    better = _find_better(spec, weights, pool, topology, layout, request)
    found = build_notices(
        spec,
        topology,
        layout.order,
        health=health,
        better=better,
        is_split=request.dcn is not None,
        lease=request.lease,
    )
    is_ours = request.dcn is None and importance is None and request.device_order == "planned"
    crossing = warn_crossing(spec, topology, layout.order) if is_ours else ()
    told = (*notices, *pool.notices, *unused, *found, *crossing)
    return Plans(plans=(_build_plan(spec, axis_types, topology, layout, request, target, told),))


def _resolve(asked: MeshSpec, pool: Pool, topology: Topology) -> MeshSpec:
    """Returns the mesh without -1, that the pool has enough devices for."""
    count = len(pool.indices)
    needed = asked.device_count
    if -1 in asked.sizes and needed <= count and count % needed:
        free = asked.names[asked.sizes.index(-1)]
        raise refuse(
            f"mesh {asked}: {_tell_there(pool, topology)}; the sizes beside {free} make {needed}, and the "
            f"rest of the "
            f"devices fills an axis only if the others divide them",
            _offer(asked, count),
            "mesh",
        )
    if count < needed <= count + len(pool.leased):
        words = f"mesh {asked} needs {'at least ' if -1 in asked.sizes else ''}{needed} devices"
        raise refuse_leased(words, topology, pool.leased, pool.why_held, _offer(asked, count), field="mesh")
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
        return f"{len(pool.indices)} were chosen of those that {here}{pool.why_held}"
    left_out = f", of which {say_left_out(topology, pool.left_out)} as not well" if pool.left_out else ""
    return here + left_out + pool.why_held


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
        rule = "a plan uses all devices unless it was told otherwise"
        hint = f"{_offer(spec, there)}; or name the devices, or set allow_unused"
        raise DevicesUnusedError.of("mesh", f"{detail}, and {rule}", hint, rule)
    return (Notice(code="devices_unused", message=detail, hint=_offer(spec, there)),)


def _lay_out(spec: MeshSpec, weights: Weights, pool: Pool, topology: Topology, request: PlanRequest) -> Layout:
    count = spec.device_count
    if request.device_order == "given":
        return score_layout(spec.sizes, weights, topology, pool.indices[:count])
    return _search(spec, weights, topology, sort_plain(topology, pool.choice), request.dcn)


def _search(
    spec: MeshSpec,
    weights: Weights,
    topology: Topology,
    pool: Sequence[int],
    asked: str | Mapping[str, int] | None,
) -> Layout:
    """Returns the best layout on devices of the pool: of the sets that may be taken, the one with the best score."""
    found, refused = [], []
    for chosen in list_packings(topology, pool, spec.device_count):
        try:
            dcn = None if asked is None else read_dcn(asked, spec, list(map(len, topology.group(chosen))))
        except PlanInfeasibleError as error:
            refused.append(error)
            continue
        found.append(search_layout(spec.sizes, weights, topology, chosen, dcn=dcn))
    if not found:
        raise refused[0]
    return min(found, key=lambda layout: layout.score.key if layout.score else ())


def _find_better(
    spec: MeshSpec,
    weights: Weights,
    pool: Pool,
    topology: Topology,
    layout: Layout,
    request: PlanRequest,
) -> tuple[int, ...] | None:
    """Returns an order of free devices, the same or others, that is clearly cheaper; None where there is
    none."""
    is_chosen = pool.is_named and not pool.is_counted
    is_free = request.device_order == "planned" and request.dcn is None and not is_chosen
    if layout.score is None or is_free or len(pool.alternatives) < spec.device_count:
        return None
    found = _search(spec, weights, topology, pool.alternatives, None)
    return found.order if found.score and _is_clearly_better(found.score.key, layout.score.key) else None


def _is_clearly_better(one: Sequence[float], other: Sequence[float]) -> bool:
    """True when the first part in which two scores differ clearly is smaller in the first."""
    for a, b in zip(one, other, strict=True):
        if a < CLEARLY_RATIO * b:
            return True
        if b < CLEARLY_RATIO * a:
            return False
    return False


def _build_plan(
    spec: MeshSpec,
    axis_types: tuple[AxisType, ...],
    topology: Topology,
    layout: Layout,
    request: PlanRequest,
    target: str | None,
    notices: tuple[Notice, ...],
) -> Plan:
    order = layout.order
    name = fingerprint(spec.axes, axis_types, list(map(topology.places.__getitem__, order)))
    environment = build_job_environment(topology, order, request.memory_strategy)
    code = write_code(spec, axis_types, topology, order, environment=environment, fingerprint=name)
    return Plan(
        fingerprint=name,
        mesh_shape=dict(spec.axes),
        axis_types=dict(zip(spec.names, axis_types, strict=True)),
        platform=topology.platform,
        devices=tuple(topology.references[index] for index in order) if request.include_devices else None,
        granules=list_granules(topology, order, is_listed=request.include_devices),
        axes=build_axes(spec, topology, layout),
        score=_tell_score(layout),
        target=target,
        environment=environment,
        code=code,
        warnings=notices,
    )


def list_granules(topology: Topology, order: Sequence[int] = (), *, is_listed: bool = False) -> tuple[PlanGranule, ...]:
    """Returns the granules of a topology as a plan tells them; with the positions that are used where `is_listed`."""
    used: dict[int, list[int]] = {granule.ordinal: [] for granule in topology.granules}
    for ordinal, position in map(topology.places.__getitem__, order):
        used[ordinal].append(position)
    return tuple(
        _build_granule(granule, topology, tuple(sorted(used[granule.ordinal])) if is_listed else None)
        for granule in topology.granules
    )


def _build_granule(granule: Granule, topology: Topology, used: tuple[int, ...] | None) -> PlanGranule:
    kinds, memory_bytes = topology.equipment[granule.ordinal]
    return PlanGranule(
        ordinal=granule.ordinal,
        kind=granule.kind,
        name=granule.name,
        device_count=granule.device_count,
        used_positions=used,
        device_kind=kinds[0] if len(kinds) == 1 else None,
        device_memory_bytes=memory_bytes,
        shape=granule.shape,
        wrap=granule.wrap,
        twisted=granule.twisted,
    )


def _tell_score(layout: Layout) -> PlanScore:
    if layout.score is None:
        return PlanScore(method=layout.method)
    parts: dict[str, float | int | None] = {}
    for prefix, score in (("", layout.score), ("jax_", layout.jax)):
        if score is not None:
            parts |= {
                f"{prefix}crossing": score.crossing,
                f"{prefix}hops_max": score.hops,
                f"{prefix}cost": score.cost,
            }
    return PlanScore.model_validate({"method": layout.method, "unit": SCORE_UNIT, **parts})

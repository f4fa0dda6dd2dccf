"""Binding: which device of a running job each device of a plan is, or why there is none.

Rule: the strongest name that both sides have decides, and a plan that contradicts itself binds nothing. Pure:
`meshwright.mesh` collects what the job's processes say about themselves. Knows neither jax nor drivers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.errors import PlanMismatchError
from meshwright.topology.identity import (
    DeviceKey,
    JobDevice,
    Position,
    fingerprint,
    group_devices,
    write_chip,
)
from meshwright.wire.mesh import DeviceRef, Plan, PlanGranule


@dataclass(frozen=True)
class Binding:
    """Which device of the job stands where.

    Attributes:
        order: the job's devices in mesh order, row-major.
        places: for every device of the job that the plan's granules have, its granule and position.
    """

    order: tuple[DeviceKey, ...]
    places: Mapping[DeviceKey, Position]


def read_axes(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Returns the plan's axes, outermost first: from `axes`, which keeps its order when JSON's objects do
    not."""
    axes = tuple((axis.name, axis.size) for axis in plan.axes)
    return axes if dict(axes) == plan.mesh_shape else tuple(plan.mesh_shape.items())


def check_plan(plan: Plan) -> tuple[DeviceRef, ...]:
    """Returns the plan's devices in mesh order, having made sure that the plan does not contradict itself.

    Raises:
        PlanMismatchError: the list of devices is left out or has a wrong length, a device stands twice or
            outside its granule, or the fingerprint is not that of the contents.
    """
    refs, axes = plan.devices, read_axes(plan)
    if refs is None:
        raise _refuse(
            f"plan {plan.fingerprint} comes without its devices; a mesh needs them",
            f"ask with include_devices=true, or fetch GET /mesh/plan/{plan.fingerprint}",
        )
    wanted = math.prod(size for _, size in axes)
    if len(refs) != wanted or set(plan.axis_types) != set(plan.mesh_shape):
        raise _corrupt(plan, f"it has {len(refs)} devices and {len(plan.axis_types)} axis types for {axes}")
    places = [(ref.granule, ref.position) for ref in refs]
    _check_distinct(plan, [f"position {position} of granule {granule}" for granule, position in places])
    _check_distinct(plan, [ref.uuid.lower() for ref in refs if ref.uuid])
    _check_distinct(
        plan,
        [f"granule {ref.granule} {write_chip(ref.coords, ref.core_on_chip)}" for ref in refs if ref.coords],
    )
    _check_granules(plan, refs)
    actual = fingerprint(axes, [plan.axis_types[name] for name, _ in axes], places)
    if actual != plan.fingerprint:
        raise _corrupt(plan, f"its contents have the fingerprint {actual}")
    return refs


def _check_distinct(plan: Plan, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        doubled = next(name for name, count in Counter(names).items() if count > 1)
        raise _corrupt(plan, f"{doubled} stands more than once in it")


def _check_granules(plan: Plan, refs: Sequence[DeviceRef]) -> None:
    granules = {granule.ordinal: granule for granule in plan.granules}
    used: dict[int, set[int]] = defaultdict(set)
    for ref in refs:
        used[ref.granule].add(ref.position)
    for ordinal, positions in used.items():
        granule = granules.get(ordinal)
        if granule is None:
            raise _corrupt(plan, f"its devices name granule {ordinal}, its granules are {sorted(granules)}")
        outside = [position for position in positions if not 0 <= position < granule.device_count]
        if outside or positions != set(granule.used_positions or ()):
            raise _corrupt(
                plan,
                f"granule {ordinal} has {granule.device_count} devices, uses {granule.used_positions}, "
                f"and the devices stand at {sorted(positions)}",
            )


def digest(plan: Plan) -> str:
    """Returns a hash of all that `bind` looks at: equal where two processes hold the same plan."""
    parts = plan.model_dump(
        mode="json", include={"fingerprint", "mesh_shape", "axis_types", "platform", "devices", "granules"}
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def bind(plan: Plan, job: Sequence[JobDevice]) -> Binding:
    """Returns which device of the job stands at each position of the plan's mesh.

    The job may see all devices of the plan's granules, or exactly those that the plan uses. A machine of the job is one
    granule; where the plan has more granules than the job has machines (agents in containers of one machine, or a
    rehearsal of a large job on a small one), a machine is several: by uuid, else each is whole processes, in order.

    Args:
        plan: checked here as by `check_plan`.
        job: every device of the job, in any order.

    Raises:
        PlanMismatchError: with the missing and the surplus devices, or since the plan contradicts itself.
    """
    refs = check_plan(plan)
    _check_platform(plan, refs, job)
    wanted: dict[int, list[DeviceRef]] = defaultdict(list)
    for ref in refs:
        wanted[ref.granule].append(ref)
    granules = {granule.ordinal: granule for granule in plan.granules}
    groups = _part_machines(granules, wanted, group_devices(job))
    found = _match_granules(plan, wanted, groups)
    matches = {ordinal: _match(granules[ordinal], wanted[ordinal], members) for ordinal, members in found.items()}
    missing = [name for match in matches.values() for name in match.missing]
    surplus = [name for match in matches.values() for name in match.surplus]
    if missing or surplus:
        raise _refuse_devices(plan, job, missing, surplus)
    at = {(ordinal, position): key for ordinal, match in matches.items() for position, key in match.keys.items()}
    return Binding(
        order=tuple(at[ref.granule, ref.position] for ref in refs),
        places={key: place for place, key in at.items()},
    )


@dataclass(frozen=True)
class _Match:
    keys: Mapping[int, DeviceKey]
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


def _part_machines(
    granules: Mapping[int, PlanGranule], wanted: Mapping[int, list[DeviceRef]], groups: list[list[JobDevice]]
) -> list[list[JobDevice]]:
    """Returns the job's groups, parted between processes where just that makes the plan's granules."""
    if len(groups) >= len(wanted) or any(device.coords for group in groups for device in group):
        return groups
    named = _part_by_uuid(wanted, groups)
    if named is not None:
        return named
    ordinals = sorted(wanted)
    whole = [granules[ordinal].device_count for ordinal in ordinals]
    used = [len(wanted[ordinal]) for ordinal in ordinals]
    return _deal(groups, whole) or _deal(groups, used) or groups


def _part_by_uuid(
    wanted: Mapping[int, list[DeviceRef]], groups: Sequence[Sequence[JobDevice]]
) -> list[list[JobDevice]] | None:
    """Returns the devices of each granule by their uuids, those that are not planned beside others of their process;
    None where a process has none that is planned.
    """
    owners = {_fold(ref.uuid): ordinal for ordinal, refs in wanted.items() for ref in refs if ref.uuid}
    parts: dict[int, list[JobDevice]] = defaultdict(list)
    for group in groups:
        for _, members in groupby(group, key=lambda device: device.process):
            own = list(members)
            known = [owners[_fold(device.uuid)] for device in own if _fold(device.uuid) in owners]
            if not known:
                return None
            for device in own:
                parts[owners.get(_fold(device.uuid), known[0])].append(device)
    return list(parts.values()) if len(parts) == len(wanted) else None


def _deal(groups: Sequence[Sequence[JobDevice]], sizes: Sequence[int]) -> list[list[JobDevice]] | None:
    """Returns parts of these sizes, each of whole processes of one group, in order; None where there are none."""
    parts: list[list[JobDevice]] = []
    for group in groups:
        part: list[JobDevice] = []
        for _, own in groupby(group, key=lambda device: device.process):
            part += own
            if len(parts) < len(sizes) and len(part) == sizes[len(parts)]:
                parts.append(part)
                part = []
        if part:
            return None
    return parts if len(parts) == len(sizes) else None


def _match_granules(
    plan: Plan, wanted: Mapping[int, list[DeviceRef]], groups: Sequence[list[JobDevice]]
) -> dict[int, list[JobDevice]]:
    """Returns the job's group for each granule that the plan uses: by the uuids in it, else by order."""
    if len(groups) != len(wanted):
        kinds = {granule.kind for granule in plan.granules} or {"host"}
        raise _refuse(
            f"plan {plan.fingerprint} is for {len(wanted)} {'/'.join(sorted(kinds))}(s); this job runs on "
            f"{len(groups)}; each granule of the plan must be one of the job, or some processes of one",
            "start the job on the machines that the plan was made for, or plan on these",
            missing=[_name_ref(ref) for refs in list(wanted.values())[len(groups) :] for ref in refs],
            surplus=[str(device) for group in groups[len(wanted) :] for device in group],
        )
    left, found = list(groups), {}
    for ordinal in sorted(wanted):
        uuids = {_fold(ref.uuid) for ref in wanted[ordinal] if ref.uuid}
        best = max(left, key=lambda group: sum(_fold(device.uuid) in uuids for device in group if device.uuid))
        left.remove(best)
        found[ordinal] = best
    return found


def _match(granule: PlanGranule, refs: Sequence[DeviceRef], members: Sequence[JobDevice]) -> _Match:
    if all(ref.uuid for ref in refs) and all(member.uuid for member in members):
        return _match_by(granule, refs, members, lambda device: _fold(device.uuid))
    if all(ref.coords for ref in refs) and all(member.coords for member in members):
        return _match_by(granule, refs, members, lambda device: (device.coords, device.core_on_chip or 0))
    return _match_by_position(granule, refs, members)


def _match_by(
    granule: PlanGranule,
    refs: Sequence[DeviceRef],
    members: Sequence[JobDevice],
    name: Callable[[DeviceRef | JobDevice], Hashable],
) -> _Match:
    here = {name(member): member for member in members}
    positions = {name(ref): ref.position for ref in refs}
    missing = tuple(_name_ref(ref) for ref in refs if name(ref) not in here)
    others = [member for member in members if name(member) not in positions or here[name(member)] is not member]
    is_left_out = not missing and len(here) == len(members) == granule.device_count
    keys = {positions[known]: member.key for known, member in here.items() if known in positions}
    if is_left_out:
        free = sorted(set(range(granule.device_count)) - set(keys))
        keys |= {position: member.key for position, member in zip(free, others, strict=True)}
    return _Match(keys, missing, () if is_left_out else tuple(map(str, others)))


def _match_by_position(granule: PlanGranule, refs: Sequence[DeviceRef], members: Sequence[JobDevice]) -> _Match:
    if len(members) == granule.device_count:
        return _Match({rank: member.key for rank, member in enumerate(members)})
    used = sorted(ref.position for ref in refs)
    by_position = {ref.position: ref for ref in refs}
    return _Match(
        {position: member.key for position, member in zip(used, members, strict=False)},
        tuple(_name_ref(by_position[position]) for position in used[len(members) :]),
        tuple(str(member) for member in members[len(used) :]),
    )


def _name_ref(ref: DeviceRef) -> str:
    """Returns a device of a plan as people find it: by its strongest name, and where it stands."""
    place = ref.uuid or (
        f"coords {write_chip(ref.coords, ref.core_on_chip)}" if ref.coords else f"device {ref.local_index}"
    )
    return f"{place} (position {ref.position} of {ref.host})"


def _fold(uuid: str | None) -> str:
    return (uuid or "").lower()


def _check_platform(plan: Plan, refs: Sequence[DeviceRef], job: Sequence[JobDevice]) -> None:
    others = [device for device in job if device.platform != plan.platform]
    if job and not others:
        return
    there = ", ".join(sorted({device.platform for device in others})) or "no device"
    raise _refuse(
        f"plan {plan.fingerprint} is for {len(refs)} {plan.platform} devices; this job's devices are "
        f"{there}; plan and job must be of one platform",
        f'start the job with the plan\'s environment, or call build_mesh(plan, devices=jax.devices("{plan.platform}"))',
        missing=[_name_ref(ref) for ref in refs],
        surplus=[str(device) for device in others],
    )


def _refuse_devices(
    plan: Plan, job: Sequence[JobDevice], missing: Sequence[str], surplus: Sequence[str]
) -> PlanMismatchError:
    used, there = len(plan.devices or ()), sum(granule.device_count for granule in plan.granules)
    rule = f"{used} of {there} devices of its granules" if used < there else f"all {used} devices of its granules"
    return _refuse(
        f"plan {plan.fingerprint} uses {rule}; this job sees {len(job)}; "
        f"the job must see exactly those that the plan uses, or all of its granules",
        _share_devices(plan, job)
        or "start the job with the plan's environment, or ask for a plan for the devices that the job has",
        missing=missing,
        surplus=surplus,
    )


def _share_devices(plan: Plan, job: Sequence[JobDevice]) -> str:
    """Returns how processes that share a host divide its CPU devices, of which the plan's environment gives each
    process all; "" where that is not the reason."""
    processes, used = len({device.process for device in job}), len(plan.devices or ())
    hosts = len({ref.granule for ref in plan.devices or ()})
    if plan.platform != "cpu" or processes <= hosts or len(job) <= used or used % processes:
        return ""
    return (
        f"the plan's environment is for one process on each host; with {processes} processes on {hosts} "
        f"host{'s' * (hosts > 1)}, start each with JAX_NUM_CPU_DEVICES={used // processes}"
    )


def _corrupt(plan: Plan, what: str) -> PlanMismatchError:
    return _refuse(
        f"plan {plan.fingerprint} contradicts itself: {what}; its parts must fit its fingerprint",
        f"fetch it again: GET /mesh/plan/{plan.fingerprint}",
    )


def _refuse(detail: str, hint: str, *, missing: Sequence[str] = (), surplus: Sequence[str] = ()) -> PlanMismatchError:
    lines = [detail]
    lines += [f"  missing: {_shorten(missing)}"] if missing else []
    lines += [f"  surplus: {_shorten(surplus)}"] if surplus else []
    return PlanMismatchError("\n".join([*lines, f"  hint: {hint}"]), missing=missing, surplus=surplus)


def _shorten(names: Sequence[str], most: int = 8) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

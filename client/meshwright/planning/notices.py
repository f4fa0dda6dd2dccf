"""What a plan warns of: devices that are not as good as they look, and axes over links slower than need be.

Rule: a warning names the devices or the axis, and what to do. Nothing here refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from meshwright.planning.device_selection import Health, find_foreign, find_leased, name_holders, name_leases
from meshwright.planning.granules import split_axes
from meshwright.planning.importance import weigh_axes
from meshwright.planning.job_code import find_differing
from meshwright.planning.parallelism import search_shapes
from meshwright.planning.score import list_edges, list_lines
from meshwright.spec import MeshSpec
from meshwright.topology.links import price_pair
from meshwright.topology.model import NAMES_SHOWN, Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device


def build_notices(
    spec: MeshSpec,
    topology: Topology,
    order: Sequence[int],
    *,
    health: Health,
    better: Sequence[int] | None = None,
    is_split: bool = False,
    lease: str | None = None,
) -> tuple[Notice, ...]:
    """Returns the warnings about the devices of a plan, and about their order where `better` is one that
    costs less; `is_split`: the request says how axes are split over granules; `lease`: the one that the job has."""
    planned = set(order)
    used = [index for index in topology.order if index in planned]
    notices = [*_tell_health(topology, used, health), *_tell_leased(topology, used, lease)]
    notices += [*_tell_shared(topology, used), *_tell_unseen(topology, used, lease)]
    notices += [*_tell_mig(topology, used), *_tell_kinds(topology, used), *_tell_uneven(spec, topology, used)]
    notices += _tell_differing(topology, used)
    if better is not None:
        notices += _tell_slow(spec, topology, order, better, is_split=is_split)
    return tuple(notices)


def _tell_health(topology: Topology, used: Sequence[int], health: Health) -> Iterator[Notice]:
    for state in sorted({"unhealthy", "degraded"} & set(health.values()), reverse=True):
        found = [index for index in used if health.get(index) == state]
        if found:
            yield Notice(
                code=f"devices_{state}",
                message=f"device {topology.describe(found)} is {state}",
                hint="see GET /health for the reason; leave devices out with devices.exclude",
            )
    prohibited = [index for index in used if topology.devices[index].compute_mode == "prohibited"]
    if prohibited:
        yield Notice(
            code="devices_prohibited",
            message=f"device {topology.describe(prohibited)} is closed to all processes",
            hint="nvidia-smi -c DEFAULT on the host, or leave devices out with devices.exclude",
        )


def _tell_leased(topology: Topology, used: Sequence[int], lease: str | None) -> Iterator[Notice]:
    leased = find_leased(topology, used, lease)
    if leased:
        yield Notice(
            code="devices_leased",
            message=name_leases(topology, leased),
            hint="wait until it ends (GET /leases), give the job's own `lease`, or choose with devices.count",
        )


def _tell_shared(topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    held = find_foreign(topology, used)
    if held:
        yield Notice(
            code="devices_shared",
            message=name_holders(topology, held),
            hint="wait for it, or choose among free devices with devices.count",
        )


def _tell_unseen(topology: Topology, used: Sequence[int], lease: str | None) -> Iterator[Notice]:
    """Warns of devices that count as free because nobody could look. A target has no holders, and what the job has
    reserved is the job's."""
    unseen = [index for index in used if _is_unseen(topology.devices[index], lease)]
    if unseen:
        yield Notice(
            code="holders_unknown",
            message=f"nobody could look who holds device {topology.describe(unseen)}: it may be taken",
            hint="let the agent look into all processes (root or CAP_SYS_PTRACE; in a pod hostPID), or reserve the "
            "devices with a lease and give it as `lease`",
        )


def _is_unseen(device: Device, lease: str | None) -> bool:
    is_of_job = lease is not None and device.lease is not None and device.lease.id == lease
    return device.processes is None and device.basis != "declared" and not is_of_job


def _tell_mig(topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    instances = [index for index in used if topology.devices[index].mig]
    if not instances:
        return
    message = f"device {topology.describe(instances)} is a MIG instance: a part of a GPU, without NVLink"
    if len(used) > 1:
        message += "; a process can use one instance only, so a mesh of several needs a process for each"
    yield Notice(code="mig_instances", message=message, hint="plan on whole GPUs, or on one instance")


def _tell_kinds(topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    kinds = sorted({topology.devices[index].kind for index in used})
    if len(kinds) > 1:
        yield Notice(
            code="devices_differ",
            message=f"the mesh joins {len(kinds)} kinds: {', '.join(kinds)}; the slowest sets the pace",
            hint="name devices of one kind in `devices`",
        )


def _tell_uneven(spec: MeshSpec, topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    counts = [len(group) for group in topology.group(used)]
    if len(set(counts)) > 1:
        told = ", ".join(map(str, counts[:NAMES_SHOWN])) + (", …" if len(counts) > NAMES_SHOWN else "")
        yield Notice(
            code="granules_uneven",
            message=f"mesh {spec} lies on {len(counts)} granules (slices, or hosts) with {told} of its devices: some "
            f"groups of an axis cross them and others do not",
            hint="choose as many devices on each, by name or by devices.exclude",
        )


def _tell_differing(topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    found = find_differing(topology, used)
    if found is None:
        return
    name, values = found
    told = "; ".join(f"{host}: {value or 'unset'}" for host, value in list(values.items())[:NAMES_SHOWN])
    more = f"; … ({len(values) - NAMES_SHOWN} more)" if len(values) > NAMES_SHOWN else ""
    yield Notice(
        code="environment_differs",
        message=f"hosts need different values of {name}, which `environment` leaves out: {told}{more}",
        hint=f"start the process of each host with its own {name}",
    )


def _tell_slow(
    spec: MeshSpec, topology: Topology, order: Sequence[int], better: Sequence[int], *, is_split: bool
) -> Iterator[Notice]:
    planned = set(order)
    others = [index for index in better if index not in planned]
    name = f"name devices {topology.describe(sorted(better))}"
    choose = name if len(better) <= NAMES_SHOWN else f'choose them by number: devices {{"count": {len(better)}}}'
    hint = "leave dcn out" if is_split else 'use device_order "planned"'
    for axis, (name, _) in enumerate(spec):
        ours, theirs = (_find_slowest(spec, topology, axis, devices) for devices in (order, better))
        if ours and theirs and ours[0] > theirs[0]:
            yield Notice(
                code="slow_link",
                message=f"axis {name} runs over {_name_edge(topology, *ours[1])}; "
                f"it could do with {_name_edge(topology, *theirs[1])}",
                hint=choose if others else hint,
            )


def warn_crossing(spec: MeshSpec, topology: Topology, used: Sequence[int]) -> Iterator[Notice]:
    """Warns of an axis that crosses granules while one with less traffic stays inside: the order of the axes or their
    sizes make it so.

    Args:
        spec: the mesh.
        topology: has the devices.
        used: the devices of the mesh.
    """
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
        name, kind = spec.names[axis], topology.find_granule(topology.devices[used[0]].granule).kind
        turned = MeshSpec(tuple(spec.axes[place] for place in sorted(range(len(traffic)), key=traffic.__getitem__)))
        shapes = [turned, *search_shapes(spec, spec.device_count, most=16)]
        better = [shape for shape in shapes if _count_crossed(shape, name, len(counts)) < split[axis]]
        yield Notice(
            code="slow_link",
            message=f"axis {name} crosses {split[axis]} {kind}s, while axis {spec.names[lighter[0]]}, which has less "
            f"traffic, stays inside; granules are spread over the outermost axes first",
            hint=f"use {better[0]}" if better else f"choose sizes whose outer axes take all {len(counts)} {kind}s",
        )
        return


def _count_crossed(spec: MeshSpec, name: str, granule_count: int) -> int:
    """Returns over how many granules the groups of an axis go."""
    split = split_axes(spec.sizes, granule_count)
    return granule_count if split is None else split[spec.names.index(name)]


def _find_slowest(
    spec: MeshSpec, topology: Topology, axis: int, order: Sequence[int]
) -> tuple[float, tuple[int, int]] | None:
    """Returns the cost and the devices of the slowest edge along an axis, on a torus without the way back to the start;
    None for an axis without edges."""
    lines = list_lines(spec.sizes, axis, order)
    edges = [edge for line in lines for edge in (pairwise(line) if topology.platform == "tpu" else list_edges(line))]
    costs = ((round(price_pair(topology, *edge), 6), edge) for edge in edges)
    return max(costs, key=lambda cost: cost[0], default=None)


def _name_edge(topology: Topology, a: int, b: int) -> str:
    if not topology.is_joined(a, b):
        kind = topology.find_granule(topology.places[a][0]).kind
        return f"the network between {kind}s (devices {topology.describe((a, b))})"
    link, hops = topology.link(a, b), topology.hops(a, b)
    way = f"{hops} ICI hops" if hops is not None else link.kind if link else "no direct link"
    return f"{way} (devices {topology.describe((a, b))})"

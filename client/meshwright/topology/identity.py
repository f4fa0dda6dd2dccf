"""Identity: names of meshes (fingerprints) and devices, and which device of a running job each device of a plan is.

A device has up to three names. Strongest first: its uuid (GPU, MIG instance); slice, coordinates and core (TPU); its
granule and its position there, which every device has and of which fingerprints are made. The strongest name that plan
and job both have decides; a plan that contradicts itself is refused. The GPUs that CUDA shows to this process are read
from the kernel module's files, without a CUDA context.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from meshwright.errors import PlanMismatchError
from meshwright.wire.base import DeviceRef
from meshwright.wire.devices import Granule
from meshwright.wire.mesh import Plan

Position = tuple[int, int]
"""(granule ordinal, position in the granule's canonical order): the name that every device has."""

DeviceKey = tuple[int, int]
"""(process index, jax.Device.id): a device of a running job, unique in it."""

PREFIX: Final = "mw1-"


def fingerprint(axes: Sequence[tuple[str, int]], axis_types: Sequence[str], positions: Sequence[Position]) -> str:
    """Returns the name of a mesh: "mw1-" and 32 hexadecimal digits, equal for equal meshes on any host.

    Args:
        axes: (name, size), outermost first.
        axis_types: "auto", "explicit" or "manual", one an axis.
        positions: the place of the device at each mesh position, row-major. Their number is the product of the sizes.
    """
    head = json.dumps([[name, size, kind] for (name, size), kind in zip(axes, axis_types, strict=True)])
    body = " ".join(f"{granule}.{position}" for granule, position in positions)
    return PREFIX + hashlib.sha256(f"{head}\n{body}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class JobDevice:
    """A device of a running job, as the process that owns it describes it to the others.

    Attributes:
        process: the owner's index in the job.
        id: jax.Device.id; may start anywhere and have holes.
        host: equal for two processes exactly when they run on one machine (its boot id, else its name).
        platform: "cpu", "gpu" or "tpu".
        uuid: of the GPU or MIG instance, where the driver reports it.
        coords, core_on_chip, slice_index: of a TPU, as reported by JAX.
        host_position: its place among all devices of its kind on the host, also those that the job does not see.
    """

    process: int
    id: int
    host: str
    platform: str
    uuid: str | None = None
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    slice_index: int | None = None
    host_position: int | None = None

    @property
    def key(self) -> DeviceKey:
        """Its name inside the job."""
        return self.process, self.id

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobDevice:
        """Returns the device that `to_json` wrote.

        Raises:
            TypeError: a field is missing or unknown, as when another release wrote it.
        """
        coords = data.get("coords")
        return cls(**{**data, "coords": None if coords is None else tuple(coords)})

    def __str__(self) -> str:
        place = self.uuid or (f"coords {write_chip(self.coords, self.core_on_chip)}" if self.coords else "")
        return f"{place or 'device'} (id {self.id} of process {self.process})"


def number_devices(job: Iterable[JobDevice]) -> dict[DeviceKey, Position]:
    """Returns the granule and position of each device of a job that has no plan.

    Granules: TPU slices by index, else hosts by their first process. Positions: the place on the host where the driver
    reports it, otherwise the canonical order among the job's devices: x, y, z counting x fastest, then core (TPU);
    process, then id.
    """
    places: dict[DeviceKey, Position] = {}
    for ordinal, members in enumerate(group_devices(job)):
        told = [member.host_position for member in members if member.host_position is not None]
        positions = told if len(set(told)) == len(members) else range(len(members))
        places |= {member.key: (ordinal, position) for member, position in zip(members, positions, strict=True)}
    return places


def group_devices(job: Iterable[JobDevice]) -> list[list[JobDevice]]:
    """Returns the job's granules in their order, each in canonical order."""
    groups: dict[Hashable, list[JobDevice]] = defaultdict(list)
    for device in sorted(job, key=_sort_key):
        groups[device.host if device.coords is None else (device.slice_index or 0)].append(device)
    return sorted(groups.values(), key=lambda group: (group[0].slice_index or 0, min(d.process for d in group)))


def _sort_key(device: JobDevice) -> tuple[Any, ...]:
    if device.coords is not None:
        return device.slice_index or 0, *canonical(device.coords, device.core_on_chip)
    return device.process, device.id


def canonical(coords: Sequence[int] | None, core: int | None) -> tuple[int, ...]:
    """Returns the sort key of the canonical order within a slice: z, y, x, then core."""
    return (*reversed(coords or ()), core or 0)


def write_chip(coords: tuple[int, ...] | None, core: int | None) -> str:
    """Returns a core of a TPU chip as people write it: "(0,1,2) core 0"."""
    return f"({','.join(map(str, coords or ()))}) core {core or 0}"


@dataclass(frozen=True)
class Binding:
    """The assignment of the job's devices to mesh positions.

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
    """Returns the plan's devices in mesh order. Raises PlanMismatchError unless the plan is consistent.

    Raises:
        PlanMismatchError: the list of devices is missing or has a wrong length; a device is listed twice or outside its
            granule; or the fingerprint does not match the contents.
    """
    refs, axes = plan.devices, read_axes(plan)
    if not refs:
        hint = f"ask with include_devices=true, or fetch GET /mesh/plan/{plan.fingerprint}"
        raise _refuse(f"plan {plan.fingerprint} comes without its devices; a mesh needs them", hint)
    wanted = math.prod(size for _, size in axes)
    if len(refs) != wanted or set(plan.axis_types) != set(plan.mesh_shape):
        raise _corrupt(plan, f"it has {len(refs)} devices and {len(plan.axis_types)} axis types for {axes}")
    places = [(ref.granule, ref.position) for ref in refs]
    counts = {granule.ordinal: granule.device_count for granule in plan.granules}
    names = [f"position {position} of granule {granule}" for granule, position in places]
    for name, (granule, position) in zip(names, places, strict=True):
        if not 0 <= position < counts.get(granule, 0):
            raise _corrupt(plan, f"it has a device at {name}, and its granules have {counts} devices")
    names += [ref.uuid.lower() for ref in refs if ref.uuid]
    names += [f"granule {ref.granule} {write_chip(ref.coords, ref.core_on_chip)}" for ref in refs if ref.coords]
    for name, count in Counter(names).items():
        if count > 1:
            raise _corrupt(plan, f"{name} stands more than once in it")
    actual = fingerprint(axes, [plan.axis_types[name] for name, _ in axes], places)
    if actual != plan.fingerprint:
        raise _corrupt(plan, f"its contents have the fingerprint {actual}")
    return refs


def digest(plan: Plan) -> str:
    """Returns a hash of all that `bind` reads. It is equal where two processes hold the same plan."""
    parts = plan.model_dump(
        mode="json", include={"fingerprint", "mesh_shape", "axis_types", "platform", "devices", "granules"}
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def bind(plan: Plan, job: Sequence[JobDevice]) -> Binding:
    """Returns the job's device at each position of the plan's mesh.

    The job may see all devices of the plan's granules, or exactly those that the plan uses. A machine of the job is one
    granule; where the plan has more granules than the job has machines (agents in containers of one machine, or a
    rehearsal of a large job on a small one), a machine is several: by uuid, else each is whole processes, in order.

    Args:
        plan: checked here as by `check_plan`.
        job: every device of the job, in any order.

    Raises:
        PlanMismatchError: devices are missing or left over (the error names them), or the plan contradicts itself.
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
        order=tuple(at[ref.granule, ref.position] for ref in refs), places={key: place for place, key in at.items()}
    )


@dataclass(frozen=True)
class _Match:
    keys: Mapping[int, DeviceKey]
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


def _part_machines(
    granules: Mapping[int, Granule], wanted: Mapping[int, list[DeviceRef]], groups: list[list[JobDevice]]
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
    """Returns the devices of each granule by their uuids. Unplanned devices go with those of their process. Returns
    None where a process has no planned device.
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
    """Returns parts of these sizes, each of whole processes of one group, in order; None where this is impossible."""
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


def _match(granule: Granule, refs: Sequence[DeviceRef], members: Sequence[JobDevice]) -> _Match:
    if all(ref.uuid for ref in refs) and all(member.uuid for member in members):
        return _match_by(granule, refs, members, lambda device: _fold(device.uuid))
    if all(ref.coords for ref in refs) and all(member.coords for member in members):
        return _match_by(granule, refs, members, lambda device: (device.coords, device.core_on_chip or 0))
    return _match_by_position(granule, refs, members)


def _match_by(
    granule: Granule,
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


def _match_by_position(granule: Granule, refs: Sequence[DeviceRef], members: Sequence[JobDevice]) -> _Match:
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
    """Returns a device of a plan as people find it: by its most specific name, and its place."""
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
    used, there = len(plan.devices), sum(granule.device_count for granule in plan.granules)
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
    processes, used = len({device.process for device in job}), len(plan.devices)
    hosts = len({ref.granule for ref in plan.devices})
    if plan.platform != "cpu" or processes <= hosts or len(job) <= used or used % processes:
        return ""
    found = f"the plan's environment is for one process on each host; with {processes} processes on {hosts} "
    return f"{found}host{'s' * (hosts > 1)}, start each with JAX_NUM_CPU_DEVICES={used // processes}"


def _corrupt(plan: Plan, what: str) -> PlanMismatchError:
    return _refuse(
        f"plan {plan.fingerprint} contradicts itself: {what}; its parts must fit its fingerprint",
        f"fetch it again: GET /mesh/plan/{plan.fingerprint}",
    )


def _refuse(detail: str, hint: str, *, missing: Sequence[str] = (), surplus: Sequence[str] = ()) -> PlanMismatchError:
    lines = [detail]
    lines += [f"  missing: {shorten(missing)}"] if missing else []
    lines += [f"  surplus: {shorten(surplus)}"] if surplus else []
    return PlanMismatchError("\n".join(lines), hint=hint, missing=missing, surplus=surplus)


def shorten(names: Sequence[str], most: int = 8, separator: str = ", ") -> str:
    """Returns the first names, and how many more there are."""
    return separator.join([*names[:most], *([f"and {len(names) - most} more"] if len(names) > most else ())])


PROC: Final = Path("/proc/driver/nvidia/gpus")
"""One folder a GPU, named by its PCI address. Source: NVIDIA driver README, "The /proc file system
interface"."""


@dataclass(frozen=True)
class HostGpu:
    """A GPU of this host (or of this container), with its sort key."""

    pci_bus_id: str
    uuid: str
    model: str = ""


@dataclass(frozen=True)
class VisibleGpu:
    """What CUDA shows this process. `host_position`: the GPU's place in PCI order; of a MIG instance None."""

    uuid: str
    host_position: int | None


def read_visible_gpus(environ: Mapping[str, str], *, proc: Path = PROC) -> tuple[VisibleGpu, ...] | None:
    """Returns the GPUs in CUDA's order, as `jax.Device.local_hardware_id` counts them; None where the order is
    unknown."""
    return parse_visible(environ, read_gpus_from_proc(proc))


def read_gpus_from_proc(proc: Path) -> tuple[HostGpu, ...]:
    """Returns the GPUs that the kernel module lists, in PCI order; empty where the module is not loaded."""
    files = sorted(proc.glob("*/information"), key=lambda file: file.parent.name.lower())
    gpus = (parse_information(file.parent.name, read_text(file)) for file in files)
    return tuple(gpu for gpu in gpus if gpu is not None)


def parse_information(pci_bus_id: str, text: str) -> HostGpu | None:
    """Returns the GPU that a file `information` describes; None where it has no uuid."""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    uuid = fields.get("GPU UUID", "")
    return HostGpu(pci_bus_id, uuid, fields.get("Model", "")) if uuid.startswith("GPU-") and "?" not in uuid else None


def parse_visible(environ: Mapping[str, str], gpus: Sequence[HostGpu]) -> tuple[VisibleGpu, ...] | None:
    """Returns the part of `gpus` (in PCI order) that CUDA_VISIBLE_DEVICES selects, in CUDA's order.

    Numbers count in PCI order when CUDA_DEVICE_ORDER says so or all GPUs are of one model; else CUDA orders them by
    speed, which is not known here, so the result is None. The list ends at its first wrong entry.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    is_pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) <= 1
    if text is None:
        return tuple(VisibleGpu(gpu.uuid, rank) for rank, gpu in enumerate(gpus)) if gpus and is_pci_order else None
    visible: list[VisibleGpu] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdigit() and not (gpus and is_pci_order):
            return None
        found = _find(entry, gpus)
        if found is None:
            break
        visible.append(found)
    return tuple(visible) or None


def _find(entry: str, gpus: Sequence[HostGpu]) -> VisibleGpu | None:
    """Returns the GPU that one entry names: a number, a uuid or the unique beginning of one."""
    if entry.startswith("MIG-"):
        return VisibleGpu(entry, None)
    if entry.isdigit():
        return VisibleGpu(gpus[int(entry)].uuid, int(entry)) if int(entry) < len(gpus) else None
    ranks = [rank for rank, gpu in enumerate(gpus) if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    if len(ranks) == 1:
        return VisibleGpu(gpus[ranks[0]].uuid, ranks[0])
    return VisibleGpu(entry, None) if len(entry) == len("GPU-") + 36 and entry.startswith("GPU-") and not gpus else None


def read_text(path: Path) -> str:
    """Returns the text of a file without the space around it; "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

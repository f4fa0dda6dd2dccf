"""Several hosts as one topology: their `GET /devices` replies, validated, joined and put in order.

A host of GPUs or CPUs is one granule; TPU hosts of one slice are one granule, with its chips in canonical order by
their coordinates. Contradictions are refused; an incomplete slice is reported. If no host states a shape, one is
derived only where the chips fill a box and no chip is known to be missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeVar

from meshwright.errors import PlanInfeasibleError
from meshwright.targets import write_shape
from meshwright.topology.identity import canonical, shorten
from meshwright.topology.model import Topology
from meshwright.topology.torus import find_wraps
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Devices, Granule, MeasuredNetwork

Coords = tuple[int, ...]


@dataclass(frozen=True)
class Seat:
    """One device: the reply that lists it, and its index in that reply."""

    reply: int
    index: int
    device: Device


@dataclass(frozen=True)
class GranulePart:
    """What one reply has of one granule, in the order of its positions.

    Attributes:
        knows_others: the host knows of other hosts of its slice.
        is_named: the granule has a name of its own, not just its host's.
    """

    granule: Granule
    seats: tuple[Seat, ...]
    knows_others: bool = False
    is_named: bool = False

    @property
    def slice_index(self) -> int:
        """The slice's index as JAX reports it; 0 where it is not reported."""
        return next((seat.device.slice_index for seat in self.seats if seat.device.slice_index is not None), 0)

    @property
    def is_whole(self) -> bool:
        """Whether all chips of the slice's declared shape are present."""
        chips = {seat.device.coords for seat in self.seats}
        return self.granule.shape is not None and len(chips) == math.prod(self.granule.shape)

    @property
    def is_open(self) -> bool:
        """Whether a fact implies that the slice has other hosts."""
        if self.is_whole:
            return False
        places = [seat.device.coords for seat in self.seats if seat.device.coords]
        corner = [min(column) for column in zip(*places, strict=False)]
        ranks = {seat.device.process_index or 0 for seat in self.seats}
        return self.knows_others or self.granule.shape is not None or any(corner) or any(ranks)


@dataclass(frozen=True)
class JoinedGranule:
    """A granule of the joined topology: its devices in order, and its warnings."""

    granule: Granule
    seats: tuple[Seat, ...]
    notices: tuple[Notice, ...] = ()


def join_slice(parts: Sequence[GranulePart]) -> JoinedGranule:
    """Returns one slice from the parts that its hosts are.

    Raises:
        PlanInfeasibleError: hosts report different shapes or rings.
    """
    seats = tuple(seat for part in parts for seat in part.seats)
    name = parts[0].granule.name
    said = _read_shape(name, parts)
    if any(seat.device.coords is None for seat in seats):
        return _join_blind(name, said, parts, seats)
    ordered = tuple(sorted(seats, key=lambda one: canonical(one.device.coords, one.device.core_on_chip)))
    shape = said or _find_box(ordered, parts)
    fields = {"name": name, "device_count": len(seats), **_describe_torus(shape, parts, ordered)}
    granule = parts[0].granule.model_copy(update=fields)
    return JoinedGranule(granule, ordered, tuple(_describe_slice(name, said, shape, len(parts), ordered)))


def _join_blind(name: str, said: Coords | None, parts: Sequence[GranulePart], seats: Sequence[Seat]) -> JoinedGranule:
    """Returns a slice in which some chips have no known coordinates, in the order of its processes."""
    blind = [seat for seat in seats if seat.device.coords is None]
    fields = {"device_count": len(seats), **_describe_torus(said, parts, seats)}
    granule = parts[0].granule.model_copy(update=fields)
    told = (_describe_blind(name, blind),) if len(parts) > 1 else ()
    ranked = sorted(seats, key=lambda seat: (seat.device.process_index or 0, seat.reply, seat.device.position))
    return JoinedGranule(granule, tuple(ranked), told)


def _read_shape(name: str, parts: Sequence[GranulePart]) -> Coords | None:
    shapes = {part.granule.shape: part for part in parts if part.granule.shape is not None}
    if len(shapes) > 1:
        said = ", ".join(f"{write_shape(s)} ({part.seats[0].device.host})" for s, part in shapes.items() if s)
        hint = "hosts of different slices need different TPU_NAME; else look at TPU_TOPOLOGY on these hosts"
        raise refuse(f"the hosts of slice {name} say that its shape is {said}; a slice has one shape", hint)
    return next(iter(shapes), None)


def _find_box(seats: Sequence[Seat], parts: Sequence[GranulePart]) -> Coords | None:
    """Returns the shape of several hosts whose chips fill a box, where no host reports other hosts; otherwise None."""
    places = {seat.device.coords for seat in seats if seat.device.coords}
    if len(parts) < 2 or any(part.knows_others for part in parts) or len({len(place) for place in places}) != 1:
        return None
    shape = tuple(max(column) + 1 for column in zip(*places, strict=True))
    return shape if len(places) == math.prod(shape) else None


def _describe_torus(shape: Coords | None, parts: Sequence[GranulePart], seats: Sequence[Seat]) -> dict[str, Any]:
    if shape is None:
        return {}
    twisted = any(part.granule.twisted for part in parts)
    ruled = (True,) * len(shape) if twisted else find_wraps(seats[0].device.kind, shape)
    return {"shape": shape, "wrap": _read_wrap(parts) or ruled, "twisted": twisted}


def _read_wrap(parts: Sequence[GranulePart]) -> tuple[bool, ...] | None:
    wraps = {part.granule.wrap: part for part in parts if part.granule.wrap is not None}
    if len(wraps) > 1:
        said = ", ".join(
            f"{','.join(map(str, wrap)).lower()} ({part.seats[0].device.host})" for wrap, part in wraps.items() if wrap
        )
        rule = "a slice closes to rings in one way"
        hint = "look at TPU_TOPOLOGY_WRAP on these hosts"
        raise refuse(f"the hosts of slice {parts[0].granule.name} say of its dimensions {said}; {rule}", hint)
    return next(iter(wraps), None)


# ---- reports ----


def _describe_slice(
    name: str, said: Coords | None, shape: Coords | None, part_count: int, seats: Sequence[Seat]
) -> Iterator[Notice]:
    """Warns of chips that are missing in a shape that a host states, and of several hosts that state none."""
    if said is None and part_count > 1:
        taken = f"they fill {write_shape(shape)}, taken as its shape" if shape else "wrap-around is not assumed"
        message = f"no host says the shape of slice {name}; {len(seats)} devices of it are here, and {taken}"
        yield Notice(code="slice_shape_unknown", message=message, hint="set TPU_TOPOLOGY for the agents, such as 4x4x4")
    cores = Counter(seat.device.coords or () for seat in seats)
    most = max(cores.values())
    places = (place[::-1] for place in product(*(range(size) for size in reversed(said or (0,)))))
    missing = [f"({','.join(map(str, place))})" for place in places if cores[place] < most]
    if said and missing:
        whole = math.prod(said)
        yield Notice(
            code="chips_missing",
            message=f"slice {name} has {whole} chips ({write_shape(said)}), and {whole - len(missing)} of them are "
            f"here; missing: {shorten(missing)}",
            hint="the plan leaves them out; ask the agents of all its hosts to plan on the whole slice",
        )


def _describe_blind(name: str, blind: Sequence[Seat]) -> Notice:
    hosts = list(dict.fromkeys(seat.device.host for seat in blind))
    return Notice(
        code="coordinates_unknown",
        message=f"slice {name}: where the chips of {shorten(hosts)} stand in it is unknown; "
        f"its devices are ordered by host",
        hint="let each agent's JAX look at its chips once (POST /devices/release frees them again)",
    )


def refuse(detail: str, hint: str) -> PlanInfeasibleError:
    """Returns the error for hosts that do not form a topology. `detail` has three parts, separated by semicolons: the
    request, what was found, and the rule."""
    return PlanInfeasibleError.of("topology", detail, hint, detail.rpartition("; ")[2])


T = TypeVar("T")

_SLICE_IN_PART: Final = "slice_in_part"
"""The notice of a TPU host that knows of others of its slice."""


@dataclass(frozen=True)
class Joined:
    """Several hosts as one topology.

    Attributes:
        topology: all devices, granule by granule, each in canonical order.
        notices: warnings that do not make the hosts invalid.
        places: for each reply, the indices of its devices in `topology.devices`.
    """

    topology: Topology
    notices: tuple[Notice, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()


def join_devices(replies: Sequence[Devices], *, labels: Sequence[str] = ()) -> Joined:
    """Returns several hosts as one topology.

    Granules are in the order of their slice's index, then of their hosts' names (host-2 before host-10). TPU hosts are
    of one slice when they name the same one; where none is named, when one host reports that it is a part of a slice.

    Args:
        replies: what the agents' `GET /devices` answered, each host once.
        labels: what distinguishes hosts of the same name, one for each reply, such as its address. Empty: they are
            numbered.

    Raises:
        PlanInfeasibleError: there is no reply, or one contradicts itself; a host, a device or a place in a slice
            is listed twice; platforms differ; hosts of a slice contradict each other.
    """
    if not replies:
        raise refuse("a topology of no host was asked for; a plan needs at least one", "give the reply of one agent")
    names = _name_hosts(replies, labels)
    _check_platforms(replies, names)
    _check_sound(replies)
    _check_doubled(replies)
    parts = [part for index, reply in enumerate(replies) for part in _list_parts(index, reply, names)]
    hosts = [JoinedGranule(part.granule, part.seats) for part in parts if part.granule.kind != "slice"]
    slices = [join_slice(group) for group in _group_slices([part for part in parts if part.granule.kind == "slice"])]
    granules = sorted([*hosts, *slices], key=_granule_key)
    topology, places = _assemble(replies, granules)
    notices = list(_describe_hosts(replies, names, topology))
    notices += (notice for one in granules for notice in one.notices)
    notices += _carry_warnings(replies, names)
    return Joined(topology, tuple(notices), places)


def natural_key(text: str) -> tuple[tuple[bool, int, str, str], ...]:
    """Returns the sort key that puts host-2 before host-10; equal for equal texts only.

    Of numbers the longer one is the larger, so that no text has too many digits.
    """
    parts = ((place % 2 == 1, part) for place, part in enumerate(re.split(r"([0-9]+)", text)))
    ranked = ((is_number, part.lstrip("0") if is_number else "", part) for is_number, part in parts)
    return tuple((is_number, len(number), number, part) for is_number, number, part in ranked)


# ---- errors ----


def _check_platforms(replies: Sequence[Devices], names: Names) -> None:
    having = [index for index, reply in enumerate(replies) if reply.devices]
    hosts = _group(having, lambda index: replies[index].platform)
    if len(hosts) > 1:
        said = ", ".join(f"{platform} on {_list_hosts(found, names)}" for platform, found in sorted(hosts.items()))
        rare = min(hosts.values(), key=len)
        raise refuse(
            f"{len(replies)} hosts were to be joined; they have devices of {len(hosts)} platforms: {said}; a mesh is "
            f"of one platform",
            f"leave out {_list_hosts(rare, names)}; where accelerators were expected, its GET /devices says why it has "
            f"none",
        )


def _list_hosts(replies: Sequence[int], names: Names) -> str:
    return shorten([name for (index, _), name in names.items() if index in replies])


def _check_sound(replies: Sequence[Devices]) -> None:
    for reply in replies:
        try:
            platform = Topology.of(reply).platform
        except ValueError as error:
            raise _refuse_reply(reply, str(error)) from error
        if reply.devices and platform != reply.platform:
            raise _refuse_reply(
                reply,
                f"its platform is {reply.platform}, and its devices are of {platform}; platform is that of the devices",
            )


def _refuse_reply(reply: Devices, why: str) -> PlanInfeasibleError:
    return refuse(
        f"host {reply.host.name} was to be joined; its reply contradicts itself: {why}",
        "send the replies of GET /devices as the agents gave them",
    )


def _check_doubled(replies: Sequence[Devices]) -> None:
    """Raises PlanInfeasibleError for two replies of one agent, or a device that is listed twice."""
    seen: dict[Hashable, tuple[int, Devices]] = {}
    for entry in enumerate(replies):
        for name, what in _list_identities(entry[1]):
            if name in seen:
                raise _refuse_doubled(what, seen[name], entry, len(replies))
            seen[name] = entry


def _list_identities(reply: Devices) -> Iterator[tuple[Hashable, str]]:
    """Yields what only this agent or device has, and what to call the device.

    Several agents may run on one machine, in containers or for a test; but no two of them have workers that changed, or
    probes that read the machine, in the same microsecond. Cores of a TPU share a PCI function; MIG instances have
    uuids.
    """
    host, worker = reply.host, reply.worker
    yield (host.boot_id, host.name, worker.generation, worker.since), ""
    yield (host.boot_id, host.name, host.observed_at), ""
    for device in reply.devices:
        if device.uuid:
            yield device.uuid.lower(), f"device {device.uuid}"
        if device.pci_bus_id and host.boot_id and not device.mig:
            place = (host.boot_id, device.pci_bus_id.lower(), device.core_on_chip)
            yield place, f"device {device.pci_bus_id} of boot id {host.boot_id}"


def _refuse_doubled(what: str, one: tuple[int, Devices], other: tuple[int, Devices], count: int) -> PlanInfeasibleError:
    (first, reply), (second, again) = one, other
    name = reply.host.name
    if not what:
        return refuse(
            f"host {name} stands twice among {count} hosts, at {first} and {second} (boot id {reply.host.boot_id}); a "
            f"host can be in a topology once",
            "name each agent once, by one address",
        )
    if first == second:
        return _refuse_reply(reply, f"{what} is listed twice; each device of a host is listed once")
    return refuse(
        f"{what} is listed by host {name} and again by host {again.host.name}; a device can be in a topology once",
        "name each agent once; where several share a machine, show each its own devices",
    )


def _group(entries: Iterable[T], name: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for entry in entries:
        groups[name(entry)].append(entry)
    return groups


# ---- names and parts ----

Names = Mapping[tuple[int, str], str]
"""(reply, host as its agent calls it) → the host's name in the joined topology."""


def _name_hosts(replies: Sequence[Devices], labels: Sequence[str]) -> Names:
    """Returns each host's name, with its label or number where several have the same."""
    said = [(index, name) for index, reply in enumerate(replies) for name in _list_names(reply)]
    alike = _group(said, lambda entry: entry[1])
    return {
        (index, name): name if len(alike[name]) == 1 else f"{name}{_write_label(index, labels, alike[name])}"
        for index, name in said
    }


def _list_names(reply: Devices) -> list[str]:
    """Returns the hosts of a reply. For a simulated host these are the hosts of its devices."""
    return list(dict.fromkeys(device.host for device in reply.devices)) or [reply.host.name]


def _write_label(index: int, labels: Sequence[str], alike: Sequence[tuple[int, str]]) -> str:
    return f"@{labels[index]}" if labels else f"#{[entry[0] for entry in alike].index(index) + 1}"


def _list_parts(index: int, reply: Devices, names: Names) -> list[GranulePart]:
    seats = [
        Seat(index, place, device.model_copy(update={"host": names[index, device.host]}))
        for place, device in enumerate(reply.devices)
    ]
    knows_others = any(notice.code == _SLICE_IN_PART for notice in reply.warnings)
    of_granule = _group(seats, lambda seat: seat.device.granule)
    return [
        GranulePart(
            granule.model_copy(update={"name": names.get((index, granule.name), granule.name)}),
            tuple(sorted(of_granule[granule.ordinal], key=lambda seat: seat.device.position)),
            knows_others,
            is_named=granule.name not in {reply.host.name, *_list_names(reply)},
        )
        for granule in reply.granules
        if granule.ordinal in of_granule
    ]


def _group_slices(parts: Sequence[GranulePart]) -> list[list[GranulePart]]:
    """Returns the parts of each slice, in the order of their hosts.

    By the slice's index and name; parts without a name are one slice where one of them is open, else each is its own.
    """
    named = [part for part in parts if part.is_named]
    groups = list(_group(named, lambda part: (part.slice_index, part.granule.name)).values())
    whole = [part for part in parts if not part.is_named and part.is_whole]
    others = _group((p for p in parts if not (p.is_named or p.is_whole)), lambda part: part.slice_index).values()
    for unnamed in others:
        groups += [unnamed] if any(part.is_open for part in unnamed) else [[part] for part in unnamed]
    groups += [[part] for part in whole]
    return [sorted(group, key=lambda part: natural_key(part.seats[0].device.host)) for group in groups]


def _granule_key(one: JoinedGranule) -> tuple[object, ...]:
    device = one.seats[0].device
    name = device.host if one.granule.kind == "host" else one.granule.name
    return (device.slice_index or 0, natural_key(name), one.seats[0].reply)


# ---- the whole ----


def _assemble(
    replies: Sequence[Devices], granules: Sequence[JoinedGranule]
) -> tuple[Topology, tuple[tuple[int, ...], ...]]:
    seats = [seat for one in granules for seat in one.seats]
    at = {(seat.reply, seat.index): place for place, seat in enumerate(seats)}
    devices = tuple(
        seat.device.model_copy(update={"granule": ordinal, "position": position})
        for ordinal, one in enumerate(granules)
        for position, seat in enumerate(one.seats)
    )
    links = [
        link.model_copy(update={"a": at[index, link.a], "b": at[index, link.b]})
        for index, reply in enumerate(replies)
        for link in reply.links
    ]
    listed = tuple(one.granule.model_copy(update={"ordinal": ordinal}) for ordinal, one in enumerate(granules))
    places = tuple(tuple(at[host, place] for place in range(len(reply.devices))) for host, reply in enumerate(replies))
    try:
        ordered = tuple(sorted(links, key=lambda link: (link.a, link.b)))
        return Topology(devices, ordered, listed, _find_slowest_network(replies)), places
    except ValueError as error:
        raise refuse(
            f"{len(replies)} hosts were joined; together they contradict themselves: {error}",
            "leave out hosts that are not of this job; hosts of different slices need different TPU_NAME; hosts of one "
            "slice need its coordinates, not their own from (0,0,0), and its TPU_TOPOLOGY",
        ) from error


# ---- reports ----


def _describe_hosts(replies: Sequence[Devices], names: Names, topology: Topology) -> Iterator[Notice]:
    renamed = _group((entry for entry in names.items() if entry[0][1] != entry[1]), lambda entry: entry[0][1])
    for name, found in renamed.items():
        message = f"{len(found)} hosts are called {name}; here they are {shorten([new for _, new in found])}"
        hint = "give hosts names of their own, or name devices by uuid"
        yield Notice(code="hosts_renamed", message=message, hint=hint)
    for boot, sharing in _group(range(len(replies)), lambda index: replies[index].host.boot_id).items():
        if boot is not None and len(sharing) > 1:
            together = shorten([names[index, _list_names(replies[index])[0]] for index in sharing])
            message = f"{together} run on one machine (boot id {boot}); each is planned as a host of its own"
            hint = "start as many processes of the job for each of them; they share the machine's memory and network"
            yield Notice(code="hosts_share_machine", message=message, hint=hint)
    if empty := [names[index, reply.host.name] for index, reply in enumerate(replies) if not reply.devices]:
        message = f"{shorten(empty)} ha{'s' if len(empty) == 1 else 've'} no device that jax can use"
        hint = "its GET /devices and GET /health say why"
        yield Notice(code="hosts_without_devices", message=message, hint=hint)
    kinds = _group(topology.devices, lambda device: device.kind)
    if len(kinds) > 1 and len(topology.hosts) > 1:
        hosts = {kind: list(dict.fromkeys(device.host for device in found)) for kind, found in kinds.items()}
        said = "; ".join(f"{kind} on {shorten(found)}" for kind, found in sorted(hosts.items(), key=str))
        message = f"the hosts have devices of {len(kinds)} kinds: {said}"
        hint = "a mesh over all of them goes at the pace of the slowest; name devices of one kind in `devices`"
        yield Notice(code="hosts_differ", message=message, hint=hint)


def _carry_warnings(replies: Sequence[Devices], names: Names) -> list[Notice]:
    """Returns the warnings of the hosts' own replies, once each, with the hosts that report them."""
    told: dict[Notice, list[str]] = {}
    for index, reply in enumerate(replies):
        for notice in reply.warnings:
            if notice.code == _SLICE_IN_PART:  # the join itself reports whether it is still incomplete
                continue
            told.setdefault(notice, []).append(names.get((index, reply.host.name), reply.host.name))
    return [each.model_copy(update={"message": f"{shorten(hosts)}: {each.message}"}) for each, hosts in told.items()]


def _find_slowest_network(replies: Sequence[Devices]) -> MeasuredNetwork | None:
    """Returns the slowest of the hosts' networks; None unless all hosts have measured theirs."""
    found = [reply.network for reply in replies if reply.network is not None]
    return min(found, key=lambda each: each.bytes_per_s) if len(found) == len(replies) else None

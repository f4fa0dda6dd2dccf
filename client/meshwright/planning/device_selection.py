"""Which devices of a topology a plan uses: those named, those that are healthy and free, or the nearest ones of a given
number.

Rule: a device that is unhealthy, or that another has leased, is taken only where it is named. Of a number few fast
domains (slices, NVLink domains, hosts) are filled, the one that fits best first, and inside a torus a box; of equal
choices the one with the lowest devices wins. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final

from meshwright.errors import DeviceLeasedError, InvalidRequestError, NotFoundError, PlanInfeasibleError
from meshwright.planning.device_order import search_subset
from meshwright.topology.links import price_pairs
from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, Place, build_place, find_dimensions
from meshwright.wire.base import DeviceSelection, Notice

SUBSET_COUNT_MAX: Final = 64
"""Above this number, devices that do not fill a box are taken in plain order: comparing all pairs would take
seconds."""

EVEN_SETS_MAX: Final = 3
"""The number of domain counts that are tried for equal parts, the lowest first."""


def sort_plain(topology: Topology, indices: Sequence[int]) -> tuple[int, ...]:
    """Returns devices in plain order."""
    ranks = {index: rank for rank, index in enumerate(topology.order)}
    return tuple(sorted(indices, key=ranks.__getitem__))


def pack_devices(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns `count` devices with the least between them, in plain order.

    Args:
        pool: those that may be taken, in plain order; at least `count`.
    """
    if count >= len(pool):
        return tuple(pool)
    groups = _part_domains(topology, pool)
    if len(groups) == 1:
        return _pack_group(topology, pool, count)
    chosen: list[int] = []
    for group, share in _fill(groups, count):
        chosen += pack_devices(topology, group, share)
    return sort_plain(topology, chosen)


def list_packings(topology: Topology, pool: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yields sets of `count` devices in few domains: the packed set first, then sets with equal parts in each domain.

    The packed set has the fewest slow links, but a mesh may lie better on equal parts: 12 of two hosts of 8 as 6 and 6.
    """
    packed = pack_devices(topology, pool, count)
    yield packed
    if count >= len(pool):
        return
    groups = sorted(topology.group(pool), key=len)
    fewest = len(topology.group(packed))
    parts = (parts for parts in range(max(2, fewest), len(groups) + 1) if count % parts == 0)
    for number in islice(parts, EVEN_SETS_MAX):
        enough = [group for group in groups if len(group) >= count // number][:number]
        if len(enough) == number:
            chosen = [index for group in enough for index in pack_devices(topology, group, count // number)]
            yield sort_plain(topology, chosen)


def _part_domains(topology: Topology, pool: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices by fast domain; those of a single one by granule."""
    groups = topology.group(pool)
    if len(groups) > 1:
        return groups
    hosts: dict[int, list[int]] = defaultdict(list)
    for index in pool:
        hosts[topology.places[index][0]].append(index)
    return tuple(map(tuple, hosts.values()))


def _fill(groups: Sequence[tuple[int, ...]], count: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields groups and the number taken of each: the smallest group that is enough for the rest, otherwise the largest
    one."""
    left = list(groups)
    while count:
        enough = [group for group in left if len(group) >= count]
        group = min(enough, key=len) if enough else max(left, key=len)
        left.remove(group)
        yield group, min(len(group), count)
        count -= min(len(group), count)


def _pack_group(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...]:
    if topology.is_uniform:
        return tuple(pool[:count])
    box = _find_box(topology, pool, count) if topology.platform == "tpu" else None
    if box is not None:
        return sort_plain(topology, box)
    if len(pool) > SUBSET_COUNT_MAX:
        return tuple(pool[:count])
    return tuple(pool[rank] for rank in search_subset(count, price_pairs(topology, pool)))


def _find_box(topology: Topology, pool: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Returns the devices of a box of whole chips, the most compact one that is free; None where there is no free
    box."""
    granule = topology.places[pool[0]][0]
    everyone = (index for index, place in enumerate(topology.places) if place[0] == granule)
    *dimensions, core = find_dimensions(topology, everyone) or (Dimension(0),)
    chips = _group_chips(topology, pool)
    whole = {place for place, members in chips.items() if len(members) == core.size}
    if not whole or count % core.size:
        return None
    low = tuple(map(min, zip(*chips, strict=True)))
    free = {tuple(a - b for a, b in zip(place, low, strict=True)) for place in whole}
    for shape in _list_shapes(count // core.size, dimensions):
        for corner in _list_corners(shape, dimensions, free):
            if all(map(free.__contains__, product(*(range(c, c + n) for c, n in zip(corner, shape, strict=True))))):
                places = product(*(range(a + c, a + c + n) for a, c, n in zip(low, corner, shape, strict=True)))
                return tuple(index for place in places for index in chips[place])
    return None


def _group_chips(topology: Topology, pool: Sequence[int]) -> dict[Place, list[int]]:
    """Returns the devices by the place of their chip, (z, y, x); those without coordinates are left out."""
    chips: dict[Place, list[int]] = defaultdict(list)
    for index in pool:
        place = build_place(topology.devices[index].coords, None)
        if place is not None:
            chips[place[1:-1]].append(index)
    return chips


def _list_shapes(chip_count: int, dimensions: Sequence[Dimension]) -> list[Place]:
    """Returns the fitting boxes of this number of chips, those with the shortest paths inside first."""
    if not dimensions:
        return [()] if chip_count == 1 else []
    shapes = [
        (size, *rest)
        for size in range(1, min(chip_count, dimensions[0].size) + 1)
        if chip_count % size == 0
        for rest in _list_shapes(chip_count // size, dimensions[1:])
    ]
    return sorted(shapes, key=lambda shape: (_measure_ways(shape, dimensions), shape))


def _measure_ways(shape: Sequence[int], dimensions: Sequence[Dimension]) -> float:
    """Returns the mean way between two chips of a box, in hops: a third of each length, of a whole ring a quarter."""
    return sum(
        size / 4 if dimension.is_ring and size == dimension.size else (size - 1 / size) / 3
        for size, dimension in zip(shape, dimensions, strict=True)
    )


def _list_corners(shape: Sequence[int], dimensions: Sequence[Dimension], free: Collection[Place]) -> list[Place]:
    """Returns the places where a box can start, whose lowest chip is free. Multiples of its own lengths come first, so
    that the remaining chips can be used too."""
    ends = [dimension.size - size for size, dimension in zip(shape, dimensions, strict=True)]
    fitting = (place for place in free if all(value <= end for value, end in zip(place, ends, strict=True)))
    return sorted(fitting, key=lambda corner: (any(c % size for c, size in zip(corner, shape, strict=True)), corner))


Health = Mapping[int, str]
"""Place in `Topology.devices` → "healthy", "degraded", "unhealthy", "unknown" or "initializing", as reported by
`/health`."""

Names = Sequence[int | str]

HOSTS_SHOWN: Final = 3
ANY_LEASE: Final = "*"
"""Used in place of a lease, and no id of one: held devices may be used, as for a question about hardware."""


@dataclass(frozen=True)
class Pool:
    """The devices that a plan may use.

    Attributes:
        indices: as listed in the request, else in plain order.
        is_named: the request gives which or how many, so other devices are left unused on purpose.
        alternatives: devices for a faster order: healthy, free, and not excluded, in plain order.
        left_out: existing devices that were not taken because they are unhealthy or in compute mode "prohibited".
        is_counted: the request gives how many, and not which.
        leased, taken: healthy devices that were left out because a lease covers them that is not the request's, or
            another process uses them exclusively.
        why_held: the users of held devices, as the end of an error: ", and device 0 is held by …"; empty where no
            device is held.
    """

    indices: tuple[int, ...]
    is_named: bool
    alternatives: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    notices: tuple[Notice, ...] = ()
    is_counted: bool = False
    leased: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    why_held: str = ""


def select_devices(
    asked: Names | DeviceSelection | None, topology: Topology, health: Health, lease: str | None = None
) -> Pool:
    """Returns the devices that the request selects.

    Args:
        asked: which, or how many; None: all healthy free devices, or with a lease those that it covers.
        topology: the devices, and which of them are leased or in use.
        health: of each device, by place.
        lease: the job's lease. Any process that uses its devices is assumed to be the job.

    Raises:
        PlanInfeasibleError: a device is unknown, ambiguous, named twice or outside the lease, or there are too few.
        DeviceLeasedError: leases of others cover devices that the request needs, or all devices.
        NotFoundError: the lease covers no device.
    """
    if not topology.devices:
        raise refuse("a mesh needs devices; this host has none jax can use", "see GET /health for the reason", "mesh")
    there = topology.order if lease in (None, ANY_LEASE) else _list_of_lease(topology, lease)
    devices = topology.devices
    left_out = tuple(i for i in there if devices[i].compute_mode == "prohibited" or health.get(i) == "unhealthy")
    ill = {*left_out}
    usable = tuple(index for index in there if index not in ill)
    if asked is None or isinstance(asked, DeviceSelection):
        return _choose(asked, topology, usable, left_out, health, lease)
    named = _find_all(asked, topology, "devices")
    if outside := sorted({*named} - {*there}):
        found = f"devices names {topology.describe(outside)}; lease {lease} has device {topology.describe(there)}"
        raise refuse(f"{found}; a plan with a lease is made on its devices", "leave out devices or lease", "devices")
    _, leased, taken = _part_held(topology, usable, lease)
    busy = {*leased, *taken, *find_foreign(topology, usable)} - {*named}
    return Pool(named, True, tuple(index for index in usable if index not in busy))


def find_foreign(topology: Topology, indices: Iterable[int]) -> tuple[int, ...]:
    """Returns the devices that processes other than the agent's own worker hold."""
    held = (index for index in indices if topology.devices[index].processes)
    return tuple(index for index in held if not all(process.own for process in topology.devices[index].processes or ()))


def find_leased(topology: Topology, indices: Iterable[int], lease: str | None = None) -> tuple[int, ...]:
    """Returns the devices that a lease covers, other than the one given."""
    if lease == ANY_LEASE:
        return ()
    return tuple(i for i in indices if topology.devices[i].lease is not None and not is_own(topology, i, lease))


def name_leases(topology: Topology, indices: Iterable[int]) -> str:
    """Returns the devices and the leases that cover them: "device 0, 1 is leased by lease-… (slurm job 7)"."""
    covered: dict[str, list[int]] = {}
    for index in indices:
        lease = topology.devices[index].lease
        if lease is not None:
            owner = f", {lease.owner}" if lease.owner else ""
            covered.setdefault(f"{lease.id} ({lease.purpose}{owner})", []).append(index)
    return "; ".join(f"device {topology.describe(group)} is leased by {name}" for name, group in covered.items())


def name_holders(topology: Topology, indices: Iterable[int]) -> str:
    """Returns the devices and the processes, other than the agent's own, that hold them: "0, 1 is held by a (7)"."""
    held: dict[str, list[int]] = {}
    for index in indices:
        holders = [process for process in topology.devices[index].processes or () if not process.own]
        names = ", ".join(f"{process.name or 'process'} ({process.pid})" for process in holders[:3])
        more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
        held.setdefault(names + more, []).append(index)
    return "; ".join(f"device {topology.describe(group)} is held by {names}" for names, group in held.items())


def name_hosts(topology: Topology) -> str:
    """Returns the hosts as a refusal names them: "host a has 8", "3 hosts (a, b, c) have 8"."""
    hosts = topology.hosts
    if len(hosts) == 1:
        return f"host {hosts[0]} has"
    return f"{len(hosts)} hosts ({', '.join(hosts[:HOSTS_SHOWN])}{', …' if len(hosts) > HOSTS_SHOWN else ''}) have"


def refuse(detail: str, hint: str, field: str) -> PlanInfeasibleError:
    """Returns the error for an infeasible plan. `detail` has three parts, separated by semicolons: the request, what
    was found, and the rule."""
    return PlanInfeasibleError.of(field, detail, hint, detail.rpartition("; ")[2])


def _choose(
    asked: DeviceSelection | None,
    topology: Topology,
    usable: tuple[int, ...],
    left_out: tuple[int, ...],
    health: Health,
    lease: str | None,
) -> Pool:
    count = asked.count if asked else None
    excluded = set(_find_all(asked.exclude, topology, "devices.exclude") if asked and asked.exclude else ())
    candidates, leased, taken = _part_held(topology, [index for index in usable if index not in excluded], lease)
    holders = name_leases(topology, leased), name_holders(topology, taken)
    words = ", ".join(filter(None, holders)).replace("; ", ", ")
    why = f", and {words}" if words else ""
    notices = _describe_left_out(topology, [index for index in left_out if index not in excluded], health)
    is_named = bool(excluded) or lease not in (None, ANY_LEASE)
    free = Pool(candidates, is_named, candidates, left_out, notices, leased=leased, taken=taken, why_held=why)
    if count is None and candidates:
        return replace(free, notices=(*notices, *_describe_held(*holders)))
    if (count or 1) > len(candidates):
        request = f"devices asks for {count or 'what is free'}" if asked else "a plan needs at least one device"
        if (count or 1) <= len(candidates) + len(leased):
            works = f"ask for {len(candidates)} or fewer" if candidates else ""
            raise refuse_leased(request, topology, leased, why, works, field="devices.count" if asked else "devices")
        works = "exclude fewer devices, or name them one by one" if excluded else "GET /health and GET /devices say why"
        if candidates or leased:
            then = "" if candidates else " when their leases have ended (GET /leases says when)"
            works = f"ask for {len(candidates or leased)} or fewer{then}"
        gone = (len(excluded), "are excluded"), (len(set(left_out) - excluded), "are not well")
        lacks = " and ".join(f"{number} {words}" for number, words in gone if number)
        there = f"{name_hosts(topology)} {len(topology.devices)}{', of which ' * bool(lacks)}{lacks}{why}"
        detail = f"{request}; {there}; only what is left can be taken"
        raise refuse(detail, works, "devices.count" if count else "devices")
    count = count or 1
    busy = {index for index in find_foreign(topology, candidates) if not is_own(topology, index, lease)}
    idle = tuple(index for index in candidates if index not in busy)
    pool = idle if len(idle) >= count else candidates
    return replace(free, indices=pack_devices(topology, pool, count), is_named=True, alternatives=pool, is_counted=True)


def select_for_lease(
    asked: DeviceSelection, topology: Topology, health: Health, *, is_preemptible: bool
) -> tuple[int, ...]:
    """Returns the places of the devices for a new lease: healthy, not leased, close to each other.

    Where too few are free, a lease that is not preemptible takes devices from preemptible leases, no more than it has
    to. Processes that use them are assumed to be the preempted job's, which has to end.

    Raises:
        DeviceLeasedError: other leases have too many of the devices.
        InvalidRequestError: there are fewer devices that are healthy and not in exclusive use by a process.
    """
    covers = [device.lease for device in topology.devices if device.lease is not None and not is_preemptible]
    yielding = list(dict.fromkeys(cover.id for cover in covers if cover.preemptible))

    def select(ended: Sequence[str]) -> tuple[int, ...]:
        free = {"lease": None, "processes": ()}
        devices = (d.model_copy(update=free) if d.lease and d.lease.id in ended else d for d in topology.devices)
        return select_devices(asked, replace(topology, devices=tuple(devices)), health).indices

    ended: list[str] = []
    while True:
        try:
            chosen = select(ended)
            break
        except PlanInfeasibleError as error:
            raise InvalidRequestError(error.detail, hint=error.hint, errors=error.errors) from error
        except DeviceLeasedError:
            if len(ended) == len(yielding):
                raise
        ended = yielding[: len(ended) + 1]
    for each in tuple(ended):
        with suppress(DeviceLeasedError, PlanInfeasibleError):
            rest = [one for one in ended if one != each]
            chosen, ended = select(rest), rest
    return chosen


def refuse_leased(
    asked: str, topology: Topology, leased: Sequence[int], why_held: str, works: str = "", *, field: str = "devices"
) -> DeviceLeasedError:
    """Returns the error for a request that fails only because of the leases of others.

    Args:
        asked: the request, as a clause.
        leased: the devices that the leases cover.
        why_held: which leases, and which processes use further devices.
        works: a request that works now; empty if no request does.
        field: the part of the request that asks for too much.
    """
    rule = "devices that are leased to others are left out"
    held = next(topology.devices[index] for index in leased if topology.devices[index].lease is not None)
    first, where = held.lease.id if held.lease else "", f" on {held.host}" if len(topology.hosts) > 1 else ""
    ways = f"wait for the end of {first} (GET /leases says when), or have it ended: DELETE /leases/{first}{where}"
    detail = f"{asked}; {name_hosts(topology)} {len(topology.devices)}{why_held}; {rule}"
    return DeviceLeasedError.of(field, detail, f"{works}; or {ways}" if works else ways, rule)


def _list_of_lease(topology: Topology, lease: str | None) -> tuple[int, ...]:
    if found := tuple(index for index in topology.order if is_own(topology, index, lease)):
        return found
    there = len(topology.devices)
    detail = f"lease {lease!r} covers none of the {there} devices; a plan with a lease is made on its devices"
    raise NotFoundError(detail, hint="GET /leases lists those that hold; with a target, leave lease out")


def is_own(topology: Topology, index: int, lease: str | None) -> bool:
    """Returns whether the job's lease covers a device."""
    cover = topology.devices[index].lease
    return lease is not None and cover is not None and cover.id == lease


def _part_held(
    topology: Topology, indices: Sequence[int], lease: str | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the devices that a job could open, those that others lease, and those that another process has to itself:
    any holder of a TPU, and of a GPU in exclusive mode."""
    if lease == ANY_LEASE:
        return tuple(indices), (), ()
    devices, leased = topology.devices, find_leased(topology, indices, lease)
    held = {*leased}
    others = (i for i in find_foreign(topology, indices) if i not in held and not is_own(topology, i, lease))
    taken = [i for i in others if devices[i].platform == "tpu" or devices[i].compute_mode == "exclusive_process"]
    held |= {*taken}
    return tuple(index for index in indices if index not in held), leased, tuple(taken)


def _find_all(names: Names, topology: Topology, field: str) -> tuple[int, ...]:
    if not names:
        detail = f"{field} is an empty list; {name_hosts(topology)} {len(topology.devices)} devices"
        raise refuse(f"{detail}; a plan needs at least one", "name some, such as 0, or leave it out", field)
    found = tuple(_find(name, topology, field) for name in names)
    doubled = next((index for index, times in Counter(found).items() if times > 1), None)
    if doubled is not None:
        detail = f"{field} names device {topology.describe([doubled])} {found.count(doubled)} times"
        raise refuse(f"{detail}; a device can stand on a mesh once", "name every device once", field)
    return found


def _find(name: int | str, topology: Topology, field: str) -> int:
    is_number = isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 10
    key = int(name) if is_number else name.lower() if isinstance(name, str) else name
    found = topology.names.get(key, ())
    if len(found) == 1:
        return found[0]
    there = topology.describe(topology.order)
    if not found:
        rule = "a device is named by its local index, host/index, uuid or PCI bus id"
        hint = f"use one of {there}, or a uuid from GET /devices"
        raise refuse(f"{field} names {repr(name)[:80]}; {name_hosts(topology)} devices {there}; {rule}", hint, field)
    shared = topology.describe(found)
    detail = (
        f"{field} names {repr(name)[:80]}, which {len(found)} devices share ({shared}); a name must mean one device"
    )
    raise refuse(detail, f"name it with its host, or by uuid: {shared}", field)


def describe_left_out(topology: Topology, indices: Sequence[int]) -> str:
    """Returns which devices are left out: "device 1 is left out", "devices 1, 3 are left out"."""
    is_one = len(indices) == 1
    return f"{'device' if is_one else 'devices'} {topology.describe(indices)} {'is' if is_one else 'are'} left out"


def _describe_left_out(topology: Topology, left_out: Sequence[int], health: Health) -> tuple[Notice, ...]:
    if not left_out:
        return ()
    why = {"unhealthy" if health.get(i) == "unhealthy" else "prohibited" for i in left_out}
    message = f"{describe_left_out(topology, left_out)}: {' or '.join(sorted(why))}"
    hint = "see GET /health; name a device in `devices` to use it all the same"
    return (Notice(code="devices_left_out", message=message, hint=hint),)


def _describe_held(leased: str, taken: str) -> Iterator[Notice]:
    """Yields the warnings of devices that leases, or processes, keep from the plan."""
    wholly = "name a device in `devices` to plan on it all the same"
    if leased:
        hint = f"give the `lease` that the job has; {wholly}"
        yield Notice(code="devices_left_out", message=f"{leased}: left out", hint=hint)
    if taken:
        message = f"{taken}: left out, since one process at a time can use it"
        yield Notice(code="devices_left_out", message=message, hint=f"end that process; {wholly}")

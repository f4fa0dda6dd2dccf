"""Which devices a plan may use: those named, those chosen by number, or all that are well. Says what it left
out.

Knows names, health and who holds a device; knows no mesh. Indices are places in `Topology.devices`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.packing import pack_devices, spread_devices
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.mesh import DeviceSelection

Health = Mapping[int, str]
"""Place in `Topology.devices` → "healthy", "degraded", "unhealthy", "unknown" or "initializing", as `/health` says."""

Names = Sequence[int | str]

HOSTS_SHOWN: Final = 3


@dataclass(frozen=True)
class Pool:
    """The devices that a plan may use.

    Attributes:
        indices: as listed in the request, else in plain order.
        is_named: the request said which or how many, so that others are left unused on purpose.
        alternatives: what a faster order could be made of: well, free, and not excluded, in plain order.
        left_out: devices that are there and were not taken because they are not well.
        held: devices that are well and were not taken because another process has them to itself.
        is_counted: the request said how many, and not which.
    """

    indices: tuple[int, ...]
    is_named: bool
    alternatives: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    notices: tuple[Notice, ...] = ()
    held: tuple[int, ...] = ()
    is_counted: bool = False

    @property
    def choice(self) -> tuple[int, ...]:
        """What a plan may choose from: all that are free where the request asks for any so many, packed."""
        return self.alternatives if self.is_counted and self.alternatives else self.indices


def select_devices(asked: Names | DeviceSelection | None, topology: Topology, health: Health) -> Pool:
    """Returns the devices that the request means.

    Raises:
        PlanInfeasibleError: a device is unknown, ambiguous or named twice, or there are fewer than were asked
            for.
    """
    if not topology.devices:
        raise refuse(
            "a mesh needs devices; this host has none that jax can use",
            "see GET /health for the reason",
            "mesh",
        )
    usable = tuple(index for index in topology.order if is_usable(topology, index, health))
    well = set(usable)
    left_out = tuple(index for index in topology.order if index not in well)
    match asked:
        case None:
            free, held = _part_held(topology, usable)
            notices = _tell_left_out(topology, left_out, health) + _tell_held(topology, held)
            return Pool(free, False, free, left_out, notices, held)
        case DeviceSelection():
            return _choose(asked, topology, usable, left_out, health)
        case _:
            named = _find_all(asked, topology, "devices")
            busy = set(find_foreign(topology, usable)) - set(named)
            return Pool(named, True, tuple(index for index in usable if index not in busy))


def is_usable(topology: Topology, index: int, health: Health) -> bool:
    """True unless the device is unhealthy, or its driver forbids computing on it."""
    device = topology.devices[index]
    return health.get(index) != "unhealthy" and device.compute_mode != "prohibited"


def find_foreign(topology: Topology, indices: Iterable[int]) -> tuple[int, ...]:
    """Returns the devices that processes other than the agent's own worker hold."""
    held = [(index, topology.devices[index].processes) for index in indices]
    return tuple(index for index, processes in held if processes and not all(process.own for process in processes))


def find_taken(topology: Topology, indices: Iterable[int]) -> tuple[int, ...]:
    """Returns the devices that another process has to itself: any holder of a TPU, and of a GPU in exclusive mode."""
    devices = topology.devices
    foreign = find_foreign(topology, indices)
    return tuple(i for i in foreign if devices[i].platform == "tpu" or devices[i].compute_mode == "exclusive_process")


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
    """Returns the refusal of a plan that cannot be. `detail` says, between semicolons: asked; there; the
    rule."""
    return PlanInfeasibleError(detail, hint=hint, errors=[{"field": field, "message": detail.rpartition("; ")[2]}])


def _choose(
    asked: DeviceSelection,
    topology: Topology,
    usable: tuple[int, ...],
    left_out: tuple[int, ...],
    health: Health,
) -> Pool:
    excluded = set(_find_all(asked.exclude, topology, "devices.exclude") if asked.exclude else ())
    candidates, held = _part_held(topology, [index for index in usable if index not in excluded])
    notices = _tell_left_out(topology, [index for index in left_out if index not in excluded], health)
    if asked.count is None:
        notices += _tell_held(topology, held)
        return Pool(candidates, bool(excluded), candidates, left_out, notices, held)
    if asked.count > len(candidates):
        raise refuse(
            f"devices asks for {asked.count}; {name_hosts(topology)} {len(topology.devices)}, of which "
            f"{len(excluded)} are "
            f"excluded and {len(set(left_out) - excluded)} are not well{tell_taken(topology, held)}; "
            f"a plan takes only what is left",
            f"ask for {len(candidates)} or fewer" if candidates else "exclude fewer devices, or name them one by one",
            "devices.count",
        )
    busy = set(find_foreign(topology, candidates))
    free = tuple(index for index in candidates if index not in busy)
    pool = free if len(free) >= asked.count else candidates
    alternatives = pool if asked.policy == "packed" else ()
    chosen = _take(asked, topology, pool, asked.count)
    return Pool(chosen, True, alternatives, left_out, notices, held, is_counted=True)


def tell_taken(topology: Topology, held: Sequence[int]) -> str:
    """Returns how a refusal goes on about devices that others have to themselves: ", and device 0 is held by …"."""
    return f", and {name_holders(topology, held).replace('; ', ', ')}" if held else ""


def _part_held(topology: Topology, indices: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the devices that a job could open, and those that another process has to itself."""
    held = find_taken(topology, indices)
    taken = set(held)
    return tuple(index for index in indices if index not in taken), held


def _take(asked: DeviceSelection, topology: Topology, pool: tuple[int, ...], count: int) -> tuple[int, ...]:
    take = pack_devices if asked.policy == "packed" else spread_devices
    return take(topology, pool, count)


def _find_all(names: Names, topology: Topology, field: str) -> tuple[int, ...]:
    if not names:
        raise refuse(
            f"{field} is an empty list; {name_hosts(topology)} {len(topology.devices)} devices; a plan "
            f"needs at least one",
            "name some, such as 0, or leave it out",
            field,
        )
    found = tuple(_find(name, topology, field) for name in names)
    doubled = next((index for index, times in Counter(found).items() if times > 1), None)
    if doubled is not None:
        raise refuse(
            f"{field} names device {topology.describe([doubled])} {found.count(doubled)} times; "
            f"a device can stand on a mesh once",
            "name every device once",
            field,
        )
    return found


def _find(name: int | str, topology: Topology, field: str) -> int:
    is_number = isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 10
    key = int(name) if is_number else name.lower() if isinstance(name, str) else name
    found = topology.names.get(key, ())
    if len(found) == 1:
        return found[0]
    there = topology.describe(topology.order)
    if not found:
        raise refuse(
            f"{field} names {repr(name)[:80]}; {name_hosts(topology)} devices {there}; "
            f"a device is named by its local index, host/index, uuid or PCI bus id",
            f"use one of {there}, or a uuid from GET /devices",
            field,
        )
    raise refuse(
        f"{field} names {repr(name)[:80]}, which {len(found)} devices share "
        f"({topology.describe(found)}); "
        f"a name must mean one device",
        f"name it with its host, or by uuid: {topology.describe(found)}",
        field,
    )


def _tell_left_out(topology: Topology, left_out: Sequence[int], health: Health) -> tuple[Notice, ...]:
    if not left_out:
        return ()
    why = {"unhealthy" if health.get(i) == "unhealthy" else "prohibited" for i in left_out}
    return (
        Notice(
            code="devices_left_out",
            message=f"device {topology.describe(left_out)} is left out: {' or '.join(sorted(why))}",
            hint="see GET /health; name a device in `devices` to use it all the same",
        ),
    )


def _tell_held(topology: Topology, held: Sequence[int]) -> tuple[Notice, ...]:
    if not held:
        return ()
    message = f"{name_holders(topology, held)}: left out, since one process at a time can use it"
    hint = "end that process; name a device in `devices` to plan on it all the same"
    return (Notice(code="devices_left_out", message=message, hint=hint),)

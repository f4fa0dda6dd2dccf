"""One TPU slice from what each of its hosts says: its chips in canonical order, its shape, the chips that lack.

Rule: coordinates tell who stands where; what hosts say of one slice must fit together. Where no host says the shape,
it is that of the chips only if they fill a box and nobody knows of others. Pure; knows no agent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, product
from typing import Any, Final

from meshwright.errors import PlanInfeasibleError
from meshwright.topology.chips import find_chip_by_kind
from meshwright.topology.identity import write_chip
from meshwright.topology.model import ICI
from meshwright.topology.torus import find_wraps
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Granule, Link

NAMES_SHOWN: Final = 8

Coords = tuple[int, ...]


@dataclass(frozen=True)
class Seat:
    """One device: of which reply, and where it stands in that reply's list."""

    reply: int
    index: int
    device: Device


@dataclass(frozen=True)
class Part:
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
        """The slice's index as JAX says it; 0 where nobody does."""
        return next((seat.device.slice_index for seat in self.seats if seat.device.slice_index is not None), 0)

    @property
    def is_whole(self) -> bool:
        """Whether the chips here are all that the slice is said to have."""
        chips = {seat.device.coords for seat in self.seats}
        return self.granule.shape is not None and len(chips) == math.prod(self.granule.shape)

    @property
    def is_open(self) -> bool:
        """Whether anything says that the slice has other hosts."""
        if self.is_whole:
            return False
        places = [seat.device.coords for seat in self.seats if seat.device.coords]
        corner = [min(column) for column in zip(*places, strict=False)]
        ranks = {seat.device.process_index or 0 for seat in self.seats}
        return self.knows_others or self.granule.shape is not None or any(corner) or any(ranks)


@dataclass(frozen=True)
class JoinedGranule:
    """A granule of the joined topology: its devices in order, links between hosts, what should be known of it."""

    granule: Granule
    seats: tuple[Seat, ...]
    links: tuple[tuple[Seat, Seat], ...] = ()
    notices: tuple[Notice, ...] = ()


def join_slice(parts: Sequence[Part]) -> JoinedGranule:
    """Returns one slice from the parts that its hosts are.

    Raises:
        PlanInfeasibleError: hosts say different shapes or rings, a chip stands outside the shape or has coordinates
            of another length, or two stand at one place.
    """
    seats = tuple(seat for part in parts for seat in part.seats)
    name = parts[0].granule.name
    seeing = [seat for seat in seats if seat.device.coords is not None]
    _check_places(name, seeing)
    said = _read_shape(name, parts)
    _check_inside(name, said, seeing)
    if len(seeing) < len(seats):
        return _join_blind(name, said, parts, seats)
    ordered = tuple(sorted(seats, key=lambda seat: canonical_key(seat.device)))
    shape = said or _find_box(ordered, parts)
    fields = {"name": name, "device_count": len(seats), **_describe_torus(shape, parts, ordered)}
    granule = parts[0].granule.model_copy(update=fields)
    notices = _tell_missing(name, said, ordered) + _tell_shape(name, said, shape, len(parts), ordered)
    return JoinedGranule(granule, ordered, () if shape else _list_crossings(ordered), notices)


def _join_blind(name: str, said: Coords | None, parts: Sequence[Part], seats: Sequence[Seat]) -> JoinedGranule:
    """Returns a slice of which nobody says where some chips stand: in the order of its processes."""
    blind = [seat for seat in seats if seat.device.coords is None]
    fields = {"device_count": len(seats), **_describe_torus(said, parts, seats)}
    granule = parts[0].granule.model_copy(update=fields)
    told = (_tell_blind(name, blind),) if len(parts) > 1 else ()
    return JoinedGranule(granule, tuple(sorted(seats, key=_by_process)), notices=told)


def canonical_key(device: Device) -> tuple[int, ...]:
    """Returns the sort key of the canonical order in a slice: z, y, x, core."""
    return (*reversed(device.coords or ()), device.core_on_chip or 0)


def _by_process(seat: Seat) -> tuple[int, int, int]:
    return seat.device.process_index or 0, seat.reply, seat.device.position


def _check_places(name: str, seats: Sequence[Seat]) -> None:
    seen: dict[tuple[int, ...], Seat] = {}
    for seat in seats:
        _check_length(name, seats[0], seat)
        other = seen.setdefault(canonical_key(seat.device), seat)
        if other is not seat:
            place = write_chip(seat.device.coords, seat.device.core_on_chip)
            verb = "stand at" if other.device.host == seat.device.host else "have a device at"
            raise refuse(
                f"{_name_both(other, seat)} are joined as slice {name}; both {verb} {place}; at one place of a slice "
                f"there is one device",
                "hosts of different slices need different TPU_NAME; hosts of one slice need the slice's coordinates, "
                "not their own from (0,0,0)",
            )


def _check_length(name: str, first: Seat, seat: Seat) -> None:
    one, other = len(first.device.coords or ()), len(seat.device.coords or ())
    if one != other:
        raise refuse(
            f"{_name_both(first, seat)} are joined as slice {name}; their chips have {one} and {other} coordinates; "
            f"chips of one slice have as many as it has dimensions",
            "hosts of different slices need different TPU_NAME",
        )


def _name_both(one: Seat, other: Seat) -> str:
    if one.device.host != other.device.host:
        return f"hosts {one.device.host} and {other.device.host}"
    return f"devices {one.device.local_index} and {other.device.local_index} of host {one.device.host}"


def _read_shape(name: str, parts: Sequence[Part]) -> Coords | None:
    shapes = {part.granule.shape: part for part in parts if part.granule.shape is not None}
    if len(shapes) > 1:
        said = ", ".join(f"{_write_shape(s)} ({part.seats[0].device.host})" for s, part in shapes.items() if s)
        raise refuse(
            f"the hosts of slice {name} say that its shape is {said}; a slice has one shape",
            "hosts of different slices need different TPU_NAME; else look at TPU_TOPOLOGY on these hosts",
        )
    return next(iter(shapes), None)


def _check_inside(name: str, shape: Coords | None, seats: Sequence[Seat]) -> None:
    for seat in seats:
        if shape and not _is_inside(seat.device.coords or (), shape):
            raise refuse(
                f"slice {name} has the shape {_write_shape(shape)}; host {seat.device.host} has a chip at "
                f"{write_chip(seat.device.coords, seat.device.core_on_chip)}; a chip stands inside its slice",
                "look at TPU_TOPOLOGY on the hosts: it is the whole slice's shape",
            )


def _is_inside(coords: Coords, shape: Coords) -> bool:
    return len(coords) == len(shape) and all(0 <= place < size for place, size in zip(coords, shape, strict=True))


def _find_box(seats: Sequence[Seat], parts: Sequence[Part]) -> Coords | None:
    """Returns the shape of several hosts whose chips fill a box, none of them knowing of others; else None."""
    places = {seat.device.coords for seat in seats if seat.device.coords}
    if len(parts) < 2 or any(part.knows_others for part in parts) or len({len(place) for place in places}) != 1:
        return None
    shape = tuple(max(column) + 1 for column in zip(*places, strict=True))
    return shape if len(places) == math.prod(shape) else None


def _describe_torus(shape: Coords | None, parts: Sequence[Part], seats: Sequence[Seat]) -> dict[str, Any]:
    if shape is None:
        return {}
    twisted = any(part.granule.twisted for part in parts)
    ruled = (True,) * len(shape) if twisted else find_wraps(seats[0].device.kind, shape)
    return {"shape": shape, "wrap": _read_wrap(parts) or ruled, "twisted": twisted}


def _read_wrap(parts: Sequence[Part]) -> tuple[bool, ...] | None:
    wraps = {part.granule.wrap: part for part in parts if part.granule.wrap is not None}
    if len(wraps) > 1:
        said = ", ".join(f"{_write_wrap(wrap)} ({part.seats[0].device.host})" for wrap, part in wraps.items() if wrap)
        raise refuse(
            f"the hosts of slice {parts[0].granule.name} say of its dimensions {said}; a slice closes to rings in one "
            f"way",
            "look at TPU_TOPOLOGY_WRAP on these hosts",
        )
    return next(iter(wraps), None)


def _write_wrap(wrap: Sequence[bool]) -> str:
    return ",".join(str(flag).lower() for flag in wrap)


def _list_places(shape: Coords) -> Iterator[Coords]:
    """Yields all places of a slice, x fastest."""
    return (place[::-1] for place in product(*(range(size) for size in reversed(shape))))


def _list_crossings(seats: Sequence[Seat]) -> tuple[tuple[Seat, Seat], ...]:
    """Returns the neighbours in the grid that are of different hosts, by the first cores of their chips."""
    first: dict[Coords, Seat] = {}
    for seat in seats:
        first.setdefault(seat.device.coords or (), seat)
    steps = [(first[here], first.get(there)) for here in first for there in _next_places(here)]
    return tuple((a, b) for a, b in steps if b is not None and a.reply != b.reply)


def _next_places(coords: Coords) -> list[Coords]:
    return [(*coords[:axis], coords[axis] + 1, *coords[axis + 1 :]) for axis in range(len(coords))]


def build_link(a: Device, b: Device, places: tuple[int, int]) -> Link:
    """Returns the ICI link between two neighbours of a slice: declared, since no host says it."""
    chip = find_chip_by_kind(a.kind)
    newer = max(a, b, key=_read_time)
    return Link(
        a=places[0],
        b=places[1],
        kind=ICI,
        bandwidth_bytes_per_s=chip.link_bytes_per_s if chip else None,
        basis="declared",
        observed_at=newer.observed_at,
        age_s=newer.age_s,
    )


def _read_time(device: Device) -> datetime:
    """Returns when a device was observed; times without a zone are UTC, as all replies are."""
    at = device.observed_at
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# ---- what is told ----


def _tell_missing(name: str, shape: Coords | None, seats: Sequence[Seat]) -> tuple[Notice, ...]:
    if shape is None:
        return ()
    cores = Counter(seat.device.coords or () for seat in seats)
    most = max(cores.values())
    there = sum(count == most for count in cores.values())
    missing_count = math.prod(shape) - there
    if not missing_count:
        return ()
    missing = (place for place in _list_places(shape) if cores[place] < most)
    shown = ", ".join(_write_place(place) for place in islice(missing, NAMES_SHOWN))
    more = f", and {missing_count - NAMES_SHOWN} more" if missing_count > NAMES_SHOWN else ""
    return (
        Notice(
            code="chips_missing",
            message=f"slice {name} has {math.prod(shape)} chips ({_write_shape(shape)}), and {there} of them are here; "
            f"missing: {shown}{more}",
            hint="the plan leaves them out; ask the agents of all its hosts to plan on the whole slice",
        ),
    )


def _tell_shape(
    name: str, said: Coords | None, shape: Coords | None, part_count: int, seats: Sequence[Seat]
) -> tuple[Notice, ...]:
    if said is not None or part_count < 2:
        return ()
    taken = f"they fill {_write_shape(shape)}, which is taken for its shape" if shape else "wrap-around is not assumed"
    return (
        Notice(
            code="slice_shape_unknown",
            message=f"no host says the shape of slice {name}; {len(seats)} devices of it are here, and {taken}",
            hint="set TPU_TOPOLOGY for the agents, such as 4x4x4",
        ),
    )


def _tell_blind(name: str, blind: Sequence[Seat]) -> Notice:
    hosts = list(dict.fromkeys(seat.device.host for seat in blind))
    more = f", and {len(hosts) - NAMES_SHOWN} more" if len(hosts) > NAMES_SHOWN else ""
    return Notice(
        code="coordinates_unknown",
        message=f"slice {name}: nobody says where the chips of {', '.join(hosts[:NAMES_SHOWN])}{more} stand in it; "
        f"its devices are ordered by host",
        hint="let each agent's JAX look at its chips once (POST /devices/release frees them again)",
    )


def _write_shape(shape: Coords) -> str:
    return "x".join(map(str, shape))


def _write_place(place: Coords) -> str:
    return f"({','.join(map(str, place))})"


def refuse(detail: str, hint: str) -> PlanInfeasibleError:
    """Returns the refusal of hosts that make no topology. `detail` says, between semicolons: asked; there; the rule."""
    return PlanInfeasibleError(detail, hint=hint, errors=[{"field": "topology", "message": detail.rpartition("; ")[2]}])

"""A mesh over several granules (slices, or hosts): how its axes are split between them, and the order that results.

Plans, `create_mesh` and `calculate_host_mesh_shape` split axes by the one function here: outermost axes first. Of an
axis that is split, the part over granules is the outer one, so that neighbors are in one granule wherever they can be.
A request may give the split (`dcn`): an axis that it does not name is not split, and the parts multiply to the number
of granules. Pure arithmetic, without devices and links.

The weight of an axis says how much it counts when axes compete for fast links. The caller's traffic figures determine
the weights; otherwise the names of the axes rank them, as frameworks use them. Axes of one rank are ranked by order,
inner axes before outer ones (`jax.experimental.mesh_utils` also takes shapes "ordered by increasing network
intensity").
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple, TypeVar

from meshwright.errors import InvalidMeshError, InvalidRequestError, PlanInfeasibleError
from meshwright.planning.parallelism import ROLES, Role, find_role
from meshwright.spec import MeshSpec

RANK_RATIO: Final = 4.0
"""How much more an axis counts than the next one in rank, inside a granule. Ours: it ranks axes, and predicts
no traffic."""

CROSSING_RATIO: Final = 64.0
"""The same between granules, at least: a set of devices is preferred that keeps the heavier axis inside, even where the
lighter one is small, so that each of its devices sends more. For that the ratio has to be more than half of the largest
axis, and is as much as all of it where that is more than this."""


DIGITS: Final = 12
"""Of weighted sums that are compared: the least of five axes counts 64⁻⁴."""


class Weights(NamedTuple):
    """How much each axis counts, outermost first: on links inside a granule, and on the network between granules.

    Attributes:
        turns: the axes in the order in which granules are spread over them; empty: outermost first.
    """

    inside: tuple[float, ...]
    crossing: tuple[float, ...]
    turns: tuple[int, ...] = ()

    def lead(self) -> Weights:
        """Returns the weights with one more outermost axis of weight 0."""
        return Weights((0.0, *self.inside), (0.0, *self.crossing))


_RANKS: Final[Mapping[Role, int]] = {role: rank for rank, role in enumerate(ROLES)}

UNKNOWN_RANK: Final = _RANKS["fsdp"]
"""The rank of an unknown name: between axes that should be near and axes that may be far apart."""


def weigh_axes(names: Sequence[str], sizes: Sequence[int], importance: Mapping[str, float] | None = None) -> Weights:
    """Returns the weight of each axis: 1 for the most important, 0 for axes of size 1.

    Worked example: ("tp", "dp") of (8, 4) gives (1, 1/4) inside; ("x", "y") of (8, 4) gives (1/4, 1).

    Args:
        names: of the axes, outermost first.
        sizes: one per axis.
        importance: traffic by name, in any unit, for all axes; the least important axes are the first to be spread
            over granules. None: by name and order, and outermost axes are the first to be spread.
    """
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if importance is not None:
        most = max((importance[names[axis]] for axis in wide), default=0.0) or 1.0
        given = tuple(importance[name] / most if size > 1 else 0.0 for name, size in zip(names, sizes, strict=True))
        return Weights(given, given, tuple(sorted(range(len(names)), key=lambda axis: importance[names[axis]])))
    roles = {axis: find_role(names[axis]) for axis in wide}
    ranks = {axis: UNKNOWN_RANK if role is None else _RANKS[role] for axis, role in roles.items()}
    ladder = sorted(wide, key=lambda axis: (ranks[axis], axis), reverse=True)
    crossing = max(CROSSING_RATIO, float(max(sizes, default=1)))
    return Weights(_weigh(ladder, len(sizes), RANK_RATIO), _weigh(ladder, len(sizes), crossing))


def _weigh(ladder: Sequence[int], count: int, ratio: float) -> tuple[float, ...]:
    weights = {axis: ratio**-step for step, axis in enumerate(ladder)}
    return tuple(weights.get(axis, 0.0) for axis in range(count))


def check_importance(importance: Mapping[str, float] | None, names: Sequence[str]) -> Mapping[str, float] | None:
    """Returns the importance unchanged.

    Raises:
        InvalidRequestError: it names no axis of the mesh, or leaves one out.
    """
    if importance is None:
        return None
    unknown = [name for name in importance if name not in names]
    missing = [name for name in names if name not in importance]
    if unknown or missing:
        what = f"axis {unknown[0]!r} is not in the mesh" if unknown else f"axis {missing[0]!r} is left out"
        example = json.dumps({name: place + 1 for place, name in enumerate(names)})
        message = f"{what}; importance has one figure for each axis of the mesh ({', '.join(names)})"
        hint = f"give all, such as {example}, or leave it out"
        raise InvalidRequestError.of("importance", f"importance: {message}", hint, message)
    return importance


Member = TypeVar("Member")

OrderOne = Callable[[tuple[int, ...], Weights, Sequence[Member]], Sequence[Member]]
"""(sizes, weights, members of one granule) → these in mesh order."""


def split_axes(sizes: Sequence[int], granule_count: int, turns: Sequence[int] = ()) -> tuple[int, ...] | None:
    """Returns the number of granules that each axis is split over; None where the granules do not divide the mesh.

    Granules are spread over the outermost axes first, and over several axes where one alone does not divide. So an
    inner axis stays inside a granule whenever the sizes allow it: each axis takes as many granules as divide it, which
    leaves the fewest for the axes after it. Worked examples: (4, 2, 8) on 8 granules: (4, 2, 1); (3, 4) on 2: (1, 2).

    Args:
        sizes: of the mesh, outermost axis first.
        granule_count: the number of granules (slices, or hosts).
        turns: the axes in the order in which they take granules; empty: outermost first.
    """
    split = [1] * len(sizes)
    for axis in turns or range(len(sizes)):
        split[axis] = math.gcd(sizes[axis], granule_count)
        granule_count //= split[axis]
    return tuple(split) if granule_count == 1 else None


def order_granules(
    sizes: Sequence[int],
    weights: Weights,
    granules: Sequence[Sequence[Member]],
    order_one: OrderOne[Member],
    dcn: Sequence[int] | None = None,
) -> tuple[Member, ...]:
    """Returns the members of all granules in mesh order, row-major.

    Granules of different sizes are cut into blocks of one size, placed one after the other. A block then takes the role
    of a granule.

    Args:
        sizes: of the mesh, outermost first; they multiply to the number of members.
        granules: their members.
        order_one: (sizes, weights, members) → the members in the order of a mesh of these sizes.
        dcn: the granules (blocks) along each axis; None: by `split_axes`.
    """
    block = math.gcd(*map(len, granules))
    split = tuple(dcn) if dcn else split_axes(sizes, sum(map(len, granules)) // block, weights.turns)
    assert split is not None, "blocks of one size divide the number of places"
    inner = tuple(size // part for size, part in zip(sizes, split, strict=True))
    blocks: list[Sequence[Member]] = []
    for members in granules:
        count = len(members) // block
        ordered = (
            order_one(inner, weights, members) if count == 1 else order_one((count, *inner), weights.lead(), members)
        )
        blocks += [ordered[start : start + block] for start in range(0, len(ordered), block)]
    return interleave_granules(split, inner, blocks)


def interleave_granules(
    dcn: Sequence[int], inner: Sequence[int], granules: Sequence[Sequence[Member]]
) -> tuple[Member, ...]:
    """Returns the members of all granules in mesh order, row-major.

    Args:
        dcn: the granules along each axis, outermost first; they multiply to the number of granules.
        inner: the places inside a granule along each axis.
        granules: each granule's members in the order of a mesh of sizes `inner`.
    """
    lines = []
    for axis, (outer, inside) in enumerate(zip(dcn, inner, strict=True)):
        far, near = math.prod(dcn[axis + 1 :]), math.prod(inner[axis + 1 :])
        places = (divmod(place, inside) for place in range(outer * inside))
        lines.append([(granule * far, rank * near) for granule, rank in places])
    return tuple(
        granules[sum(granule for granule, _ in place)][sum(rank for _, rank in place)] for place in product(*lines)
    )


# ---- a requested split --------------------------------------------------------------------------------------


def read_dcn(asked: str | Mapping[str, int], spec: MeshSpec, granules: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of granules that each axis is split over.

    Args:
        asked: "dp:2,fsdp:2" or {"dp": 2, "fsdp": 2}; one part may be -1.
        spec: the mesh, without -1.
        granules: the number of devices of each granule (or NVLink domain of several) of the mesh.

    Raises:
        InvalidRequestError: it is malformed, or names an axis that the mesh does not have.
        PlanInfeasibleError: granules differ in size, a part does not divide its axis, or the parts do not multiply to
            the number of granules.
    """
    parts = _parse_dcn(asked, spec)
    count = len(granules)
    known = math.prod(part for part in parts.values() if part != -1)
    if -1 in parts.values() and count % known == 0:
        parts = {name: count // known if part == -1 else part for name, part in parts.items()}
    split = tuple(parts.get(name, 1) for name in spec.names)
    if len(set(granules)) > 1:
        sizes = ", ".join(map(str, sorted(set(granules))))
        detail = f"dcn {MeshSpec.parse(parts)} splits mesh {spec} over {count} granules (slices, or hosts)"
        detail += f"; they have {sizes} devices; a split needs as many in each"
        raise _refuse(detail, "leave dcn out, or choose devices of equal granules in `devices`")
    if math.prod(split) != count or any(size % part for size, part in zip(spec.sizes, split, strict=True)):
        works = split_axes(spec.sizes, count)
        hint = "leave it out"
        if works and count > 1:
            needed = [(name, part) for name, part in zip(spec.names, works, strict=True) if part > 1]
            hint = f"use dcn {MeshSpec.parse(needed)}, or {hint}"
        detail = f"dcn {MeshSpec.parse(parts)} splits mesh {spec}; there are {count} granules (slices, or hosts)"
        raise _refuse(f"{detail}; each part divides its axis, and together they multiply to {count}", hint)
    return split


def _parse_dcn(asked: str | Mapping[str, int], spec: MeshSpec) -> dict[str, int]:
    try:
        parts = dict(MeshSpec.parse(asked).axes)
    except InvalidMeshError as error:
        hint = 'write it as a mesh of granules: "dp:2" or {"dp": 2}'
        raise InvalidRequestError.of("dcn", f"dcn: {error.detail}", hint, error.detail) from None
    unknown = [name for name in parts if name not in spec.names]
    if unknown:
        message = f"axis {unknown[0]!r} is not in mesh {spec}; dcn splits axes of the mesh"
        raise InvalidRequestError.of("dcn", f"dcn: {message}", f"use one of {', '.join(spec.names)}", message)
    return parts


def _refuse(detail: str, hint: str) -> PlanInfeasibleError:
    return PlanInfeasibleError.of("dcn", detail, hint, detail.rpartition("; ")[2])

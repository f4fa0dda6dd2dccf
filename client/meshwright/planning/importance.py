"""The weight of each mesh axis when axes compete for fast links.

Rule: the caller's traffic figures determine the weights. Otherwise the names of the axes rank them, as frameworks use
them. Axes of one rank are ranked by order, inner axes before outer ones (`jax.experimental.mesh_utils` also takes
shapes "ordered by increasing network intensity"). Uses names and sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from meshwright.errors import InvalidRequestError
from meshwright.planning.parallelism import ROLES, Role, find_role

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
    ranks = {axis: _rank(names[axis]) for axis in wide}
    ladder = sorted(wide, key=lambda axis: (ranks[axis], axis), reverse=True)
    crossing = max(CROSSING_RATIO, float(max(sizes, default=1)))
    return Weights(_weigh(ladder, len(sizes), RANK_RATIO), _weigh(ladder, len(sizes), crossing))


def _rank(name: str) -> int:
    role = find_role(name)
    return UNKNOWN_RANK if role is None else _RANKS[role]


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
        example = ",".join(f"{name}:{place + 1}" for place, name in enumerate(names))
        message = f"{what}; importance has one figure for each axis of the mesh ({', '.join(names)})"
        hint = f"give all, such as {example}, or leave it out"
        raise InvalidRequestError.of("importance", f"importance: {message}", hint, message)
    return importance


def weigh_positions(sizes: Sequence[int]) -> Weights:
    """Returns the weight of each axis where only the order of axes is known."""
    return weigh_axes([""] * len(sizes), sizes)

"""The best of the priced candidates, one for each mesh, and why other families of meshes lost.

Rule: the fastest that fit, ties to the simpler mesh and then to the order of listing, so that equal questions get equal
answers. A family is the set of axes that a mesh uses; a loser is told with its own best candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.search.candidates import AXES, PARTS, Priced
from meshwright.wire.mesh import Rejected

REASONS: Final = {"pp": "bubble", "bubble": "bubble", "remat": "compute", "compute": "compute", "optimizer": "compute"}
"""Part of a step → what a family that has too much of it lost by; axes are told by their wires."""


FAMILIES_MOST: Final = 12
"""Families that are told of each kind: that fit and are slower, the fastest first; that do not fit, the nearest."""


def list_leaders(priced: Priced) -> NDArray[np.int64]:
    """Returns the place of the best candidate of each mesh: those that fit first, the fastest first."""
    order = _order(priced)
    return order[_find_firsts(_stack_meshes(priced)[order])]


def list_rejected(
    priced: Priced, leaders: NDArray[np.int64], best: Sequence[int], ordered: Mapping[int, float]
) -> tuple[Rejected, ...]:
    """Returns the best of each family that is not among `best`, of which the first is what others are compared with.

    Args:
        priced: all candidates.
        leaders: of `list_leaders`.
        best: places of the candidates that are told.
        ordered: place → seconds of a step, of the candidates whose devices were put in order.
    """
    meshes = _stack_meshes(priced)
    slower, larger = leaders[priced.fits[leaders]], leaders[~priced.fits[leaders]]
    told = {_name_family(meshes[place]) for place in best}
    return (
        *islice(_list_losers(priced, meshes, slower, best, told, ordered), FAMILIES_MOST),
        *islice(_list_losers(priced, meshes, larger, best, told, ordered), FAMILIES_MOST),
    )


def _stack_meshes(priced: Priced) -> NDArray[np.int64]:
    return np.stack([np.asarray(getattr(priced.layout, axis)) for axis in AXES], axis=1)


def _order(priced: Priced) -> NDArray[np.int64]:
    """Returns all places, what fits first; those by time, the others by the memory that they need."""
    axes_used = np.sum([np.asarray(getattr(priced.layout, axis)) > 1 for axis in AXES], axis=0)
    key = np.where(priced.fits, priced.total_s, priced.memory_bytes)
    return np.lexsort((axes_used, key, ~priced.fits))


def _find_firsts(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the place of each different row where it stands first, ascending."""
    _, first = np.unique(rows, axis=0, return_index=True)
    return np.sort(first)


def _list_losers(
    priced: Priced,
    meshes: NDArray[np.int64],
    leaders: NDArray[np.int64],
    best: Sequence[int],
    told: set[tuple[str, ...]],
    ordered: Mapping[int, float],
) -> Iterator[Rejected]:
    """Yields the leader of each family that was not told of yet."""
    for place in map(int, leaders):
        family = _name_family(meshes[place])
        if family in told:
            continue
        told.add(family)
        shape = {axis: int(size) for axis, size in zip(AXES, meshes[place], strict=True) if size > 1} or {"dp": 1}
        reason, message = _explain(priced, place, best[0] if best else None, ordered)
        yield Rejected(mesh_shape=shape, reason=reason, message=message)


def _name_family(sizes: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(axis for axis, size in zip(AXES, sizes, strict=True) if size > 1)


def _explain(priced: Priced, place: int, winner: int | None, ordered: Mapping[int, float]) -> tuple[str, str]:
    """Returns the reason and a sentence: of what does not fit its memory, else the part that is longest beyond the
    winner's."""
    if not priced.fits[place]:
        needed, capacity = int(priced.memory_bytes[place]), int(priced.capacity_bytes)
        ratio = needed / capacity
        over = f"{ratio - 1:.0%} too much" if ratio < 2 else f"{ratio:.1f} times that"
        return "memory", (
            f"needs {needed / 2**30:.1f} GiB of a device's {capacity / 2**30:.1f} at least, {over}, with "
            f"each micro-batch and remat that was looked at"
        )
    total = ordered.get(place, float(priced.total_s[place]))
    if winner is None or place == winner:
        return "order", f"takes {total:.3g} s a step"
    best = ordered.get(winner, float(priced.total_s[winner]))
    more = {part: float(priced.parts[part][place] - priced.parts[part][winner]) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    wire = priced.name_wire(part, place)
    longer = f"{total / best - 1:.1%} more than the best" if total > best else "as long as the best by its sizes"
    if total <= best or more[part] <= 0:
        return "order", f"takes {total:.3g} s a step, {longer}"
    most = f"most of that is {_say(part, wire)}, {more[part]:.3g} s more"
    return REASONS.get(part, wire), f"takes {total:.3g} s a step, {longer}; {most}"


def _say(part: str, wire: str) -> str:
    match part:
        case "bubble":
            return "the pipeline's bubble"
        case "compute" | "remat" | "optimizer":
            return {"compute": "compute", "remat": "what is computed again", "optimizer": "the optimizer"}[part]
        case _:
            return f"communication of {part} over {wire}"

"""The order that JAX's own `mesh_utils.create_device_mesh` gives, so that plans can say what it costs.

Rule: the same devices in the same places as jax 0.12 puts them, with `allow_split_physical_axes=True`, held by tests
against the original; older releases have no order or another one for some. Of TPU7x, whose cores they treat otherwise,
the release that is installed counts. Knows JAX's rules and its release; imports none of it.

Source: jax/_src/mesh_utils.py of jax 0.12.0.1: whole dimensions where they fit, the last axis first; else every
dimension is cut, by the preferences of `_prefer`; small slices of some kinds have fixed orders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import combinations
from typing import Final

from meshwright.planning.torus import Cut, Cuts

Shape = tuple[int, ...]

_V2_TRAY: Final = (0, 1, 2, 3, 6, 7, 4, 5)
_SQUARE: Final = (0, 1, 3, 2)
_V5E_4X4: Final = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)
_V5E_2X4: Final = (0, 1, 2, 3, 7, 6, 5, 4)
_V5E_CUBE: Final = (0, 4, 2, 6, 1, 5, 3, 7)
_V5P_CUBE: Final = (0, 1, 3, 2, 6, 7, 5, 4)
_7X_MOST: Final = 32
_CORE_FIRST_SINCE: Final = (0, 12)
_7X_KINDS: Final = {"TPU7x", "TPU7"}
_V5P_KINDS: Final = {"TPU v5", "TPU v5p"}


@dataclass(frozen=True)
class Box:
    """What JAX looks at: the kind, and the box of chips in x, y, z with the devices of a chip.

    `corner`: the lowest coordinates; JAX knows the fixed orders of some kinds only where they are 0.
    """

    kind: str
    shape: Shape
    cores: int = 1
    corner: Shape = (0, 0, 0)

    @property
    def device_count(self) -> int:
        """Devices in the box."""
        return math.prod(self.shape) * self.cores

    @property
    def physical(self) -> Shape:
        """The array of devices that JAX cuts."""
        if self.kind in {"TPU v2", "TPU v3"}:
            return (*self.shape[:2], self.cores)
        has_cores = self.kind in _7X_KINDS or (self.kind in _V5P_KINDS and self.cores == 2)
        return (*self.shape, self.cores) if has_cores else self.shape

    @property
    def reach(self) -> Shape:
        """One more than the highest coordinates."""
        return tuple(size + low for size, low in zip(self.shape, self.corner, strict=True))


def find_fixed_order(sizes: Sequence[int], box: Box) -> tuple[int, ...] | None:
    """Returns the devices (ranks in the order of `jax.devices()`: z, y, x, core) of a slice that JAX has an order for.

    None: it cuts the slice instead.
    """
    rule = _FIXED.get(box.kind)
    return rule(tuple(sizes), box) if rule else None


def _order_v2(sizes: Shape, box: Box) -> tuple[int, ...] | None:
    count = box.device_count
    if count == len(_V2_TRAY):
        return _V2_TRAY
    if sizes[-1] == len(_V2_TRAY):
        return _repeat(_V2_TRAY, count)
    return tuple(range(count))


def _order_v5e(sizes: Shape, box: Box) -> tuple[int, ...] | None:
    count = box.device_count
    if box.reach == (2, 2, 1) and count == len(_SQUARE):
        return _SQUARE
    if count == len(_V5E_2X4):
        return _V5E_CUBE if box.reach == (2, 2, 2) else _V5E_2X4
    return _V5E_4X4 if box.reach == (4, 4, 1) and count == max(sizes) == len(_V5E_4X4) else None


def _order_v5p(sizes: Shape, box: Box) -> tuple[int, ...] | None:
    return _V5P_CUBE if box.reach == (2, 2, 2) and box.device_count == len(_V5P_CUBE) else None


def _order_7x(sizes: Shape, box: Box) -> tuple[int, ...] | None:
    count = box.device_count
    if count % len(_V2_TRAY) or count > _7X_MOST or max(box.shape[:2]) > 2:
        return None
    return _repeat(_V2_TRAY, count)


def _repeat(tray: Shape, count: int) -> tuple[int, ...]:
    return tuple(start + place for start in range(0, count, len(tray)) for place in tray)


_FIXED: Final[Mapping[str, Callable[[Shape, Box], tuple[int, ...] | None]]] = {
    "TPU v2": _order_v2,
    "TPU v3": _order_v2,
    "TPU v5 lite": _order_v5e,
    "TPU v5e": _order_v5e,
    "TPU v6 lite": _order_v5e,
    **dict.fromkeys(_V5P_KINDS, _order_v5p),
    **dict.fromkeys(_7X_KINDS, _order_7x),
}


@cache
def is_core_first() -> bool:
    """Returns whether the JAX that is installed here gives away a TPU7x's cores before other dimensions: since 0.12; so
    too where none is installed."""
    try:
        release = metadata.version("jax")
    except metadata.PackageNotFoundError:
        return True
    return tuple(map(int, re.findall(r"\d+", release)[:2])) >= _CORE_FIRST_SINCE


def find_cuts(sizes: Sequence[int], box: Box, *, core_first: bool | None = None) -> tuple[Cuts, ...] | None:
    """Returns for each mesh axis its cuts, run through row-major; None where JAX has no order.

    Dimensions are numbered x, y, z, core.

    Args:
        sizes: of the mesh, outermost first.
        box: what JAX looks at.
        core_first: a TPU7x's cores go before other dimensions, as since jax 0.12; before, they came last. None: as the
            JAX that is installed here has it.
    """
    is_first = is_core_first() if core_first is None else core_first
    physical = box.physical
    if math.prod(physical) != math.prod(sizes):
        return None
    parts = _take_whole(sizes, physical, core_first=is_first and box.kind in _7X_KINDS) or _take_parts(sizes, physical)
    if parts is None:
        return None
    return tuple(_build_cuts(axis, parts, physical) for axis in range(len(sizes)))


def _build_cuts(axis: int, parts: Sequence[Shape], physical: Shape) -> Cuts:
    """Returns an axis's cuts: the axes inside of it (later ones) have the shorter strides."""
    cuts = []
    for dimension in range(len(physical)):
        stride = math.prod(later[dimension] for later in parts[axis + 1 :])
        if parts[axis][dimension] > 1:
            cuts.append(Cut(dimension, parts[axis][dimension], stride))
    return tuple(cuts)


def _take_whole(sizes: Sequence[int], physical: Shape, *, core_first: bool) -> list[Shape] | None:
    """Returns [axis][dimension] → size with every dimension given to one axis; None where that does not work."""
    left, parts = list(physical), [(1,) * len(physical) for _ in sizes]
    for axis in reversed(range(len(sizes))):
        chosen = next(
            (c for c in _list_choices(left, core_first=core_first) if math.prod(left[d] for d in c) == sizes[axis]), ()
        )
        if not chosen and sizes[axis] > 1:
            return None
        parts[axis] = tuple(physical[d] if d in chosen else 1 for d in range(len(physical)))
        left = [0 if d in chosen else size for d, size in enumerate(left)]
    return parts


def _list_choices(left: Sequence[int], *, core_first: bool) -> Iterator[tuple[int, ...]]:
    for count in range(len(left), 0, -1):
        choices = list(combinations(range(len(left)), count))
        if core_first:
            ranks = {3: 0, 0: 1, 1: 2, 2: 3}
            choices.sort(key=lambda choice: (min(ranks[d] for d in choice), sum(ranks[d] for d in choice)))
        yield from choices


def _take_parts(sizes: Sequence[int], physical: Shape) -> list[Shape] | None:
    """Returns [axis][dimension] → size, the last axis first, each by JAX's preferences among all that are possible."""
    taken, parts = (1,) * len(physical), [(1,) * len(physical) for _ in sizes]
    for axis in reversed(range(len(sizes))):
        free = [size // used for size, used in zip(physical, taken, strict=True)]
        options = list(_list_parts(sizes[axis], free))
        if not options:
            return None
        parts[axis] = max(options, key=lambda option: _prefer(option, physical, taken))
        taken = tuple(used * size for used, size in zip(taken, parts[axis], strict=True))
    return parts


def _list_parts(size: int, free: Sequence[int]) -> Iterator[Shape]:
    if not free:
        if size == 1:
            yield ()
        return
    for factor in range(1, math.gcd(size, free[0]) + 1):
        if size % factor == 0 and free[0] % factor == 0:
            for rest in _list_parts(size // factor, free[1:]):
                yield (factor, *rest)


def _prefer(option: Shape, physical: Shape, taken: Shape) -> tuple[int, int, int, Shape]:
    """Returns what JAX compares: more in whole dimensions, more of these, more in those that are begun, the first."""
    whole = [size for size, there in zip(option, physical, strict=True) if size == there]
    begun = [size for size, used in zip(option, taken, strict=True) if used > 1]
    return math.prod(whole), sum(size > 1 for size in whole), math.prod(begun), option

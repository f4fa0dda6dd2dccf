"""The number of parallel rings ("colors") of an all-reduce by XLA's TPU compiler, by the shape of its groups.

Rule: only which devices form a group matters, not their order, nor how far apart they are: groups that are whole
dimensions of the torus get more than one ring. Independent of links.

Source: the strategies of some 1,200 programs compiled with libtpu 0.0.42 (jax 0.10.2) for v4, v5e, v5p, v6e and tpu7x,
16 MiB a device; `make verify-order` compiles a sample again (docs/explanation/device-order.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from meshwright.topology.torus import Dimension

SMALL_GROUP: Final = 9
"""Up to this number of devices a single ring goes both ways. A larger ring that is not a whole plane goes one way."""

SHORT_SIDE: Final = 8
"""Up to this side a square has two colors per dimension, above it one."""

_CORE_COLOURS: Final = {2: 4, 3: 12}
"""Colors of chips with several devices, whose SparseCores run collectives: by the number of whole dimensions."""


def count_colors(whole: Sequence[int], dimensions: Sequence[Dimension], count: int) -> int:
    """Returns the number of colors of an all-reduce over a group.

    Planes along z and x have more colors than others. Worked example: on 4×4×8 chips a group of the 4×4 plane has 4,
    one of 16 chips in any other shape has 1.

    Args:
        whole: the dimensions of chips (longer than 1) that the group is made of, if it fills each from end to end and
            has no other parts; otherwise empty.
        dimensions: of the torus, z, y, x and then cores, those of length 1 left out or not.
        count: devices in the group.
    """
    if len(whole) < 2:
        return 2 if count <= SMALL_GROUP or has_cores(dimensions) else 1
    if has_cores(dimensions):
        return _CORE_COLOURS[len(whole)]
    lengths = sorted(dimensions[axis].size for axis in whole)
    if lengths[0] == lengths[-1]:
        return len(whole) * (2 if lengths[0] <= SHORT_SIDE else 1)
    if lengths[-1] == 2 * lengths[0] or len(whole) > 2:
        return len(whole)
    wide = [axis for axis, dimension in enumerate(dimensions) if dimension.size > 1 and not is_core(dimension)]
    is_outer_and_inner = len(wide) == 3 and tuple(whole) == (wide[0], wide[-1])
    return 2 if is_outer_and_inner and dimensions[wide[-1]].size <= SHORT_SIDE else 1


def has_cores(dimensions: Sequence[Dimension]) -> bool:
    """True where a chip is several devices: the last dimension is that of its cores."""
    return any(is_core(dimension) and dimension.size > 1 for dimension in dimensions)


def is_core(dimension: Dimension) -> bool:
    """True for the dimension of a chip's cores, which are less than a hop apart."""
    return dimension.step < 1


def find_whole(sizes: Sequence[int], dimensions: Sequence[Dimension], count: int) -> tuple[int, ...]:
    """Returns the dimensions of chips that a group is made of, if it consists of whole dimensions only; otherwise
    empty.

    Args:
        sizes: the number of places of the group along each dimension.
        dimensions: of the torus.
        count: devices in the group.
    """
    is_whole = math.prod(sizes) == count and all(size in {1, d.size} for size, d in zip(sizes, dimensions, strict=True))
    wide = (axis for axis, size in enumerate(sizes) if size > 1 and not is_core(dimensions[axis]))
    return tuple(wide) if is_whole else ()


def count_group_colors(places: Sequence[Sequence[int]], dimensions: Sequence[Dimension]) -> int:
    """Returns the number of colors of an all-reduce over the devices at these places, with one coordinate per
    dimension."""
    sizes = [len(set(values)) for values in zip(*places, strict=True)]
    return count_colors(find_whole(sizes, dimensions, len(places)), dimensions, len(places))

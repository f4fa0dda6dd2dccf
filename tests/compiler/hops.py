"""How far neighbors on a mesh axis are apart on the torus.

Rule: measured by walking over the whole mesh, so it holds whatever made the order. The cores of a chip are 0 hops
apart, and the way from the last back to the first is not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.torus import find_wraps


def measure_hops(coords: NDArray[Any], axis: int, kind: str) -> int:
    """Returns the longest step between neighbors along an axis, in hops.

    Args:
        coords: [*mesh, 3], the x, y, z of each place's chip; they fill a whole slice.
        axis: of the mesh.
        kind: of the devices, which tells the dimensions that close to rings.
    """
    shape = coords.reshape(-1, 3).max(axis=0) + 1
    steps = np.abs(np.diff(coords, axis=axis))
    ways = np.where(find_wraps(kind, shape.tolist()), np.minimum(steps, shape - steps), steps)
    return int(ways.sum(axis=-1).max(initial=0))

"""What an order costs, measured on coordinates with NumPy.

Rule: the wraps are those of the recorded slice, and every neighbor of every line is looked at; nothing is taken from
the planner's topology or from how an order was found. Of the score the prices are the planner's, the steps and the
groups are measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.device_order import AxisScore, Score, count_links
from meshwright.planning.granules import Weights
from meshwright.planning.torus import count_group_colors, price_axis
from meshwright.topology.torus import Dimension
from tests.fakes.slices import NamedSlice

Array = NDArray[Any]

HALF: Final = 0.5
"""Hops between two cores of a chip, where steps are compared; in whole hops they are none apart."""


@dataclass(frozen=True)
class Places:
    """Where devices stand.

    Attributes:
        coords: [device, (x, y, z)].
        cores: [device], on its chip.
        slices: [device].
        shape: of a slice, x, y, z.
        wrap: which of x, y, z close to rings.
    """

    coords: Array
    cores: Array
    slices: Array
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]

    @classmethod
    def of(cls, devices: Sequence[Any], named: NamedSlice) -> Places:
        """Returns the places of devices as JAX shows them."""
        return cls(
            np.array([device.coords for device in devices]),
            np.array([device.core_on_chip for device in devices]),
            np.array([device.slice_index for device in devices]),
            (*named.shape, 1, 1)[:3],
            named.wrap,
        )


def measure_steps(places: Places, order: Array, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Returns for each axis its longest step between neighbors in one slice: in hops, and with cores half a hop apart.

    The way from the last back to the first is not counted.

    Args:
        places: of the devices.
        order: devices in mesh order, row-major.
        sizes: of the mesh.
    """
    mesh = order.reshape(sizes)
    found = []
    for axis in range(len(sizes)):
        line = np.moveaxis(mesh, axis, 0)
        one, other = line[:-1], line[1:]
        is_near = places.slices[one] == places.slices[other]
        hops = np.where(is_near, count_hops(places, one, other), 0)
        steps = hops + HALF * (is_near & (places.cores[one] != places.cores[other]))
        found.append((int(hops.max(initial=0)), float(steps.max(initial=0))))
    return found


def count_hops(places: Places, one: Array, other: Array) -> Array:
    """Returns the hops between pairs of devices of a slice, the shorter way round a ring."""
    ways = np.abs(places.coords[one] - places.coords[other])
    return np.where(places.wrap, np.minimum(ways, places.shape - ways), ways).sum(axis=-1)


def measure_score(places: Places, order: Array, sizes: Sequence[int], weights: Weights, hop: float) -> Score:
    """Returns the score of an order of one slice.

    Args:
        places: of the devices.
        order: devices in mesh order, row-major.
        sizes: of the mesh.
        weights: of its axes.
        hop: what one hop costs.
    """
    dimensions = list_dimensions(places)
    axes = []
    for axis, (_, step) in enumerate(measure_steps(places, order, sizes)):
        if sizes[axis] == 1:
            axes.append(AxisScore())
            continue
        groups = list(list_groups(places, order.reshape(sizes), axis))
        links = min(count_links(group, dimensions) for group in groups)
        colors = min(count_group_colors(group, dimensions) for group in groups)
        axes.append(AxisScore(cost=hop * price_axis(step, links, colors), step=step, links=links, colors=colors))
    return Score.of(axes, weights)


def list_dimensions(places: Places) -> tuple[Dimension, ...]:
    """Returns z, y, x and the cores of a chip, of which the last are half a hop apart."""
    chips = [Dimension(size, ring) for size, ring in zip(places.shape, places.wrap, strict=True)]
    return (*reversed(chips), Dimension(int(places.cores.max()) + 1, step=HALF))


def list_groups(places: Places, mesh: Array, axis: int) -> Iterator[list[tuple[int, ...]]]:
    """Yields the groups of an axis as places (z, y, x, core), one for all that are the same but for a shift.

    Along a ring a shift goes round; what a group is worth does not depend on where it lies.
    """
    lines = np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])
    coords = places.coords[lines]
    coords = coords - coords[:, :1]
    coords = np.where(places.wrap, coords % np.array(places.shape), coords)
    patterns = np.concatenate([coords[..., ::-1], places.cores[lines][..., None]], axis=-1)
    for pattern in {pattern.tobytes(): pattern for pattern in patterns}.values():
        yield [tuple(place) for place in pattern.tolist()]

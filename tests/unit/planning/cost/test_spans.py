"""What axes run over on hosts of GPUs: which part stays inside, and what a collective takes there."""

from __future__ import annotations

import pytest

from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import AXES, lay_on_hosts

INSIDE, ACROSS = 3e11, 25e9


def lay(**axes: int) -> dict[str, tuple[float, float]]:
    spans = lay_on_hosts(Layout(**axes), "a100", 8, INSIDE, ACROSS)
    return {axis: (float(spans[axis].inner.size), float(spans[axis].outer.size)) for axis in AXES}


@pytest.mark.parametrize(
    ("axes", "axis", "sizes"),
    [
        ({"tp": 8, "dp": 4}, "tp", (8, 1)),
        ({"tp": 8, "dp": 4}, "dp", (1, 4)),
        ({"tp": 2, "dp": 16}, "dp", (4, 4)),
        ({"tp": 16}, "tp", (8, 2)),
        ({"tp": 4, "dp": 2, "pp": 4}, "pp", (1, 4)),
        ({"tp": 2, "ep": 8, "dp": 2}, "ep", (4, 2)),
        ({"tp": 3, "dp": 4}, "dp", (2, 2)),
    ],
    ids=["tensor inside", "data across", "half a node each", "two nodes", "stages", "experts", "odd sizes"],
)
def test_axes_fill_hosts_from_the_inside_out(axes: dict[str, int], axis: str, sizes: tuple[float, float]) -> None:
    assert lay(**axes)[axis] == sizes

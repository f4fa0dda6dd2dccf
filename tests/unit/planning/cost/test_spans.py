"""What axes run over on hosts of GPUs: which part stays inside, and what a collective takes there."""

from __future__ import annotations

import numpy as np
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


def test_candidates_are_laid_at_once() -> None:
    layout = Layout(tp=np.array([1, 2, 8]), dp=np.array([64, 32, 8]))
    spans = lay_on_hosts(layout, "a100", 8, INSIDE, ACROSS)

    assert np.array_equal(spans["dp"].inner.size, [8, 4, 1])
    assert np.array_equal(spans["dp"].outer.size, [8, 8, 8])
    assert np.array_equal(spans["dp"].is_partial, [False, True, False])


def test_a_group_inside_is_no_part_of_a_node() -> None:
    assert not lay_on_hosts(Layout(tp=4), "a100", 8, INSIDE, ACROSS)["tp"].is_partial


def test_a_collective_inside_is_faster_than_across() -> None:
    inside = lay_on_hosts(Layout(tp=8), "a100", 8, INSIDE, ACROSS)["tp"]
    across = lay_on_hosts(Layout(tp=8), "a100", 1, INSIDE, ACROSS)["tp"]

    assert 0 < inside.time("all_reduce", 1e9) < across.time("all_reduce", 1e9)


def test_stages_send_at_the_rate_of_what_lies_between() -> None:
    span = lay_on_hosts(Layout(tp=8, pp=2), "a100", 8, INSIDE, ACROSS)["pp"]

    assert span.send(1e9) == pytest.approx(1e9 / (0.96 * ACROSS), rel=0.01)

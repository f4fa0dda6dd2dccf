from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.plan_output import draw_mesh


def test_the_last_axis_runs_across_and_the_one_before_it_down() -> None:
    assert draw_mesh({"dp": 2, "tp": 4}, [str(label) for label in range(8)], width=100) == (
        "      tp=0  tp=1  tp=2  tp=3", "dp=0     0     1     2     3", "dp=1     4     5     6     7",
    )  # fmt: skip


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: {f"a{index}": size for index, size in enumerate(sizes)}
)


@given(SHAPES, st.integers(1, 60))
def test_every_device_stands_in_the_drawing_once_and_in_order(shape: dict[str, int], width: int) -> None:
    labels = [f"<{index}>" for index in range(math.prod(shape.values()))]
    words = " ".join(draw_mesh(shape, labels, width=width)).split()
    assert sorted(word for word in words if word in labels) == sorted(labels)
    if width == 60:
        assert [word for word in words if word in labels] == labels


@given(SHAPES)
def test_no_line_is_wider_than_was_asked(shape: dict[str, int]) -> None:
    labels = ["0"] * math.prod(shape.values())
    assert max(map(len, draw_mesh(shape, labels, width=40))) <= 40

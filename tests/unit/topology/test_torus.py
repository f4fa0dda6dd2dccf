"""Grids of chips, their rings, and devices that fill no box."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.topology.model import Topology
from meshwright.topology.torus import Dimension, find_wraps, read_grid
from meshwright.wire.devices import Granule
from tests.fakes.topologies import build_cpu, build_tpu

WRAPS = [
    ("TPU v2", (16, 16, 1), (True, True, False)), ("TPU v2", (4, 4, 1), (False, False, False)),
    ("TPU v3", (16, 32, 1), (False, True, False)), ("TPU v4", (4, 4, 4), (True, True, True)),
    ("TPU v4", (2, 2, 4), (False, False, False)), ("TPU v5 lite", (8, 16, 1), (False, True, False)),
    ("TPU v5", (4, 4, 28), (True, True, True)), ("TPU v5", (2, 4, 4), (False, False, False)),
    ("TPU v6 lite", (16, 16, 1), (True, True, False)), ("TPU7x", (4, 4, 8), (True, True, True)),
    ("TPU of tomorrow", (16, 16, 16), (False, False, False)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape", "wraps"), WRAPS)
def test_a_generation_closes_its_own_dimensions(kind: str, shape: tuple[int, ...], wraps: tuple[bool, ...]) -> None:
    assert find_wraps(kind, shape) == wraps


def test_dimensions_of_length_one_are_left_out_and_a_part_of_a_slice_is_a_box_too() -> None:
    topology = build_tpu((4, 4, 1), with_links=False)
    whole: Any = read_grid(topology, range(16))
    assert whole.dimensions == (Dimension(4), Dimension(4))
    part: Any = read_grid(topology, [5, 6, 9, 10])
    assert part.dimensions == (Dimension(2), Dimension(2))
    assert part.members == (5, 6, 9, 10)


def test_a_granule_says_what_is_a_ring_and_without_a_word_the_generation_does() -> None:
    shape = (4, 4, 4)
    ways: tuple[dict[str, bool], ...] = ({"wrap": True}, {"wrap": False}, {"with_links": False})
    grids: list[Any] = [read_grid(build_tpu(shape, kind="TPU v5", **way), range(64)) for way in ways]
    listed, open_ended, by_rule = grids
    assert [d.is_ring for d in listed.dimensions] == [True] * 3
    assert [d.is_ring for d in open_ended.dimensions] == [False] * 3
    assert by_rule.dimensions == listed.dimensions


def test_what_fills_no_box_has_no_grid() -> None:
    topology = build_tpu((4, 4, 1), with_links=False)
    assert read_grid(topology, [0, 1, 4]) is None
    assert read_grid(topology, [0, 2, 8, 10]) is None, "a box with gaps between its chips"
    assert read_grid(topology, []) is None
    assert read_grid(topology, [0, 0]) is None
    assert read_grid(build_cpu(4), range(4)) is None
    two = [device.model_copy(update={"granule": rank // 8}) for rank, device in enumerate(topology.devices)]
    granules = tuple(Granule(ordinal=o, kind="slice", name="", device_count=8) for o in range(2))
    assert read_grid(Topology(tuple(two), granules=granules), range(16)) is None
    unknown = topology.devices[0].model_copy(update={"coords": None})
    assert read_grid(Topology((unknown, *topology.devices[1:]), granules=topology.granules), range(16)) is None

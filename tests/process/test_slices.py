"""`create_mesh` on TPU slices without the hardware: neighbor hops on the torus, beside JAX's own order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.process.slice_environment import needs_tpu_compiler, run_on_slices

PROGRAM = Path(__file__).with_name("slice_job.py")
LIMIT_S = 200.0

Place = list[int]
CUBES = {"TPU v4", "TPU v5", "TPU7x"}
"""Slices of these are rings in all dimensions from 4 chips on; of the others, a dimension of 16 is one.

Source: docs.cloud.google.com/tpu/docs/v4 and …/v5e."""

pytestmark = needs_tpu_compiler


@dataclass(frozen=True)
class Case:
    """A slice, the mesh on it, and the longest step between neighbors on each axis inside a slice."""

    target: str
    sizes: tuple[int, ...]
    hops: tuple[float, ...]
    slices: int = 1
    jax_dcn: tuple[int, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        own = {"target": self.target, "sizes": self.sizes, "slices": self.slices, "jax_dcn": self.jax_dcn}
        return own | dict(self.more)


CASES = [
    Case("v5e:8x8", (8, 8), (1, 1)),
    Case("v5e:8x8", (8, 8), (1, 1), more=(("turned", True),)),
    Case("v5e:8x8", (4, 16), (2, 1)),
    Case("v5e:8x8", (2, 4, 8), (1, 2, 1)),
    Case("v5e:16x16", (32, 8), (1, 2)),
    Case("v5e:16x16", (64, 4), (2, 1)),
    Case("v5e:4x4", (8, 4), (1, 1), slices=2, jax_dcn=(2, 1)),
    Case("v5e:4x4", (4, 8), (1, 1), slices=2, jax_dcn=(1, 2), more=(("dcn", (1, -1)),)),
    Case("v5e:4x4", (2, 16), (0, 1), slices=2, jax_dcn=(2, 1)),
    Case("v5p:4x4x4", (8, 16), (1, 1), slices=2, jax_dcn=(2, 1)),
    Case("v5p:4x4x4", (2, 4, 16), (0, 1, 1), slices=2, jax_dcn=(2, 1, 1)),
    Case("v5p:4x4x4", (4, 4, 4), (1, 1, 1)),
    Case("v5p:4x4x28", (56, 8), (1, 1)),
    Case("v4:4x4x4", (16, 8), (1, 1)),
    Case("v6e:2x4", (2, 4), (1, 1)),
    Case("tpu7x:2x2x1", (4, 2), (1, 0.5)),
]


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    return run_on_slices(PROGRAM, [case.to_json() for case in CASES], LIMIT_S)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c.slices}*{c.target} {c.sizes}" for c in CASES])
def test_neighbors_on_the_mesh_are_neighbors_on_the_torus(answers: list[dict[str, Any]], number: int) -> None:
    case, answer = CASES[number], answers[number]
    ours = [tuple(place) for place in answer["ours"]]
    assert len(set(ours)) == len(ours) == math.prod(case.sizes)
    assert measure_hops(answer["kind"], case.sizes, answer["ours"]) == case.hops
    assert answer["again"], "equal arguments give the same mesh"
    if answer["jax"] is not None:
        assert max(case.hops) <= max(measure_hops(answer["kind"], case.sizes, answer["jax"]))


def test_jax_makes_a_mesh_in_most_cases_to_compare_with(answers: list[dict[str, Any]]) -> None:
    assert sum(answer["jax"] is not None for answer in answers) > len(CASES) / 2


def test_a_slice_of_sixteen_hosts_is_one_torus(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["processes"] == 16
    assert answers[0]["ours"] == answers[1]["ours"], "the order in which the devices are given does not matter"


def test_where_jax_finds_no_order_we_have_one(answers: list[dict[str, Any]]) -> None:
    refused = {case.target: answer["why"] for case, answer in zip(CASES, answers, strict=True) if answer["why"]}
    assert "v4:4x4x4" in refused, "with two devices a chip"


def test_slices_are_the_outer_part_of_the_axis_that_is_split(answers: list[dict[str, Any]]) -> None:
    for case, answer in zip(CASES, answers, strict=True):
        if case.slices == 1:
            continue
        axis = case.jax_dcn.index(2)
        stride = math.prod(case.sizes[axis + 1 :])
        half = case.sizes[axis] // 2
        for rank, (slice_index, *_) in enumerate(answer["ours"]):
            assert slice_index == rank // stride % case.sizes[axis] // half


def measure_hops(kind: str, sizes: tuple[int, ...], places: list[Place]) -> tuple[float, ...]:
    """The longest step along each axis inside a slice, found by walking over the whole mesh."""
    shape = [max(place[1 + axis] for place in places) + 1 for axis in range(3)]
    is_cube = kind in CUBES and min(shape) >= 4
    rings = [size if is_cube or (kind not in CUBES and size == 16) else 0 for size in shape]
    found = []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        starts = [start for start in range(len(places)) if start // stride % size == 0]
        pairs = [pair for start in starts for pair in pairwise(places[start + k * stride] for k in range(size))]
        found.append(max((measure(a, b, rings) for a, b in pairs if a[0] == b[0]), default=0))
    return tuple(found)


def measure(a: Place, b: Place, rings: list[int]) -> float:
    """Hops between chips, the shorter way round where a dimension is a ring; half a hop between cores of a chip."""
    steps = [abs(x - y) for x, y in zip(a[1:4], b[1:4], strict=True)]
    return sum(min(step, ring - step) if ring else step for step, ring in zip(steps, rings, strict=True)) + (
        0.5 * abs(a[4] - b[4])
    )

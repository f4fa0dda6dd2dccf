"""`make order-table` on a small fixed sample, its parts on what is made up, and orders that it must not let through."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planning.device_order import DeviceOrder, score_order, search_layout
from meshwright.planning.granules import weigh_positions
from meshwright.topology.links import price_hop
from tests.compiler.sweep.__main__ import report
from tests.compiler.sweep.cases import (
    Case,
    count_factorings,
    find_generation,
    list_cases,
    list_factorings,
    list_several,
)
from tests.compiler.sweep.measure import Places, measure_score, measure_steps
from tests.compiler.sweep.orders import (
    Cost,
    Ground,
    Planner,
    Row,
    Rule,
    compare_case,
    compare_cases,
)
from tests.compiler.sweep.table import list_complaints
from tests.fakes.slices import read_named_slices

pytestmark = pytest.mark.exhaustive

NAMED = {named.name: named for named in read_named_slices()}

SAMPLE: dict[str, list[tuple[int, ...]]] = {
    "v4-16": [(8,), (2, 4), (4, 2), (2, 2, 2)],
    "v4-128": [(64,), (16, 4), (4, 16), (2, 32), (8, 4, 2), (2, 4, 8)],
    "v5e-8": [(8,), (2, 4), (2, 2, 2)],
    "v5e-16": [(16,), (2, 8)],
    "v5e-128": [(8, 16), (32, 4), (2, 64), (4, 2, 16)],
    "v6e-64": [(8, 8), (4, 16), (2, 4, 8)],
    "v6e-256": [(16, 16), (32, 8), (4, 64), (2, 8, 16)],
    "v5p-8": [(4,), (2, 2)],
    "v5p-16": [(8,), (2, 4), (2, 2, 2)],
    "v5p-896": [(56, 8), (8, 56), (28, 16), (7, 64), (2, 224), (4, 14, 8), (2, 7, 32)],
    "v5p-1408": [(44, 16), (11, 64), (22, 4, 8)],
    "v5p-2944": [(23, 64), (92, 16), (2, 46, 16)],
    "tpu7x-8": [(8,), (4, 2), (2, 2, 2)],
    "tpu7x-64": [(8, 8), (4, 2, 8), (2, 4, 8)],
    "tpu7x-256": [(16, 16), (8, 32), (2, 128), (4, 2, 32)],
    "tpu7x-896": [(56, 16), (7, 128), (4, 28, 8)],
}
"""Every generation; small slices of which JAX has fixed orders; lengths with the factors 7, 11 and 23."""

CASES = [Case(NAMED[name], sizes) for name, meshes in SAMPLE.items() for sizes in meshes]
ODD = Case(NAMED["v5p-896"], (56, 8))
CUBE = Case(NAMED["v5p-128"], (4, 16))
GOOD, BAD = Cost(1.0, 1), Cost(2.0, 2)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare_cases(CASES)


# ---- a sample -------------------------------------------------------------------------------------------------------


def test_on_a_sample_of_every_generation_our_order_is_never_worse(rows: list[Row]) -> None:
    assert list_complaints(rows) == []
    assert not [row for row in rows if row.is_worse]
    assert {find_generation(row.case.slice) for row in rows} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}


def test_where_a_long_dimension_must_be_split_our_steps_are_short(rows: list[Row]) -> None:
    row = next(row for row in rows if row.case == ODD)
    assert row.ours
    assert row.ours.hops <= 2
    assert row.jax is None or row.jax.hops > row.ours.hops


def test_on_several_slices_ours_is_never_worse_for_the_same_split() -> None:
    cases = [case for case in list_several() if case.slice.device_count * case.slice_count <= 256][:12]
    found = compare_cases(cases)
    assert not [row for row in found if row.faults or row.is_worse]
    assert sum(row.jax is not None for row in found) > len(found) // 2


# ---- what must be caught --------------------------------------------------------------------------------------------


def change(edit: Callable[[DeviceOrder], DeviceOrder]) -> Planner:
    """Returns our planner with something done to what it found."""

    def plan(*arguments: Any, **more: Any) -> DeviceOrder:
        return edit(search_layout(*arguments, **more))

    return plan


def shuffle(layout: DeviceOrder) -> DeviceOrder:
    return replace(layout, order=tuple(random.Random(0).sample(layout.order, len(layout.order))))


def swap_two(layout: DeviceOrder) -> DeviceOrder:
    first, *middle, last = layout.order
    return replace(layout, order=(last, *middle, first))


def double_one(layout: DeviceOrder) -> DeviceOrder:
    return replace(layout, order=(layout.order[1], *layout.order[1:]))


def drop_one(layout: DeviceOrder) -> DeviceOrder:
    return replace(layout, order=layout.order[1:])


def praise(layout: DeviceOrder) -> DeviceOrder:
    assert layout.score
    return replace(layout, score=replace(layout.score, cost=layout.score.cost / 2))


def fail(layout: DeviceOrder) -> DeviceOrder:
    raise RuntimeError("none found")


@pytest.mark.parametrize(
    ("edit", "rules"),
    [
        (shuffle, {"told"}),
        (swap_two, {"told"}),
        (double_one, {"once"}),
        (drop_one, {"once"}),
        (praise, {"told"}),
        (fail, {"raises"}),
    ],
)
def test_a_broken_order_is_caught(
    edit: Callable[[DeviceOrder], DeviceOrder], rules: set[Rule], capsys: pytest.CaptureFixture[str]
) -> None:
    row = compare_case(CUBE, Ground.of(CUBE.target, CUBE.slice), change(edit))
    assert {fault.rule for fault in row.faults} == rules
    assert report([row], "table") == 1
    assert f"broken: v5p-128 mesh 4×16: {min(fault.rule for fault in row.faults)}" in capsys.readouterr().err


def test_too_many_orders_that_are_worse_are_caught() -> None:
    def plan(*arguments: Any, **more: Any) -> DeviceOrder:
        return shuffle(search_layout(*arguments, **more))

    row = replace(compare_case(CUBE, Ground.of(CUBE.target, CUBE.slice), plan), faults=())
    assert row.is_worse
    assert list_complaints([row]) == ["worse than JAX's on 1 of 1 meshes; at most 0.5% may be"]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_no_worse"),
    [
        (GOOD, BAD, True),
        (GOOD, GOOD, True),
        (BAD, GOOD, False),
        (Cost(1.0, 2), GOOD, False),
        (Cost(2.0, 1), GOOD, False),
    ],
)
def test_an_order_is_worse_by_either_figure(ours: Cost, theirs: Cost, is_no_worse: bool) -> None:
    assert ours.is_no_worse(theirs) == is_no_worse


# ---- measuring ------------------------------------------------------------------------------------------------------


def test_steps_are_counted_round_a_ring_and_cores_are_half_a_hop_apart() -> None:
    row = np.array([[x, 0, 0] for x in range(16)])
    ring = Places(row, np.zeros(16, int), np.zeros(16, int), (16, 1, 1), (True, False, False))
    line = replace(ring, wrap=(False, False, False))
    turned = np.array([15, *range(15)])
    assert measure_steps(ring, np.arange(16), (16,)) == measure_steps(ring, turned, (16,)) == [(1, 1.0)]
    assert measure_steps(line, turned, (16,)) == [(15, 15.0)]
    assert measure_steps(ring, np.arange(16), (4, 4)) == [(4, 4.0), (1, 1.0)]
    pairs = replace(ring, coords=row // 2, cores=np.arange(16) % 2)
    assert measure_steps(pairs, np.arange(16), (8, 2)) == [(1, 1.0), (0, 0.5)]
    assert measure_steps(pairs, np.arange(16), (16,)) == [(1, 1.5)]


def test_a_step_to_another_slice_is_no_hop() -> None:
    coords = np.array([[x, 0, 0] for x in (0, 3, 0, 1)])
    places = Places(coords, np.zeros(4, int), np.array([0, 0, 1, 1]), (4, 1, 1), (False,) * 3)
    assert measure_steps(places, np.arange(4), (2, 2)) == [(0, 0.0), (3, 3.0)]
    assert measure_steps(places, np.array([0, 2, 1, 3]), (2, 2)) == [(3, 3.0), (0, 0.0)]


@pytest.mark.parametrize("name", ["v4-128", "v5e-128", "v6e-64", "v5p-384", "tpu7x-64", "tpu7x-128"])
def test_the_score_of_any_order_is_the_planner_s_score_of_every_device(name: str) -> None:
    ground = Ground.of(name, NAMED[name])
    draw = random.Random(name)
    count = len(ground.devices)
    for sizes in draw.sample(list_factorings(count), 4):
        found = search_layout(sizes, weigh_positions(sizes), ground.topology, ground.topology.order).order
        for order in (found, tuple(range(count)), found[3:] + found[:3], tuple(draw.sample(range(count), count))):
            weights = weigh_positions(sizes)
            expected = score_order(order, sizes, weights, ground.topology)
            hop = price_hop(ground.topology, 0)
            assert measure_score(ground.places, np.array(order), sizes, weights, hop) == expected
            assert max(hops for hops, _ in measure_steps(ground.places, np.array(order), sizes)) == expected.hops


# ---- the cases ------------------------------------------------------------------------------------------------------


def test_every_named_slice_has_cases_and_a_sample_depends_on_the_seed_alone() -> None:
    every, some = list_cases(per_slice=0), list_cases(per_slice=5)
    assert len(every) == len(some) == 223
    assert sum(map(len, every)) == count_factorings()
    assert all(math.prod(case.sizes) == case.slice.device_count for cases in some for case in cases)
    assert [len(cases) for cases in some] == [min(5, len(cases)) for cases in every]
    assert list_cases(per_slice=5) == some
    assert list_cases(per_slice=5, seed=1) != some
    assert list_cases([NAMED["v5p-896"]], per_slice=5) == [cases for cases in some if cases[0].target == "v5p-896"]

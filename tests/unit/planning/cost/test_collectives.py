"""How long collectives take: against links counted one by one, bounds that nothing goes below, and each other."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.collectives import (
    AxisLinks,
    gpu_wire,
    network_wire,
    time_across,
    time_collective,
    torus_wire,
)

Sizes = tuple[int, ...]

LINK = 9e10
SIZES = st.sampled_from([1, 2, 3, 4, 5, 8, 16])
BYTES = st.floats(1, 1e12)


@st.composite
def wires(draw: st.DrawFn) -> AxisLinks:
    """A torus, switches, or a network, with any latencies."""
    size, kind = draw(SIZES), draw(st.sampled_from([gpu_wire, network_wire, None]))
    dims = draw(st.lists(SIZES, min_size=1, max_size=3))
    made = kind(LINK, size) if kind else torus_wire(LINK, dims, [draw(st.booleans()) for _ in dims])
    start_s, ramp_s, ratio = draw(st.tuples(st.floats(0, 1e-4), st.floats(0, 1e-8), st.floats(0.1, 1)))
    return replace(made, start_s=start_s, ramp_s_per_root_byte=ramp_s, reached_ratio=ratio)


def count_heaviest(dims: tuple[int, ...], wraps: tuple[bool, ...]) -> float:
    """Parts on the busiest link in one direction, where each device sends one part to each other, x first, then y."""
    loads: dict[tuple[Any, ...], float] = defaultdict(float)
    for source in product(*map(range, dims)):
        for target in product(*map(range, dims)):
            for way, share in list_ways(source, target, dims, wraps):
                for step in way:
                    loads[step] += share
    return max(loads.values())


def list_ways(source: Sizes, target: Sizes, dims: Sizes, wraps: tuple[bool, ...]) -> list[tuple[list[Any], float]]:
    """The shortest ways, dimension after dimension; half goes each way where both ways round are as long."""
    ways: list[tuple[list[Any], float]] = [([], 1.0)]
    at = list(source)
    for axis, (length, wrap) in enumerate(zip(dims, wraps, strict=True)):
        ahead = (target[axis] - source[axis]) % length
        runs = [(1, ahead), (-1, length - ahead)] if ahead else [(1, 0)]
        if not wrap:
            runs = [(1, ahead)] if target[axis] >= source[axis] else [(-1, source[axis] - target[axis])]
        shortest = min(count for _, count in runs)
        chosen = [(sign, count) for sign, count in runs if count == shortest]
        longer = []
        for sign, count in chosen:
            here = [(*at[:axis], (at[axis] + sign * k) % length, *at[axis + 1 :]) for k in range(count)]
            longer += [([*way, *((place, axis, sign) for place in here)], share / len(chosen)) for way, share in ways]
        ways = longer
        at[axis] = target[axis]
    return ways


TORI = [
    ((2,), (False,)), ((4,), (False,)), ((5,), (False,)), ((4,), (True,)), ((5,), (True,)), ((8,), (True,)),
    ((4, 4), (True, True)), ((4, 8), (True, True)), ((3, 4), (False, False)), ((4, 4), (False, True)),
]  # fmt: skip


@pytest.mark.parametrize(("dims", "wraps"), TORI)
def test_an_all_to_all_takes_as_long_as_its_busiest_link(dims: tuple[int, ...], wraps: tuple[bool, ...]) -> None:
    size = math.prod(dims)
    part = 1e9 / size**2
    counted = count_heaviest(dims, wraps) * part / LINK
    assert time_collective("all_to_all", 1e9, torus_wire(LINK, dims, wraps)) == pytest.approx(counted)


def test_a_gather_over_hosts_goes_round_a_ring_and_a_reduction_up_and_down_a_tree() -> None:
    links = network_wire(1e12, 64)
    assert time_collective("all_gather", 1.0, links) == pytest.approx(63 * 4e-6, rel=1e-3)
    assert time_collective("all_reduce", 1.0, links) == pytest.approx(12 * 8.5e-6, rel=1e-3)


@given(wires(), wires(), BYTES, st.booleans())
def test_a_stage_of_one_adds_nothing(inner: AxisLinks, outer: AxisLinks, byte_count: float, pipelined: bool) -> None:
    alone_in, alone_out = replace(inner, size=1), replace(outer, size=1)
    for operation in ("all_gather", "all_reduce", "all_to_all"):
        across, timing = partial(time_across, operation), partial(time_collective, operation)
        assert across(byte_count, inner, alone_out, pipelined=pipelined) == timing(byte_count, inner)
        assert across(byte_count, alone_in, outer, pipelined=pipelined) == timing(byte_count, outer)
        assert across(byte_count, inner, outer, pipelined=True) <= across(byte_count, inner, outer, pipelined=False)

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanInfeasibleError
from meshwright.topology.chips import Chip, find_chip, read_chips
from meshwright.topology.systems import build_slice, check_twist, find_slice, is_legal, list_names, read_slices
from tests.fakes.slices import NamedSlice, read_named_slices

TPUS = [chip for chip in read_chips() if chip.platform == "tpu"]


def tpu(name: str) -> Any:
    return find_chip(name)


@pytest.mark.parametrize("named", read_named_slices(), ids=lambda named: named.name)
def test_every_named_slice_is_what_libtpu_is_asked_for(named: NamedSlice) -> None:
    found: Any = find_slice(named.name)
    assert (found.name, found.shape, found.host_shape) == (named.name, named.shape, named.host)
    assert (found.device_count, found.wrap) == (named.device_count, named.wrap)


def test_no_two_slices_share_a_name_or_a_shape_and_every_one_is_legal_and_whole_hosts() -> None:
    assert len(set(list_names())) == sum(1 + len(each.aliases) for each in read_slices())
    assert len({(each.chip.name, each.shape) for each in read_slices()}) == len(read_slices())
    for each in read_slices():
        assert is_legal(each.chip, each.shape)
        assert each.host_count * math.prod(each.host_shape) == math.prod(each.shape)
        assert all(size % part == 0 for size, part in zip(each.extent, each.host_shape, strict=True))


@pytest.mark.parametrize(("chip", "shape", "host_count"), [
    ("v4", (4, 4, 16), 64), ("v5p", (4, 8, 16), 128), ("tpu7x", (4, 4, 576), 2304), ("v2", (2, 4), 2),
    ("v3", (2, 4), 2),
])  # fmt: skip
def test_a_shape_that_only_the_rule_names_is_legal(chip: str, shape: tuple[int, ...], host_count: int) -> None:
    found = build_slice(tpu(chip), shape, asked="x")
    assert (found.name, found.shape, found.host_count) == ("", shape, host_count)


@pytest.mark.parametrize(("chip", "shape", "suggested"), [
    ("v5p", (4, 4, 6), "v5p:4x4x8, v5p:4x4x4"), ("v5p", (8, 4, 4), "v5p:4x4x8"), ("v5p", (3, 4, 4), "v5p:4x4x4"),
    ("v5p", (4, 4), "v5p:2x2x4"), ("v5p", (16, 20, 32), "v5p:16x20x28"), ("v5p", (1, 1, 1), "v5p:2x2x1"),
    ("v4", (16, 16, 20), "v4:"), ("tpu7x", (24, 24, 24), "tpu7x:16x24x24"), ("v5e", (4, 2), "v5e:2x4"),
    ("v5e", (32, 32), "v5e:16x16"), ("v5e", (4, 4, 4), "v5e:8x8"), ("v6e", (3,), "v6e:2x2"),
    ("v2", (16, 32), "v2:16x16"), ("v3", (2, 8), "v3:4x4"), ("v3", (1, 1), "v3:2x2"),
])  # fmt: skip
def test_an_illegal_slice_is_refused_with_rule_and_nearest(chip: str, shape: tuple[int, ...], suggested: str) -> None:
    with pytest.raises(PlanInfeasibleError) as caught:
        build_slice(tpu(chip), shape, asked="what was asked")
    assert caught.value.detail.startswith("target what was asked: ")
    assert "its slices are " in caught.value.detail
    assert suggested in caught.value.hint
    assert [entry["field"] for entry in caught.value.errors] == ["target"]


@given(st.sampled_from(TPUS), st.data())
def test_a_legal_slice_is_whole_hosts_and_its_rings_are_as_long_as_it_is(chip: Chip, data: st.DataObject) -> None:
    named = [each.shape for each in read_slices() if each.chip == chip]
    cubes = [shape for shape in product(range(4, 33, 4), repeat=3) if is_legal(chip, shape)]
    found = build_slice(chip, data.draw(st.sampled_from(named + cubes)), asked="x")
    assert all(size % part == 0 for size, part in zip(found.extent, found.host_shape, strict=True))
    assert all(size >= 4 for size, ring in zip(found.extent, found.wrap, strict=True) if ring)


@pytest.mark.parametrize(("chip", "shape", "can_twist"), [
    ("v4", (4, 4, 8), True), ("v4", (4, 8, 8), True), ("v5p", (12, 12, 24), True), ("tpu7x", (8, 16, 16), True),
    ("v4", (4, 4, 4), False), ("v4", (4, 4, 12), False), ("v5p", (4, 8, 16), False), ("v5p", (2, 2, 4), False),
    ("v5e", (4, 8), False),
])  # fmt: skip
def test_only_tori_with_sides_of_k_and_2k_can_be_twisted(chip: str, shape: tuple[int, ...], can_twist: bool) -> None:
    found = build_slice(tpu(chip), shape, asked="x")
    assert found.can_twist is can_twist
    if can_twist:
        check_twist(found, asked="x")
    else:
        with pytest.raises(PlanInfeasibleError, match="k×k×2k"):
            check_twist(found, asked="x")

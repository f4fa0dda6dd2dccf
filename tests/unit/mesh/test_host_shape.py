"""The part of a mesh on one host."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.mesh import calculate_host_mesh_shape

HOSTS = [
    ((2, 4), 4, 2, (1, 4)), ((3, 4), 6, 2, (3, 2)), ((4, 2), 2, 4, (1, 2)), ((2, 2, 2), 2, 4, (1, 1, 2)),
    ((6, 10), 4, 15, (2, 2)), ((-1, 4), 4, 2, (1, 4)), ((8,), 8, 1, (8,)), ((1, 16, 1), 4, 4, (1, 4, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("mesh", "devices", "processes", "part"), HOSTS)
def test_a_host_has_its_part_of_the_mesh(mesh: tuple[int, ...], devices: int, processes: int, part: Any) -> None:
    assert calculate_host_mesh_shape(mesh, devices, processes) == part


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.data())
def test_host_parts_multiply_back_and_a_split_is_found_where_one_is(sizes: list[int], data: st.DataObject) -> None:
    total = math.prod(sizes)
    hosts = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    part = calculate_host_mesh_shape(sizes, total // hosts, hosts)
    assert math.prod(part) == total // hosts
    splits = [size // own for size, own in zip(sizes, part, strict=True)]
    assert [own * split for own, split in zip(part, splits, strict=True)] == sizes
    assert math.prod(splits) == hosts


def test_without_numbers_the_job_is_asked() -> None:
    assert calculate_host_mesh_shape((2, 4)) == (2, 4)


@pytest.mark.parametrize(("arguments", "error", "words"), [
    (((4, 4), 4, 2), ValueError, r"\(4, 4\) does not fit; 2 processes with 4 devices each have 8.*use"),
    (((3, -1), 4, 2), ValueError, r"\(3, -1\) does not fit; 2 processes with 4 devices each have 8.*use \(-1, 1\)"),
    (((2, 4), 0, 2), ValueError, "2 processes with 0 devices each.*use 1 or more of both"),
    (((2, 4), 4, -1), ValueError, "-1 processes with 4 devices each.*use 1 or more of both"),
    (((-1, 4), 8, 0), ValueError, "0 processes with 8 devices each"),
    (((7,), 4, 2), ValueError, r"use \(-1,\)"),
    (((-1, -1), 4, 2), ValueError, r"\(-1, -1\) does not fit"),
    (((0, -1), 4, 2), ValueError, r"\(0, -1\) does not fit"), (((), 4, 2), ValueError, r"\(\) does not fit"),
])  # fmt: skip
def test_a_mesh_that_hosts_cannot_share_is_refused(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        calculate_host_mesh_shape(*arguments)

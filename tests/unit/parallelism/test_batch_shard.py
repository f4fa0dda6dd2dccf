"""Which part of a batch a process loads: the pure core over any layout, and a process that has every device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh

from meshwright.parallelism import process_batch_shard, shard_processes

AUTO = AxisType.Auto


def make_mesh(**axes: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes), axis_types=(AUTO,) * len(axes))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[int, list[int]], list[list[int]]]:
    """An even layout: the shards in any order of coordinates, each held by one or more processes."""
    shard_count, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    coordinates = draw(st.permutations(range(shard_count * size)))
    shards = [list(coordinates[at * size : (at + 1) * size]) for at in range(shard_count)]
    owners = draw(st.permutations([*range(shard_count), *draw(st.lists(st.integers(0, shard_count - 1), max_size=4))]))
    return {process: shards[shard] for process, shard in enumerate(owners)}, shards


@given(layout=layouts())
def test_even_layouts_give_each_shard_one_index_and_all_indices_are_there(layout: Any) -> None:
    coverage, shards = layout
    answer = shard_processes(coverage, sum(map(len, shards)))
    assert {count for _, count in answer.values()} == {len(shards)}
    assert {index for index, _ in answer.values()} == set(range(len(shards)))
    for one, covered in coverage.items():
        for other, also in coverage.items():
            assert (answer[one] == answer[other]) == (set(covered) == set(also))


@given(shard_count=st.integers(1, 8), size=st.integers(1, 5), seed=st.randoms(use_true_random=False))
def test_a_process_with_adjacent_coordinates_has_the_index_of_its_place(shard_count: int, size: int, seed: Any) -> None:
    shards = list(range(shard_count))
    seed.shuffle(shards)
    coverage = {process: range(shard * size, (shard + 1) * size) for process, shard in enumerate(shards)}
    answer = shard_processes(coverage, shard_count * size)
    assert [answer[process] for process in range(shard_count)] == [(shard, shard_count) for shard in shards]


@pytest.mark.parametrize(("coverage", "count", "said"), [
    ({0: {0, 1, 2}, 1: {3}}, 4, "process 0 covers 0-2; process 1 covers 3;"),
    ({0: {0, 1}, 1: {1, 2}}, 3, "process 0 covers 0-1; process 1 covers 1-2;"),
    ({0: {0, 1}, 1: {2, 3}, 2: {0, 3}}, 4, "process 2 covers 0, 3;"),
    ({0: {0, 1}, 1: {0, 1}}, 4, "the 4 data coordinates is uneven"), ({0: set()}, 1, "process 0 covers nothing;"),
    ({}, 1, "uneven"), ({p: {p} for p in range(12)}, 13, "process 7 covers 7; and 4 more;"),
    ({0: set(range(0, 40, 2)), 1: {1}}, 40, "process 0 covers 0, 2, 4, 6, 8, 10, 12, 14, …;"),
])  # fmt: skip
def test_an_uneven_layout_says_who_covers_what(coverage: dict[int, set[int]], count: int, said: str) -> None:
    with pytest.raises(ValueError, match="uneven") as caught:
        shard_processes(coverage, count)
    assert said in str(caught.value)
    assert "create_mesh" in str(caught.value)


@pytest.mark.parametrize("data_axes", ["dp", ["dp", "domain"], ("domain", "dp"), "tp", (), []])
def test_a_process_that_has_every_device_loads_every_batch_whole(data_axes: str | list[str]) -> None:
    assert process_batch_shard(make_mesh(dp=2, tp=2, domain=2), data_axes) == (0, 1)


@pytest.mark.parametrize(("data_axes", "error", "words"), [
    ("data", ValueError, "data axis 'data' is no axis of the mesh; the mesh has 'dp', 'tp'"),
    (["dp", "fsdp"], ValueError, "data axis 'fsdp' is no axis"),
    (["dp", "dp"], ValueError, "data axis 'dp' stands twice"),
    ([("dp", "tp")], ValueError, "data axis ('dp', 'tp') is no axis"),
    (["dp", None], ValueError, "data axis None is no axis"),
])  # fmt: skip
def test_axes_that_the_mesh_does_not_have_are_refused(data_axes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        process_batch_shard(make_mesh(dp=4, tp=2), data_axes)
    assert words in str(caught.value)


def test_without_a_mesh_every_process_loads_everything() -> None:
    assert process_batch_shard(None, "dp") == (0, 1)

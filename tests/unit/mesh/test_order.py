"""Which devices of a job are granules, and the order over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._mesh_order import group_devices, order_devices
from meshwright.spec import MeshSpec
from tests.fakes.jax_devices import build_cpus, build_gpus, build_tpus


def sizes_of(granules: list[list[Any]]) -> list[int]:
    return [len(granule) for granule in granules]


GROUPED = [
    ("one process of CPUs", build_cpus(1, 8), "", [8]),
    ("CPU processes", build_cpus(4, 2), "", [2, 2, 2, 2]),
    ("GPU hosts", build_gpus(2, 8), "", [8, 8]),
    ("one process a GPU, hosts known as slices", build_gpus(16, 1, processes_per_slice=8), "", [8, 8]),
    ("one process a GPU on one host", build_gpus(8, 1, processes_per_slice=8), "", [8]),
    ("slices by the environment", build_cpus(1, 8), "2", [4, 4]),
    ("one slice by the environment", build_cpus(2, 4), "1", [4, 4]),
    ("devices that know better than the environment", build_gpus(2, 8), "4", [8, 8]),
]


@pytest.mark.parametrize(("devices", "slices", "expected"), [case[1:] for case in GROUPED], ids=[c[0] for c in GROUPED])
def test_slices_are_granules_and_else_processes(devices: list[Any], slices: str, expected: list[int]) -> None:
    granules = group_devices(devices, slices=slices)
    assert sizes_of(granules) == expected
    assert [device for granule in granules for device in granule] == devices


@pytest.mark.parametrize("told", ["3", "0", "-2", "two", "16"])
def test_a_number_of_slices_that_cannot_be_is_refused(told: str) -> None:
    with pytest.raises(ValueError, match=f"MEGASCALE_NUM_SLICES is '{told}'; the job has 8 devices"):
        group_devices(build_tpus(2, 4), slices=told)


@pytest.mark.parametrize("told", ["3", "16"])
def test_slices_of_other_devices_are_not_those_of_one_processs_cpu(told: str) -> None:
    assert sizes_of(group_devices(build_cpus(1, 8), slices=told)) == [8]
    with pytest.raises(ValueError, match="the job has 8 devices"):
        group_devices(build_cpus(1, 8), slices="two")


@pytest.mark.parametrize(("dcn", "same"), [((-1, 1), (2, 1)), ((2, -1), (2, 1)), ((1, -1), (1, 2)), (None, (2, 1))])
def test_the_rest_of_a_split_over_granules_is_filled_in(dcn: Any, same: tuple[int, int]) -> None:
    devices = build_gpus(2, 8)
    assert order_of(devices, (4, 4), dcn=dcn).tolist() == order_of(devices, (4, 4), dcn=same).tolist()


@pytest.mark.parametrize("dcn", [(2,), (2, 1, 1), (1, 1), (4, 1), (2, 2), (-1, -1), (0, 2), (3, -1), (-2, 1)])
def test_a_split_that_does_not_fit_is_refused_with_one_that_does(dcn: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"dcn_mesh_dims is .* for mesh .*; there are 2 granules .*use \(2, 1\)"):
        order_of(build_gpus(2, 8), (4, 4), dcn=dcn)


def order_of(devices: list[Any], sizes: tuple[int, ...], **more: Any) -> np.ndarray[Any, Any]:
    spec = MeshSpec(tuple((f"axis{n}", size) for n, size in enumerate(sizes)))
    return np.array([device.id for device in order_devices(spec, devices, **more)]).reshape(sizes)


def test_the_outer_part_of_an_axis_crosses_granules() -> None:
    devices = build_gpus(2, 4)
    assert order_of(devices, (4, 2)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert order_of(devices, (4, 2), dcn=(1, 2)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert order_of(devices, (1, 8)).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert order_of(build_gpus(2, 6), (3, 4)).tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


@given(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4, 6]), st.data())
def test_each_device_stands_once_and_inner_neighbors_are_in_one_granule(processes: int, each: int, data: Any) -> None:
    devices = data.draw(st.permutations(build_gpus(processes, each)))
    total = processes * each
    outer = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    order = order_of(devices, (outer, total // outer))
    assert sorted(order.flat) == list(range(total))
    if outer % processes == 0:
        assert all(len({device // each for device in row}) == 1 for row in order)


def test_a_torus_that_may_not_be_split_refuses_a_mesh_that_would_and_says_how_to_allow_it() -> None:
    devices = build_tpus(4, 4)
    assert sorted(order_of(devices, (4, 4), may_split=False).flat) == list(range(16))
    with pytest.raises(ValueError, match="use allow_split_physical_axes=True"):
        order_of(devices, (2, 8), may_split=False)
    assert sorted(order_of(devices, (2, 8)).flat) == list(range(16))


def test_granules_of_unequal_size_are_joined_in_equal_blocks_and_told() -> None:
    devices = build_cpus(2, 4)[:6]
    with pytest.warns(UserWarning, match=r"granules \(slices or processes\) of \[4, 2\] devices"):
        order = order_of(devices, (2, 3))
    at = {device.id: device.process_index for device in devices}
    assert [[at[device] for device in line] for line in order.T.tolist()] == [[0, 0], [0, 0], [1, 1]]
    with pytest.raises(ValueError, match=r"of \[4, 2\] devices, which must have as many each.*use None"):
        order_of(devices, (2, 3), dcn=(2, 1))

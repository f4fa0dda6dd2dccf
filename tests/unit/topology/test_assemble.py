from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.topology.identity import canonical
from meshwright.topology.systems import Slice, read_slices
from meshwright.topology.targets import build_target, find_hardware, read_target

SMALL_SLICES = [each.name for each in read_slices() if each.device_count <= 512]
HOSTS = ["v100:16", "a100:4", "a100-pcie:8", "h100:8", "gb200:4", "mi300x:8", "l40s:4", "cpu:8", "cpu:1"]


@settings(max_examples=40)
@given(st.sampled_from([*SMALL_SLICES, *HOSTS]), st.integers(1, 3))
def test_devices_stand_in_their_granules_one_after_the_other(name: str, granules: int) -> None:
    topology = build_target(f"{granules}*{name}")
    count = len(topology.devices) // granules
    assert [granule.ordinal for granule in topology.granules] == list(range(granules))
    assert {granule.device_count for granule in topology.granules} == {count}
    assert topology.order == tuple(range(len(topology.devices)))
    assert [device.granule for device in topology.devices] == [index // count for index in range(len(topology.devices))]
    for host, members in Counter(device.host for device in topology.devices).items():
        indices = [device.local_index for device in topology.devices if device.host == host]
        assert indices == list(range(members))


@pytest.mark.parametrize("name", ["v5p:4x4x8", "tpu7x:2x2x4", "v3:4x8", "v6e:8x8", "v5e-1"])
def test_a_slice_is_in_the_order_in_which_agents_list_chips(name: str) -> None:
    topology = build_target(name)
    places = [canonical(device.coords, device.core_on_chip) for device in topology.devices]
    assert places == sorted(places)
    hardware = find_hardware(read_target(name))
    assert isinstance(hardware, Slice)
    cores = dict.fromkeys(product(*map(range, hardware.extent)), hardware.chip.jax_devices_per_chip)
    assert Counter(device.coords for device in topology.devices) == cores


def test_hosts_of_a_slice_are_boxes_of_two_by_two_chips_counted_x_first() -> None:
    topology = build_target("v5e:4x4")
    hosts = {device.coords: device.host for device in topology.devices}
    chips = ((0, 0, 0), (1, 1, 0), (2, 1, 0), (1, 2, 0), (3, 3, 0))
    assert [hosts[chip] for chip in chips] == ["host-0", "host-0", "host-1", "host-2", "host-3"]


def test_the_links_of_many_cpu_devices_are_left_out_as_agents_do() -> None:
    assert len(build_target("2*cpu:8").links) == 2 * 28
    assert build_target("cpu:65").links == ()
    assert [device.virtual for device in build_target("cpu:1").devices] == [False]

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.topology.chips import find_chip_by_kind, read_chips
from meshwright.topology.systems import Slice, read_slices
from meshwright.topology.targets import build_target, find_hardware, read_target
from meshwright_agent.view.tpu import canonical
from tests.fakes.topologies import check_topology

SMALL_SLICES = [each.name for each in read_slices() if each.device_count <= 512]
HOSTS = ["v100:16", "a100:4", "a100-pcie:8", "h100:8", "gb200:4", "mi300x:8", "l40s:4", "cpu:8", "cpu:1"]


@pytest.mark.parametrize("target", [*HOSTS, "v5p:2x2x1", "tpu7x:2x2x1", "v5e-1"])
def test_one_host_keeps_to_what_every_real_machine_keeps_to(target: str) -> None:
    check_topology(build_target(target))


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


def test_everything_is_declared_and_nobody_could_look_who_holds_it() -> None:
    for target in ("2*v5e:4x4", "2*h100:8", "cpu:4"):
        topology = build_target(target)
        facts = [*topology.devices, *topology.links, *(one.memory for one in topology.devices if one.memory)]
        assert {fact.basis for fact in facts} == {"declared"}
        assert {device.processes for device in topology.devices} == {None}
        assert {(device.uuid, device.pci_bus_id, device.jax) for device in topology.devices} == {(None, None, None)}


def test_a_slice_says_its_shape_and_its_rings_and_lists_no_link() -> None:
    topology = build_target("2*v5e:8x16")
    assert topology.links == ()
    assert [granule.name for granule in topology.granules] == ["slice-0", "slice-1"]
    for granule in topology.granules:
        assert (granule.kind, granule.shape, granule.wrap) == ("slice", (8, 16, 1), (False, True, False))
        assert granule.twisted is False


def test_only_what_is_said_to_be_twisted_is() -> None:
    assert build_target("v4:4x4x8_twisted").granules[0].twisted
    assert not build_target("v4:4x4x8").granules[0].twisted
    assert build_target("v4:4x4x8_twisted").hops(0, 3) != build_target("v4:4x4x8").hops(0, 3)


def test_hops_follow_the_rings_of_the_slice() -> None:
    topology = build_target("v5p:4x4x8")
    assert topology.hops(0, 3) == 1
    assert topology.hops(0, 4 * 4 * 4) == 4
    mesh = build_target("v5p:2x4x4")
    assert mesh.hops(0, 6) == 3


@pytest.mark.parametrize("name", ["v5p:4x4x8", "tpu7x:2x2x4", "v3:4x8", "v6e:8x8", "v5e-1"])
def test_a_slice_is_in_the_order_in_which_agents_list_chips(name: str) -> None:
    topology = build_target(name)
    places = [canonical(device.coords, device.core_on_chip) for device in topology.devices]
    assert places == sorted(places)
    hardware = find_hardware(read_target(name))
    assert isinstance(hardware, Slice)
    chips = product(*map(range, hardware.extent))
    assert Counter(device.coords for device in topology.devices) == dict.fromkeys(
        chips, hardware.chip.jax_devices_per_chip
    )


def test_hosts_of_a_slice_are_boxes_of_two_by_two_chips_counted_x_first() -> None:
    topology = build_target("v5e:4x4")
    hosts = {device.coords: device.host for device in topology.devices}
    assert [hosts[0, 0, 0], hosts[1, 1, 0], hosts[2, 1, 0], hosts[1, 2, 0], hosts[3, 3, 0]] == [
        "host-0",
        "host-0",
        "host-1",
        "host-2",
        "host-3",
    ]


def test_processes_and_hosts_count_on_over_slices_and_slices_have_an_index_where_there_are_several() -> None:
    one, two = build_target("v5e:4x4"), build_target("2*v5e:4x4")
    assert {device.slice_index for device in one.devices} == {None}
    assert [device.slice_index for device in two.devices] == [0] * 16 + [1] * 16
    assert {device.process_index for device in two.devices if device.slice_index == 1} == {4, 5, 6, 7}
    assert two.hosts[:5] == ("host-0", "host-1", "host-2", "host-3", "host-4")


@pytest.mark.parametrize("chip", read_chips(), ids=lambda chip: chip.aliases[0])
def test_every_chip_of_the_table_makes_a_host_with_its_memory(chip: object) -> None:
    topology = build_target(chip.aliases[0])  # type: ignore[attr-defined]
    for device in topology.devices:
        assert find_chip_by_kind(device.kind) == chip
        assert device.memory
        assert device.memory.capacity_bytes == chip.device_memory_bytes  # type: ignore[attr-defined]


def test_links_stay_inside_their_host() -> None:
    topology = build_target("3*h100:8")
    assert len(topology.links) == 3 * 28
    for link in topology.links:
        assert link.a // 8 == link.b // 8
        assert (link.kind, link.count, link.bandwidth_bytes_per_s) == ("NV18", 18, 450e9)


def test_hosts_fill_nvlink_domains_one_after_the_other() -> None:
    domains = [granule.domain for granule in build_target("20*gb200:4").granules]
    assert domains == ["domain-0"] * 18 + ["domain-1"] * 2
    assert len(build_target("gb200:72").granules) == 18
    assert {granule.domain for granule in build_target("2*h100:8").granules} == {None}


def test_the_links_of_many_cpu_devices_are_left_out_as_agents_do() -> None:
    assert len(build_target("2*cpu:8").links) == 2 * 28
    assert build_target("cpu:65").links == ()
    assert [device.virtual for device in build_target("cpu:1").devices] == [False]


def test_gpus_of_two_sockets_say_which() -> None:
    assert [device.numa_node for device in build_target("h100:8").devices] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_target_is_built_once_whatever_it_is_called() -> None:
    assert build_target("v5litepod-16") is build_target("V5e:4x4")


@pytest.mark.parametrize(("target", "device_count"), [("v5p:16x20x28", 8960), ("1024*h100:8", 8192)])
def test_large_targets_have_all_their_devices(target: str, device_count: int) -> None:
    assert len(build_target(target).devices) == device_count


def test_a_topology_survives_json() -> None:
    for target in ("2*v5e:2x2", "18*gb200:4"):
        topology = build_target(target)
        for part in (*topology.devices, *topology.links, *topology.granules):
            assert type(part).model_validate_json(part.model_dump_json()) == part

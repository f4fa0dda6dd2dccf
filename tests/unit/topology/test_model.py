from __future__ import annotations

from itertools import combinations

import pytest

from meshwright.topology.model import Topology
from meshwright.wire.devices import Link
from tests.fakes.topologies import (
    EVIDENCE,
    build_cpu,
    build_dgx1,
    build_dgx_h100,
    build_mig,
    build_tpu,
    change_device,
)


def test_two_devices_cannot_stand_at_one_place() -> None:
    with pytest.raises(ValueError, match="two devices stand at position 0 of granule 0"):
        change_device(build_cpu(4), 1, position=0)


def test_a_device_must_stand_in_a_granule_that_is_listed() -> None:
    with pytest.raises(ValueError, match="devices stand in granule 3; the topology lists 1 granules"):
        change_device(build_cpu(4), 1, granule=3)


@pytest.mark.parametrize(("a", "b"), [(0, 4), (-1, 0), (2, 2)])
def test_a_link_must_join_two_devices_that_are_there(a: int, b: int) -> None:
    cpu = build_cpu(4)
    with pytest.raises(ValueError, match="must join two of the 4 devices"):
        Topology(cpu.devices, (Link(a=a, b=b, kind="HOST", **EVIDENCE),), cpu.granules)


def test_plain_order_follows_positions_and_not_the_list() -> None:
    cpu = build_cpu(3)
    assert Topology(cpu.devices[::-1], (), cpu.granules).order == (2, 1, 0)


def test_a_link_is_found_from_both_ends() -> None:
    dgx1 = build_dgx1()
    for a, b in combinations(range(8), 2):
        assert dgx1.link(a, b) is dgx1.link(b, a) is not None


def test_a_machine_is_uniform_when_every_pair_is_joined_alike() -> None:
    assert build_dgx_h100().is_uniform
    assert build_cpu(8).is_uniform
    assert build_cpu(8, with_links=False).is_uniform
    assert not build_cpu(8, numa_nodes=2).is_uniform
    assert not build_dgx1().is_uniform
    assert not build_tpu((2, 2)).is_uniform
    assert not build_mig(3).is_uniform


@pytest.mark.parametrize("with_links", [True, False])
def test_hops_are_counted_along_ici_links_or_else_along_coordinates(with_links: bool) -> None:
    slice_ = build_tpu((2, 4), with_links=with_links)
    assert [slice_.hops(0, other) for other in range(8)] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert build_dgx1().hops(0, 1) is None


def test_wrap_around_links_shorten_the_way() -> None:
    assert build_tpu((1, 4), wrap=True).hops(0, 3) == 1
    assert build_tpu((1, 4), wrap=False).hops(0, 3) == 3


def test_cores_of_one_chip_are_no_hop_apart() -> None:
    chips = build_tpu((2, 2), kind="TPU v3", cores=2)
    assert (chips.hops(0, 1), chips.hops(0, 2), chips.hops(1, 7)) == (0, 1, 2)


def test_a_tpu_without_coordinates_and_links_knows_no_hops() -> None:
    blind = build_tpu((2, 1), with_links=False)
    for index in (0, 1):
        blind = change_device(blind, index, coords=None)
    assert blind.hops(0, 1) is None


def test_devices_have_all_their_names() -> None:
    dgx = build_dgx_h100()
    assert dgx.names[3] == dgx.names[str(dgx.devices[3].uuid).lower()] == dgx.names["00000000:13:00.0"] == (3,)
    assert len(build_mig(3).names["00000000:10:00.0"]) == 3


def test_an_empty_topology_has_no_order_and_no_hosts() -> None:
    empty = Topology(())
    assert (empty.order, empty.hosts, empty.is_uniform) == ((), (), True)

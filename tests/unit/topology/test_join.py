from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanInfeasibleError
from meshwright.topology.join import Joined, join_devices
from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from tests.fakes.fleets import AT, build_host, build_slice
from tests.fakes.machines import NAMES, plant_machine


def codes(joined: Joined) -> list[str]:
    return [notice.code for notice in joined.notices]


def find_notice(joined: Joined, code: str) -> str:
    (notice,) = [notice for notice in joined.notices if notice.code == code]
    assert notice.hint
    return notice.message


def refuse(replies: Sequence[Devices]) -> PlanInfeasibleError:
    with pytest.raises(PlanInfeasibleError) as caught:
        join_devices(replies)
    error = caught.value
    assert error.errors[0]["field"] == "topology"
    assert error.hint
    assert error.detail.count("; ") >= 1, "what was there; the rule"
    assert error.detail.endswith(error.errors[0]["message"])
    return error


def change(reply: Devices, **fields: Any) -> Devices:
    return reply.model_copy(update=fields)


def change_host(reply: Devices, **fields: Any) -> Devices:
    return change(reply, host=reply.host.model_copy(update=fields))


def change_device(reply: Devices, index: int, **fields: Any) -> Devices:
    devices = list(reply.devices)
    devices[index] = devices[index].model_copy(update=fields)
    return change(reply, devices=tuple(devices))


# ---- hosts ----


@pytest.mark.parametrize("name", NAMES)
def test_one_recorded_host_alone_is_the_topology_that_it_was(name: str, tmp_path: Path) -> None:
    reply = plant_machine(name, tmp_path).view()
    joined = join_devices([reply])
    assert joined.topology == Topology.of(reply)
    assert joined.places == (tuple(range(len(reply.devices))),)
    chips = len({device.coords for device in reply.devices})
    is_part = any(math.prod(granule.shape or (chips,)) != chips for granule in reply.granules)
    own = [notice.code for notice in reply.warnings if notice.code != "slice_in_part"]
    assert codes(joined) == (["chips_missing"] if is_part else []) + own


HOSTS = st.tuples(st.sampled_from(["cpu", "h100"]), st.sampled_from([1, 2, 4]))


@given(st.lists(HOSTS, min_size=1, max_size=5), st.randoms())
def test_devices_and_links_are_there_once_where_places_say(sizes: list[tuple[str, int]], chance: random.Random) -> None:
    platform = sizes[0][0]
    replies = [build_host(f"n{i}", f"{platform}:{count}") for i, (_, count) in enumerate(sizes)]
    chance.shuffle(replies)
    joined = join_devices(replies)
    assert sorted(place for places in joined.places for place in places) == list(range(len(joined.topology.devices)))
    moved = set()
    for reply, places in zip(replies, joined.places, strict=True):
        for device, place in zip(reply.devices, places, strict=True):
            there = joined.topology.devices[place]
            assert (there.host, there.local_index, there.uuid) == (device.host, device.local_index, device.uuid)
        moved |= {(places[link.a], places[link.b], link.kind) for link in reply.links}
    assert {(link.a, link.b, link.kind) for link in joined.topology.links} == moved
    assert len(joined.topology.links) == len(moved)


def test_hosts_of_one_name_are_told_apart_by_number_or_by_label() -> None:
    replies = [change(build_host("vm", "cpu:2"), worker=build_worker(i)) for i in range(2)]
    replies = [change_host(r, boot_id=f"b{i}", observed_at=AT + timedelta(i)) for i, r in enumerate(replies)]
    joined = join_devices([*replies, build_host("a", "cpu:2")])
    assert joined.topology.hosts == ("a", "vm#1", "vm#2")
    assert [granule.name for granule in joined.topology.granules] == ["a", "vm#1", "vm#2"]
    assert find_notice(joined, "hosts_renamed") == "2 hosts are called vm; here they are vm#1, vm#2"
    labelled = join_devices(replies, labels=["10.0.0.1:8790", "10.0.0.2:8790"])
    assert labelled.topology.hosts == ("vm@10.0.0.1:8790", "vm@10.0.0.2:8790")
    assert labelled.topology.names["vm@10.0.0.2:8790/1"] == (3,)


def build_worker(number: int) -> Any:
    worker = build_host("x", "cpu:1").worker
    return worker.model_copy(update={"since": AT + timedelta(microseconds=number)})


def test_two_agents_on_one_machine_are_two_hosts_and_the_plan_says_so() -> None:
    one, other = build_host("pod-a", "cpu:4"), build_host("pod-b", "cpu:4")
    joined = join_devices([one, change_host(other, boot_id=one.host.boot_id)])
    assert len(joined.topology.granules) == 2
    assert find_notice(joined, "hosts_share_machine").startswith("pod-a, pod-b run on one machine")


def test_a_host_without_devices_is_told() -> None:
    empty = change(build_host("n1"), devices=(), links=(), granules=())
    joined = join_devices([build_host("n0"), empty])
    assert find_notice(joined, "hosts_without_devices") == "n1 has no device that jax can use"
    assert joined.places == ((0, 1, 2, 3), ())


# ---- what is refused ----

A, B = build_host("a"), build_host("b")
UUID = str(A.devices[1].uuid).upper()

REFUSED: dict[str, tuple[list[Devices], str]] = {
    "none": ([], "a plan needs at least one"),
    "two platforms": ([A, build_host("c", "cpu:4"), B], "2 platforms: cpu on c, gpu on a, b"),
    "two platforms, one name": ([A, build_host("a", "cpu:4")], "2 platforms: cpu on a#2, gpu on a#1"),
    "one reply twice": ([A, B, A], "host a stands twice among 3 hosts, at 0 and 2"),
    "one agent, its worker changed": ([A, change(A, worker=build_worker(7))], "host a stands twice"),
    "one agent, its machine read again": ([A, change_host(A, observed_at=AT + timedelta(1))], "host a stands twice"),
    "one GPU on two hosts": (
        [A, change_device(B, 2, uuid=UUID)],
        f"device {UUID} is listed by host a and again by host",
    ),
    "one PCI function by two agents": ([build_slice((2, 2, 1), (2, 2, 1), prefix=p)[0] for p in ("v", "w")], ""),
    "devices at one position": ([A, change_device(B, 1, position=0)], "host b was to be joined; its reply contradicts"),
    "a device in no granule": ([A, change_device(B, 1, granule=3)], "its reply contradicts itself"),
    "devices of another platform than is said": ([change(A, platform="tpu")], "its reply contradicts itself: its"),
    "one GPU twice on one host": ([change_device(A, 2, uuid=UUID)], "its reply contradicts itself: device"),
    "one PCI function twice on one host": (
        [change_device(A, 3, pci_bus_id=A.devices[0].pci_bus_id)],
        "is listed twice;",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused(case: str) -> None:
    replies, words = REFUSED[case]
    if case == "one PCI function by two agents":
        replies = [change_host(reply, boot_id="m") for reply in replies]
        words = "device 0000:00:00.0 of boot id m is listed by host v-0"
    assert words in refuse(replies).detail


# ---- slices ----


def test_the_hosts_of_a_slice_are_one_granule_in_canonical_order() -> None:
    hosts = build_slice((4, 4, 4), (2, 2, 1))
    joined = join_devices(hosts[::-1])
    topology = joined.topology
    (granule,) = topology.granules
    assert (granule.kind, granule.name, granule.device_count) == ("slice", "slice-a", 64)
    assert (granule.shape, granule.wrap, granule.twisted) == ((4, 4, 4), (True, True, True), False)
    assert [device.coords for device in topology.devices] == [(x, y, z) for z, y, x in product(range(4), repeat=3)]
    assert [device.position for device in topology.devices] == list(range(64))
    assert len(topology.links) == sum(len(host.links) for host in hosts)
    assert topology.hops(0, 3) == 1
    assert codes(joined) == []


@given(st.randoms())
def test_the_order_of_replies_does_not_change_a_slice(chance: random.Random) -> None:
    hosts = build_slice((2, 4, 2), (2, 2, 1), cores=2, kind="TPU v3")
    expected = join_devices(hosts).topology
    assert [device.core_on_chip for device in expected.devices[:4]] == [0, 1, 0, 1]
    chance.shuffle(hosts)
    joined = join_devices(hosts)
    assert joined.topology.devices == expected.devices
    assert joined.topology.granules == expected.granules


def test_chips_that_lack_are_named_and_the_rest_is_a_topology_with_holes() -> None:
    hosts = build_slice((2, 2, 4), (2, 2, 1))
    joined = join_devices([hosts[0], hosts[1], hosts[3]])
    assert joined.topology.granules[0].shape == (2, 2, 4)
    assert joined.topology.granules[0].device_count == 12
    assert find_notice(joined, "chips_missing") == (
        "slice slice-a has 16 chips (2x2x4), and 12 of them are here; missing: (0,0,2), (1,0,2), (0,1,2), (1,1,2)"
    )
    assert [device.position for device in joined.topology.devices] == list(range(12))


def test_a_core_that_lacks_is_its_chip_that_lacks() -> None:
    (host,) = build_slice((2, 2, 1), (2, 2, 1), cores=2, kind="TPU v3")
    part = change(host, devices=host.devices[:7], links=())
    assert find_notice(join_devices([part]), "chips_missing").endswith("missing: (1,1,0)")


@pytest.mark.parametrize("two", [
    [build_slice((2, 2, 2), (2, 2, 1), name=name, prefix=name) for name in ("b", "a")],
    [build_slice((2, 2, 2), (2, 2, 1), slice_index=index, prefix=f"p{index}") for index in (1, 0)],
    [build_slice((2, 2, 2), (2, 2, 1), name=None, slice_index=index, prefix=f"p{index}") for index in (1, 0)],
    [build_slice((2, 4, 1), (2, 4, 1), name=None, prefix=prefix) for prefix in ("q", "p")],
    [build_slice((2, 4, 1), (2, 4, 1), name=None, prefix=prefix, says_shape=False) for prefix in ("q", "p")],
], ids=["by name", "by index", "by index, without names", "each whole", "each alone"])  # fmt: skip
def test_slices_are_told_apart(two: list[list[Devices]]) -> None:
    one, other = two
    joined = join_devices([host for pair in zip(one, other, strict=True) for host in pair])
    assert [granule.device_count for granule in joined.topology.granules] == [8, 8]
    second_hosts = {device.host for device in joined.topology.devices if device.granule == 0}
    assert second_hosts == {host.host.name for host in other}, "slices are in the order of index and name"
    assert codes(joined) == []


def test_hosts_that_name_no_slice_are_one_where_one_of_them_is_a_part() -> None:
    for says in ({"says_part": True}, {"says_shape": True, "says_part": False}, {"says_part": False}):
        hosts = build_slice((2, 2, 2), (2, 2, 1), name=None, **{"says_shape": False, **says})
        (granule,) = join_devices(hosts).topology.granules
        assert (granule.device_count, granule.name) == (8, "w-0")


def test_a_shape_that_nobody_says_is_that_of_the_box_unless_somebody_knows_of_others() -> None:
    whole = join_devices(build_slice((4, 4, 4), (2, 2, 1), says_shape=False, says_part=False))
    assert (whole.topology.granules[0].shape, whole.topology.granules[0].wrap) == ((4, 4, 4), (True,) * 3)
    assert "they fill 4x4x4, taken as its shape" in find_notice(whole, "slice_shape_unknown")
    part = join_devices(build_slice((4, 4, 4), (2, 2, 1), says_shape=False))
    assert part.topology.granules[0].shape is None
    assert "wrap-around is not assumed" in find_notice(part, "slice_shape_unknown")
    assert part.topology.hops(0, 3) == 3, "the grid is joined over hosts, and not around"
    assert part.topology.hops(0, 63) == 9
    holes = join_devices(build_slice((2, 2, 2), (2, 1, 1), says_shape=False, says_part=False)[:3])
    assert holes.topology.granules[0].shape is None


def without_coords(host: Devices) -> Devices:
    blind = {"coords": None, "core_on_chip": None}
    return change(host, devices=tuple(device.model_copy(update=blind) for device in host.devices))


def test_hosts_whose_coordinates_nobody_knows_are_in_the_order_of_their_processes() -> None:
    hosts = [without_coords(host) for host in build_slice((2, 2, 2), (2, 2, 1))]
    joined = join_devices([hosts[1], hosts[0]])
    assert [device.host for device in joined.topology.devices] == ["w-0"] * 4 + ["w-1"] * 4
    assert "where the chips of w-0, w-1 stand in it is unknown" in find_notice(joined, "coordinates_unknown")


SLICES_REFUSED: dict[str, tuple[Callable[[], list[Devices]], str]] = {
    "one place twice": (
        lambda: [*build_slice((2, 2, 1), (2, 2, 1)), *build_slice((2, 2, 1), (2, 2, 1), prefix="v")],
        "granule slice-a has two devices at (0,0,0) core 0, v-0/0 and w-0/0; at one place of a slice there is",
    ),
    "parts of two slices without names": (
        lambda: [host for prefix in "ab" for host in build_slice((2, 2, 2), (2, 2, 1), name=None, prefix=prefix)],
        "at one place of a slice there is one device",
    ),
    "two shapes": (
        lambda: [build_slice((2, 2, 2), (2, 2, 1))[0], build_slice((2, 2, 4), (2, 2, 1))[1]],
        "its shape is 2x2x2 (w-0), 2x2x4 (w-1); a slice has one shape",
    ),
    "rings of two kinds": (
        lambda: [
            change(host, granules=(host.granules[0].model_copy(update={"wrap": (True, True, bool(rank))}),))
            for rank, host in enumerate(build_slice((4, 4, 2), (4, 4, 1)))
        ],
        "say of its dimensions true,true,false (w-0), true,true,true (w-1); a slice closes to rings in one way",
    ),
}


@pytest.mark.parametrize("case", SLICES_REFUSED)
def test_hosts_of_a_slice_that_contradict_each_other_are_refused(case: str) -> None:
    build, words = SLICES_REFUSED[case]
    assert words in refuse(build()).detail

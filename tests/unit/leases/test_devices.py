"""Which device a lease covers, also after the host numbers its devices anew; and what /devices says of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.planning.device_selection import Health
from meshwright.topology.model import Topology
from meshwright.wire.base import DeviceRef
from meshwright.wire.devices import Device, Mig
from meshwright.wire.leases import LeaseRequest
from meshwright_agent.leases import LeaseRegistry, choose_devices, covers
from tests.fakes.stored import ManualBoot
from tests.fakes.topologies import EVIDENCE
from tests.unit.bench.hosts import build_host
from tests.unit.leases.scene import build_lease


def build(**fields: Any) -> Device:
    known = {"host": "a", "local_index": 0, "position": 0, "platform": "gpu", "kind": "H100", **EVIDENCE}
    return Device.model_validate(known | fields)


def no_view() -> tuple[Topology, Health]:
    raise AssertionError("only a count is about how devices lie")


MIG = [
    build(local_index=index, uuid=f"MIG-{index}", pci_bus_id="0000:1b:00.0", mig=Mig(parent_uuid="GPU-a"))
    for index in range(3)
]


@pytest.mark.parametrize(("leased", "device", "is_covered"), [
    ({"local_index": 0}, {"local_index": 0}, True), ({"local_index": 0}, {"local_index": 1}, False),
    ({"local_index": 0, "uuid": "GPU-a"}, {"local_index": 3, "uuid": "GPU-a"}, True),
    ({"local_index": 0, "uuid": "GPU-a"}, {"local_index": 0, "uuid": "GPU-b"}, False),
    ({"local_index": 0, "pci_bus_id": "p"}, {"local_index": 1, "pci_bus_id": "p"}, True),
    ({"local_index": 0, "pci_bus_id": "p"}, {"local_index": 0, "pci_bus_id": "q"}, False),
    ({"local_index": 0, "uuid": "GPU-a"}, {"uuid": "MIG-0", "mig": {"parent_uuid": "GPU-a"}}, True),
    ({"local_index": 0, "uuid": "GPU-a"}, {"uuid": "MIG-0", "mig": {"parent_uuid": "GPU-b"}}, False),
    ({"local_index": 0, "uuid": "MIG-0", "pci_bus_id": "p"}, {"uuid": "MIG-1", "pci_bus_id": "p"}, False),
])  # fmt: skip
def test_the_strongest_name_that_both_have_counts(leased: Any, device: Any, is_covered: bool) -> None:
    seen, there = DeviceRef.model_validate({"host": "a", "position": 0, **leased}), build(**device)
    assert covers(seen, there) is is_covered
    assert (registry_with(seen).covering(there) is not None) is is_covered


def registry_with(*leased: DeviceRef) -> LeaseRegistry:
    registry = LeaseRegistry(ManualBoot())
    registry.put(registry.date(build_lease(devices=leased), 60))
    return registry


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, "u", "v"]), st.sampled_from([None, "p"])), max_size=4),
    st.tuples(st.integers(0, 3), st.sampled_from([None, "u", "v"]), st.sampled_from([None, "p"])),
)
def test_the_index_of_the_registry_says_what_the_rule_says(leased: list[Any], device: Any) -> None:
    there = build(local_index=device[0], uuid=device[1], pci_bus_id=device[2])
    names = [
        DeviceRef(host="a", local_index=index, position=index, uuid=uuid, pci_bus_id=pci) for index, uuid, pci in leased
    ]
    assert (registry_with(*names).covering(there) is not None) == any(covers(name, there) for name in names)


def test_a_lease_of_a_mig_instance_leaves_its_siblings_alone() -> None:
    (chosen,) = choose_devices(LeaseRequest(devices=("mig-1",), purpose="x"), MIG, no_view)
    registry = registry_with(chosen.to_reference())
    assert [registry.covering(device) is not None for device in MIG] == [False, True, False]


def test_the_uuid_of_a_card_means_all_its_instances() -> None:
    for name in ("GPU-A", "0000:1B:00.0"):
        assert choose_devices(LeaseRequest(devices=(name,), purpose="x"), MIG, no_view) == tuple(MIG)
    for name in ("A/1", "1"):
        assert choose_devices(LeaseRequest(devices=(name,), purpose="x"), MIG, no_view) == (MIG[1],)


@pytest.mark.parametrize("names", [["GPU-nope"], [3], [9], ["9"], ["b/0"]])
def test_a_name_that_means_nothing_is_refused_with_one_that_does(names: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match="this host has 3 \\(0, 1, 2\\) and is a;") as caught:
        choose_devices(LeaseRequest.model_validate({"devices": names, "purpose": "x"}), MIG, no_view)
    assert "'MIG-0'" in caught.value.hint
    assert ('{"count": ' in caught.value.hint) is (names == [3])
    with pytest.raises(InvalidRequestError, match="no device"):
        choose_devices(LeaseRequest(purpose="x"), [], no_view)


def test_of_a_simulated_fleet_all_or_nothing_is_leased() -> None:
    fleet = [build(local_index=0, host=host, position=place) for place, host in enumerate("ab")]
    assert len(choose_devices(LeaseRequest(purpose="x"), fleet, no_view)) == 2
    with pytest.raises(InvalidRequestError, match="one host") as caught:
        choose_devices(LeaseRequest(devices=(0,), purpose="x"), fleet, no_view)
    assert '"all"' in caught.value.hint
    with pytest.raises(InvalidRequestError, match="one host"):
        choose_devices(LeaseRequest.model_validate({"devices": {"count": 1}, "purpose": "x"}), fleet, no_view)


def test_a_host_is_shown_with_its_leases_and_without_as_it_is() -> None:
    host = build_host(3)
    registry = registry_with(DeviceRef(host="a", local_index=1, position=1))
    marked = registry.mark(host)
    assert [device.lease.purpose if device.lease else None for device in marked.devices] == [None, "job 7", None]
    assert LeaseRegistry(ManualBoot()).mark(host) is host


def test_the_key_differs_after_each_change_also_after_an_end_by_time() -> None:
    boot = ManualBoot()
    registry = LeaseRegistry(boot)
    keys = [registry.key()]
    registry.put(registry.date(build_lease(), 60))
    keys.append(registry.key())
    boot.now_s += 60
    assert registry.active() == ()
    keys.append(registry.key())
    registry.remove(*registry.list_expired())
    assert registry.list_expired() == ()
    assert len(set(keys)) == 3

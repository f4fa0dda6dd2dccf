"""Which devices a plan may use when others hold some of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.device_selection import select_devices
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import DeviceSelection
from meshwright.wire.devices import DeviceProcess
from meshwright.wire.mesh import PlanRequest
from tests.fakes.topologies import build_cpu, build_dgx_h100, build_tpu, change_device, hold

TPU, GPUS = build_tpu((2, 4)), build_dgx_h100()


def hold_alone(topology: Topology, index: int) -> Topology:
    return hold(change_device(topology, index, compute_mode="exclusive_process"), index)


ANY = (None, DeviceSelection(exclude=(7,)))


@pytest.mark.parametrize("machine", [hold(hold(TPU, 0), 3), hold_alone(hold_alone(GPUS, 0), 3)])
@pytest.mark.parametrize("asked", ANY)
def test_a_device_that_another_process_has_to_itself_is_left_out_and_told_once(machine: Topology, asked: Any) -> None:
    pool = select_devices(asked, machine, {})
    assert pool.taken == (0, 3)
    assert not {0, 3} & {*pool.indices, *pool.alternatives}
    assert len(pool.indices) == (6 if asked is None else 5)
    assert [notice.code for notice in pool.notices] == ["devices_left_out"]
    assert "device 0, 3 is held by python (4321): left out" in pool.notices[0].message


@pytest.mark.parametrize("machine", [hold(TPU, 0, own=True), hold_alone(GPUS, 0), hold(GPUS, 0), hold(build_cpu(8), 0)])
def test_what_can_be_shared_or_is_the_agents_own_stays(machine: Topology) -> None:
    devices = tuple(
        device.model_copy(update={"processes": (DeviceProcess(pid=1, own=True),)})
        if device.compute_mode == "exclusive_process"
        else device
        for device in machine.devices
    )
    assert len(select_devices(None, Topology(devices, machine.links, machine.granules), {}).indices) == 8


@given(held=st.sets(st.integers(0, 7)), count=st.integers(1, 8))
def test_a_number_of_devices_is_never_filled_up_with_taken_ones(held: set[int], count: int) -> None:
    machine = TPU
    for index in held:
        machine = hold(machine, index)
    asked = DeviceSelection(count=count)
    if count > 8 - len(held):
        with pytest.raises(PlanInfeasibleError, match=r"held by python \(4321\)"):
            select_devices(asked, machine, {})
    else:
        assert not held & set(select_devices(asked, machine, {}).indices)


@pytest.mark.parametrize("asked", [None, DeviceSelection(exclude=(7,)), DeviceSelection(count=8)])
def test_too_few_devices_are_refused_with_the_names_of_those_who_hold_the_rest(asked: DeviceSelection | None) -> None:
    machine = hold(TPU, 0)
    with pytest.raises(PlanInfeasibleError) as caught:
        plan_mesh(PlanRequest(mesh="dp:8", devices=asked), machine)
    assert "device 0 is held by python (4321)" in caught.value.detail
    assert caught.value.hint


def test_a_host_whose_devices_are_all_taken_says_by_whom() -> None:
    machine = TPU
    for index in range(8):
        machine = hold(machine, index)
    with pytest.raises(PlanInfeasibleError, match="device 0, 1, 2, 3, 4, 5, 6, 7 is held by python") as caught:
        plan_mesh(PlanRequest(mesh="dp:-1"), machine)
    assert "GET /devices" in caught.value.hint


def test_shared_devices_are_told_in_one_warning_that_lists_them_by_who_holds_them() -> None:
    machine = hold(hold(hold(GPUS, 0), 1), 5, name="other")
    plan = plan_mesh(PlanRequest(mesh="dp:8"), machine)
    assert [notice.code for notice in plan.warnings] == ["devices_shared"]
    assert plan.warnings[0].message == "device 0, 1 is held by python (4321); device 5 is held by other (4321)"


def test_devices_of_which_nobody_could_look_who_holds_them_are_warned_of() -> None:
    machine = GPUS
    for index in (2, 3):
        machine = change_device(machine, index, basis="passive", processes=None)
    for index in (0, 1):
        machine = change_device(machine, index, basis="passive", processes=())
    plan = plan_mesh(PlanRequest(mesh="dp:4", devices=(0, 1, 2, 3)), machine)
    assert [notice.code for notice in plan.warnings] == ["holders_unknown"]
    assert "processes on device 2, 3 are unknown" in plan.warnings[0].message
    plan = plan_mesh(PlanRequest(mesh="dp:2", devices=(0, 1)), machine)
    assert plan.warnings == ()


# ---- several hosts --------------------------------------------------------------------------------------------------

HOSTS = build_target("3*h100:4")


def test_a_device_of_several_hosts_is_named_with_its_host_in_any_case() -> None:
    pool = select_devices(("host-2/3", "HOST-0/1"), HOSTS, {})
    assert pool.indices == (11, 1)
    assert pool.is_named


@pytest.mark.parametrize("name", [1, "1"])
@pytest.mark.parametrize("field", ["devices", "devices.exclude"])
def test_a_local_index_that_several_hosts_have_is_refused_with_names_that_mean_one(name: int | str, field: str) -> None:
    asked = (name,) if field == "devices" else DeviceSelection(exclude=(name,))
    with pytest.raises(PlanInfeasibleError) as caught:
        select_devices(asked, HOSTS, {})
    assert caught.value.errors[0]["field"] == field
    assert "3 devices share (host-0/1, host-1/1, host-2/1)" in caught.value.detail
    for offered in ("host-0/1", "host-1/1", "host-2/1"):
        assert offered in caught.value.hint
        assert len(select_devices((offered,), HOSTS, {}).indices) == 1


def test_a_number_of_one_host_is_its_local_index_as_text_too() -> None:
    assert select_devices(("3", 1), GPUS, {}).indices == (3, 1)
    with pytest.raises(PlanInfeasibleError, match="names device 3 2 times"):
        select_devices((3, "a/3"), GPUS, {})


@given(st.sets(st.integers(0, 11), max_size=11), st.sets(st.integers(0, 11), max_size=11))
def test_all_that_are_well_are_taken_and_the_rest_is_told_by_host(sick: set[int], degraded: set[int]) -> None:
    health = {**dict.fromkeys(degraded, "degraded"), **dict.fromkeys(sick, "unhealthy")}
    pool = select_devices(None, HOSTS, health)
    assert set(pool.indices) == set(range(12)) - sick
    assert pool.left_out == tuple(sorted(sick))
    assert not pool.is_counted
    for notice in pool.notices:
        assert notice.message.endswith(f"{'are' if len(sick) > 1 else 'is'} left out: unhealthy")
        assert all(f"host-{index // 4}/{index % 4}" in notice.message for index in sick)
    assert bool(pool.notices) == bool(sick)


def test_sick_and_excluded_devices_and_those_that_others_have_alone_are_not_counted_on() -> None:
    machine, health = hold(hold_alone(HOSTS, 0), 1), {5: "unhealthy"}

    def choose(count: int) -> tuple[int, ...]:
        asked = DeviceSelection(count=count, exclude=("host-2/0", "host-2/1"))
        return select_devices(asked, machine, health).indices

    with pytest.raises(PlanInfeasibleError) as caught:
        choose(9)
    assert "3 hosts (host-0, host-1, host-2) have 12, of which 2 are excluded and 1 are not well" in caught.value.detail
    assert caught.value.hint == "ask for 8 or fewer"
    assert choose(8) == (1, 2, 3, 4, 6, 7, 10, 11)
    assert choose(7) == (2, 3, 4, 6, 7, 10, 11), "one that is shared is taken last"

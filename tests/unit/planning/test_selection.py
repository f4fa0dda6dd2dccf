"""Which devices a plan may use when others hold some of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.mesh import plan_mesh
from meshwright.planning.selection import select_devices
from meshwright.topology.model import Topology
from meshwright.wire.devices import DeviceProcess
from meshwright.wire.mesh import DeviceSelection, PlanRequest
from tests.fakes.topologies import build_cpu, build_dgx_h100, build_tpu, change_device, hold

TPU, GPUS = build_tpu((2, 4)), build_dgx_h100()


def hold_alone(topology: Topology, index: int) -> Topology:
    return hold(change_device(topology, index, compute_mode="exclusive_process"), index)


ANY = (None, DeviceSelection(exclude=(7,)))


@pytest.mark.parametrize("machine", [hold(hold(TPU, 0), 3), hold_alone(hold_alone(GPUS, 0), 3)])
@pytest.mark.parametrize("asked", ANY)
def test_a_device_that_another_process_has_to_itself_is_left_out_and_told_once(
    machine: Topology, asked: DeviceSelection | None
) -> None:
    pool = select_devices(asked, machine, {})
    assert pool.held == (0, 3)
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


def test_a_taken_device_that_is_named_is_planned_on_and_warned_of() -> None:
    (plan,) = plan_mesh(PlanRequest(mesh="dp:2", devices=(0, 1)), hold(TPU, 0)).plans
    assert [notice.code for notice in plan.warnings] == ["devices_shared"]


def test_shared_devices_are_told_in_one_warning_that_lists_them_by_who_holds_them() -> None:
    machine = hold(hold(hold(GPUS, 0), 1), 5, name="other")
    (plan,) = plan_mesh(PlanRequest(mesh="dp:8"), machine).plans
    assert [notice.code for notice in plan.warnings] == ["devices_shared"]
    assert plan.warnings[0].message == "device 0, 1 is held by python (4321); device 5 is held by other (4321)"

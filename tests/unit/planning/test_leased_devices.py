"""Leased devices are left out of plans, unless they are named or the request brings their lease."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from meshwright.errors import DeviceLeasedError, InvalidRequestError, NotFoundError, PlanInfeasibleError
from meshwright.planning.batch_request import estimate_request
from meshwright.planning.device_selection import ANY_LEASE, select_devices, select_for_lease
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.planning.request import Inventory
from meshwright.topology.model import Topology
from meshwright.wire.base import DeviceSelection
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.devices import DeviceProcess
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.asking import ask_planner
from tests.fakes.topologies import build_dgx_h100
from tests.unit.leases.scene import build_lease

OURS, THEIRS = "lease-ours", "lease-theirs"
EIGHT = build_dgx_h100()


def lease(leases: dict[int, str], held: dict[int, Any] | None = None) -> Topology:
    def change(index: int) -> dict[str, Any]:
        cover = leases.get(index)
        changed: dict[str, Any] = {"lease": build_lease(id=cover, devices=(), owner="slurm") if cover else None}
        return changed | (held or {}).get(index, {})

    devices = tuple(device.model_copy(update=change(index)) for index, device in enumerate(EIGHT.devices))
    return replace(EIGHT, devices=devices)


MIXED = lease({0: OURS, 1: OURS, 2: THEIRS})
TAKEN = {"processes": (DeviceProcess(pid=7, name="train"),), "compute_mode": "exclusive_process"}


@pytest.mark.parametrize(("asked", "own", "chosen"), [
    (None, None, (3, 4, 5, 6, 7)), (None, OURS, (0, 1)), (None, ANY_LEASE, (0, 1, 2, 3, 4, 5, 6, 7)),
    (DeviceSelection(count=4), None, (4, 5, 6, 7)), (DeviceSelection(count=2), OURS, (0, 1)),
    (DeviceSelection(exclude=(7,)), None, (3, 4, 5, 6)), ((2, 3), None, (2, 3)), ((1, 0), OURS, (1, 0)),
])  # fmt: skip
def test_what_others_have_reserved_is_not_chosen(asked: Any, own: str | None, chosen: tuple[int, ...]) -> None:
    found = select_devices(asked, MIXED, {}, own).indices
    assert len(found) == len(chosen)
    assert set(found) == set(chosen) or (isinstance(asked, DeviceSelection) and not set(found) & {0, 1, 2})


def plan(topology: Topology, **fields: Any) -> Plan:
    return plan_mesh(PlanRequest(**fields), topology)


def test_left_out_is_told_with_purpose_and_owner() -> None:
    told = [notice.message for notice in plan(MIXED, mesh="x:-1").warnings if notice.code == "devices_left_out"]
    assert len(told) == 1
    assert f"device 0, 1 is leased by {OURS} (job 7, slurm); device 2 is leased by {THEIRS}" in told[0]


def test_named_is_a_warning_and_the_jobs_own_is_none() -> None:
    def codes(**fields: Any) -> list[str]:
        return [notice.code for notice in plan(MIXED, **fields).warnings]

    assert "devices_leased" in codes(mesh="x:2", devices=(1, 2))
    assert "devices_leased" not in codes(mesh="x:2", devices=(0, 1), lease=OURS)
    assert "devices_leased" not in codes(mesh="x:-1", lease=OURS)


@pytest.mark.parametrize("fields", [{"mesh": "x:6"}, {"mesh": "x:6", "devices": DeviceSelection(count=6)}])
def test_too_few_left_says_which_leases_and_what_works(fields: dict[str, Any]) -> None:
    with pytest.raises(DeviceLeasedError) as caught:
        plan(MIXED, **fields)
    assert OURS in caught.value.detail
    assert THEIRS in caught.value.detail
    assert "use x:5" in caught.value.hint or "ask for 5" in caught.value.hint
    assert f"DELETE /leases/{OURS}" in caught.value.hint


@pytest.mark.parametrize("asked", [None, DeviceSelection(exclude=(0,)), DeviceSelection(count=8)])
def test_where_all_are_leased_the_leases_are_the_reason(asked: DeviceSelection | None) -> None:
    full = lease(dict.fromkeys(range(8), THEIRS))
    with pytest.raises(DeviceLeasedError, match=THEIRS):
        plan(full, mesh="x:-1", devices=asked)
    excluded = DeviceSelection(exclude=asked.exclude) if asked and asked.exclude else None
    assert select_devices(excluded, full, {}, THEIRS).indices


def test_a_lease_that_covers_nothing_is_not_found() -> None:
    for fields in ({}, {"devices": (0,)}, {"devices": DeviceSelection(count=1)}):
        with pytest.raises(NotFoundError, match="covers none of the 8"):
            plan(MIXED, mesh="x:1", lease="lease-gone", **fields)
    with pytest.raises(PlanInfeasibleError, match=f"has 8, of which 2 were chosen by lease {OURS}; the product"):
        plan(MIXED, mesh="x:4", lease=OURS)
    for index in (2, 3):  # another's, and free
        with pytest.raises(PlanInfeasibleError, match=f"devices names {index}; lease {OURS} has device 0, 1; a plan"):
            plan(MIXED, mesh="x:2", devices=(1, index), lease=OURS)


def test_whoever_holds_the_jobs_own_devices_is_the_job() -> None:
    held = lease({0: OURS, 1: OURS}, {0: TAKEN, 5: TAKEN})
    assert select_devices(None, held, {}, OURS).indices == (0, 1)
    pool = select_devices(None, held, {})
    assert pool.indices == (2, 3, 4, 6, 7)
    assert "device 0, 1 is leased" in pool.why_held
    assert "device 5 is held by train (7)" in pool.why_held


def test_a_preemptible_lease_is_taken_over_while_its_job_holds_the_devices() -> None:
    held = lease(dict.fromkeys(range(4), OURS), dict.fromkeys(range(8), TAKEN))
    yields = tuple(
        each.model_copy(update={"lease": each.lease.model_copy(update={"preemptible": True})}) if each.lease else each
        for each in held.devices
    )
    topology, asked = replace(held, devices=yields), DeviceSelection(count=3)
    assert set(select_for_lease(asked, topology, {}, is_preemptible=False)) < {0, 1, 2, 3}
    with pytest.raises(DeviceLeasedError):
        select_for_lease(asked, topology, {}, is_preemptible=True)
    with pytest.raises(InvalidRequestError, match=r"device 4, 5, 6, 7 is held by train \(7\)"):
        select_for_lease(DeviceSelection(count=5), topology, {}, is_preemptible=False)


def test_no_more_leases_are_taken_over_than_have_to_be() -> None:
    held = lease({0: OURS, 1: THEIRS, 2: THEIRS, 3: THEIRS, **dict.fromkeys(range(4, 8), "lease-large")})
    yields = tuple(
        each.model_copy(update={"lease": each.lease.model_copy(update={"preemptible": each.lease.id != THEIRS})})
        for each in held.devices
        if each.lease
    )
    topology = replace(held, devices=yields)
    assert select_for_lease(DeviceSelection(count=4), topology, {}, is_preemptible=False) == (4, 5, 6, 7)
    with pytest.raises(DeviceLeasedError):
        select_for_lease(DeviceSelection(count=6), topology, {}, is_preemptible=False)


def test_a_choice_that_leaves_no_device_is_refused() -> None:
    nothing = DeviceSelection(exclude=tuple(range(8)))
    for ask in (partial(select_for_lease, is_preemptible=False), select_devices):
        with pytest.raises((InvalidRequestError, PlanInfeasibleError), match="8 are excluded") as caught:
            ask(nothing, EIGHT, {})
        assert "exclude fewer" in caught.value.hint


def test_a_mesh_that_only_a_lease_prevents_is_no_mesh_that_is_wrong() -> None:
    with pytest.raises(DeviceLeasedError, match="needs a multiple of 4 devices"):
        plan(lease({0: OURS}), mesh="dp:-1,tp:4")


@pytest.mark.parametrize(("asked", "hint"), [
    (DeviceSelection(count=9), "ask for 8 or fewer when their leases have ended (GET /leases says when)"),
    (DeviceSelection(count=1, exclude=tuple(range(8))), "exclude fewer devices, or name them one by one"),
])  # fmt: skip
def test_where_none_is_free_the_hint_is_no_number_that_is_refused_next(asked: DeviceSelection, hint: str) -> None:
    with pytest.raises(PlanInfeasibleError) as caught:
        select_devices(asked, lease(dict.fromkeys(range(8), THEIRS)), {})
    assert caught.value.hint == hint


def test_no_client_can_name_any_lease() -> None:
    with pytest.raises(ValidationError, match="lease"):
        PlanRequest(mesh="dp:8", lease=ANY_LEASE)


def test_a_search_without_a_device_is_refused_and_the_batch_of_a_step_does_not_ask_whose_they_are() -> None:
    training = {"global_batch_size": 64, "seq_len": 1024}
    ill = Inventory(EIGHT, health=dict.fromkeys(range(8), "unhealthy"))
    with pytest.raises(PlanInfeasibleError, match="8 are not well"):
        ask_planner(ill, model="llama3-8b", training=training)
    with pytest.raises(PlanInfeasibleError, match="8 are not well"):
        estimate_request(BatchSizeRequest(model="llama3-8b"), ill)
    leased = Inventory(lease(dict.fromkeys(range(8), THEIRS), {0: TAKEN}))
    for mesh in ("fsdp:8", None):
        found = estimate_request(BatchSizeRequest(model="llama3-8b", mesh=mesh), leased)
        assert found.recommended is not None

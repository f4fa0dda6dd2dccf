from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanInfeasibleError, RequestError
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import DeviceSelection
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.topologies import (
    build_cpu,
    build_dgx1,
    build_dgx_h100,
    build_pcie,
    build_topology,
    build_tpu,
    change_device,
    drop_devices,
    gpu,
    hold,
    join_topologies,
)

MACHINES = {
    "cpu": build_cpu(8), "dgx h100": build_dgx_h100(), "dgx1": build_dgx1(), "pcie": build_pcie(),
    "v5e": build_tpu((2, 4)), "v3": build_tpu((2, 2), kind="TPU v3", cores=2),
    "v5p": build_tpu((2, 2, 1), kind="TPU v5p"),
}  # fmt: skip


def plan(topology: Topology, mesh: Any, *, health: dict[int, str] | None = None, **more: Any) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh, **more), topology, health=health)


def indices(made: Plan) -> list[int]:
    return [ref.local_index for ref in made.devices]


def codes(made: Plan) -> list[str]:
    return [notice.code for notice in made.warnings]


def refuse(kind: type[RequestError], topology: Topology, mesh: Any, **more: Any) -> RequestError:
    with pytest.raises(kind) as caught:
        plan(topology, mesh, **more)
    return caught.value


@given(st.sampled_from(sorted(MACHINES)), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_every_plan_places_each_device_once_and_counts_them(name: str, sizes: list[int], data: st.DataObject) -> None:
    topology = MACHINES[name]
    count = math.prod(sizes)
    mesh = [(f"a{i}", size) for i, size in enumerate(sizes)]
    if count > len(topology.devices):
        assert "needs" in refuse(PlanInfeasibleError, topology, mesh).detail
        return
    order = data.draw(st.sampled_from(["planned", "given"]))
    made = plan(topology, mesh, allow_unused=True, device_order=order)
    assert len(set(indices(made))) == count == math.prod(made.mesh_shape.values())
    assert list(made.mesh_shape.items()) == [(axis.name, axis.size) for axis in made.axes] == mesh
    assert ("devices_unused" in codes(made)) == (count < len(topology.devices))


@given(st.permutations(range(8)))
def test_the_plan_of_a_machine_does_not_depend_on_the_order_of_its_description(order: list[int]) -> None:
    for name in ("dgx1", "v5e"):
        machine = MACHINES[name]
        at = {old: new for new, old in enumerate(order)}
        links = tuple(link.model_copy(update={"a": at[link.a], "b": at[link.b]}) for link in machine.links)
        shuffled = Topology(tuple(machine.devices[i] for i in order), links, machine.granules)
        assert plan(shuffled, "dp:2,tp:4") == plan(machine, "dp:2,tp:4")


def test_devices_left_idle_are_planned_without_where_somebody_said_so() -> None:
    cpu = MACHINES["cpu"]
    for more in ({"allow_unused": True}, {"devices": [0, 1, 2, 3, 4, 5, 6]}, {"devices": DeviceSelection(count=7)}):
        assert codes(plan(cpu, "dp:3,tp:2", **more)) == ["devices_unused"]
    assert codes(plan(cpu, "dp:3,tp:2", devices=[7, 6, 5, 4, 3, 2])) == []


def test_devices_are_named_by_index_uuid_or_pci_address() -> None:
    names = [3, str(gpu(1)["uuid"]).upper(), "00000000:12:00.0", "0"]
    made = plan(MACHINES["dgx h100"], "dp:4", devices=names, device_order="given")
    assert indices(made) == [3, 1, 2, 0]


@pytest.mark.parametrize(("devices", "words"), [
    ([0, -1], "devices names -1"), (["GPU-none"], "names 'GPU-none'"), ([0, "0"], "names device 0 2 times"),
    ([], "empty list"), (DeviceSelection(count=4, exclude=(0, 1, 2, 3, 4)), "5 are excluded"),
    (DeviceSelection(exclude=("nobody",)), "devices.exclude names 'nobody'"),
])  # fmt: skip
def test_devices_that_cannot_be_meant_are_refused(devices: Any, words: str) -> None:
    error = refuse(PlanInfeasibleError, MACHINES["cpu"], "dp:-1", devices=devices)
    assert words in error.detail
    assert error.hint


def test_given_order_is_kept_and_warned_of_where_another_one_is_faster() -> None:
    made = plan(MACHINES["pcie"], "dp:2,tp:2", devices=[0, 1, 2, 3], device_order="given")
    assert indices(made) == [0, 1, 2, 3]
    assert codes(made) == ["slow_link"]
    assert "axis tp runs over SYS (devices 0, 1)" in made.warnings[0].message
    crossed = plan(MACHINES["pcie"], "dp:2,tp:2", devices=[0, 1, 3, 2], device_order="given")
    assert [notice.message.split(" runs over ")[0] for notice in crossed.warnings] == ["axis tp"]
    assert crossed.warnings[0].hint == 'use device_order "planned"'
    planned = plan(MACHINES["pcie"], "dp:2,tp:2")
    assert indices(planned) == [0, 2, 1, 3]
    assert codes(planned) == []
    assert (planned.device_order, made.device_order) == ("exact", "given")


def test_a_host_whose_devices_are_all_unwell_has_no_plan() -> None:
    error = refuse(PlanInfeasibleError, build_cpu(2), "dp:-1", health={0: "unhealthy", 1: "unhealthy"})
    assert "GET /health" in error.hint
    error = refuse(PlanInfeasibleError, Topology(()), "dp:1")
    assert "has none jax can use" in error.detail


def test_a_device_whose_driver_forbids_computing_is_left_out_unless_named() -> None:
    machine = change_device(MACHINES["pcie"], 0, compute_mode="prohibited")
    assert codes(plan(machine, "dp:3")) == ["devices_left_out"]
    assert "devices_prohibited" in codes(plan(machine, "dp:1", devices=[0]))


def test_held_devices_are_warned_of_and_passed_over_where_there_are_others() -> None:
    machine = hold(hold(MACHINES["dgx h100"], 0), 1, own=True)
    assert codes(plan(machine, "dp:8")) == ["devices_shared"]
    assert "held by python (4321)" in plan(machine, "dp:8").warnings[0].message
    assert indices(plan(machine, "dp:7", devices=DeviceSelection(count=7))) == [1, 2, 3, 4, 5, 6, 7]
    assert codes(plan(machine, "dp:8", devices=DeviceSelection(count=8))) == ["devices_shared"]


def test_devices_of_several_kinds_are_warned_of() -> None:
    machine = build_topology([gpu(0), gpu(1, kind="NVIDIA T400")], {(0, 1): "PHB"})
    assert codes(plan(machine, "dp:2")) == ["devices_differ"]


def test_two_nodes_of_memory_keep_the_inner_axis_inside_one() -> None:
    swapped = change_device(change_device(build_cpu(8, numa_nodes=2), 0, numa_node=1), 7, numa_node=0)
    made = plan(swapped, "dp:2,tp:4")
    nodes = [swapped.devices[index].numa_node for index in indices(made)]
    assert nodes in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


# ---- several granules -----------------------------------------------------------------------------------------------

UNEVEN = join_topologies(build_target("v5e:4x4"), build_target("v5e:2x4"))


@pytest.mark.parametrize(("target", "mesh", "message", "hint"), [
    ("2*h100:8", "tp:2,dp:8", "axis tp crosses 2 hosts, while axis dp", "use dp:8,tp:2"),
    ("4*v5e:2x2", "dp:2,tp:4,sp:2", "axis tp crosses 2 slices, while axis sp", "use dp:2,sp:2,tp:4"),
    ("7*h100:8", "dp:8,tp:7", "axis tp crosses 7 hosts, while axis dp", "use dp:7,tp:8"),
    ("5*h100:2", "a:2,b:5", "axis b crosses 5 hosts, while axis a", "use a:5,b:2"),
])  # fmt: skip
def test_traffic_that_crosses_needlessly_is_warned_of(target: str, mesh: str, message: str, hint: str) -> None:
    topology = build_target(target)
    made = plan(topology, mesh)
    assert codes(made) == ["axis_crosses"]
    assert made.warnings[0].message.startswith(message)
    assert made.warnings[0].hint == hint
    assert codes(plan(topology, hint.removeprefix("use "))) == []
    importance = dict.fromkeys(made.mesh_shape, 1.0)
    assert codes(plan(topology, mesh, importance=importance)) == [], "the caller knows the traffic"


@pytest.mark.parametrize("mesh", ["tp:16", "dp:2,tp:8", "dp:1,tp:16", "fsdp:4,tp:4"])
def test_an_axis_that_cannot_help_crossing_is_not_warned_of(mesh: str) -> None:
    assert codes(plan(build_target("2*h100:8"), mesh)) == []


def test_importance_says_which_axis_may_cross() -> None:
    hosts = build_target("2*h100:8")
    assert [axis.dcn_size for axis in plan(hosts, "dp:4,tp:4").axes] == [2, 1]
    assert [axis.dcn_size for axis in plan(hosts, "dp:4,tp:4", importance={"dp": 8, "tp": 1}).axes] == [1, 2]
    alike = plan(hosts, "dp:4,tp:4", importance={"dp": 1, "tp": 64})
    assert alike.fingerprint == plan(hosts, "dp:4,tp:4").fingerprint


def test_importance_says_which_axis_has_the_links_of_a_torus() -> None:
    v5p = build_target("v5p:4x4x4")
    outer = plan(v5p, "a:4,b:4,c:4", importance={"a": 9, "b": 1, "c": 1}).axes
    assert outer[0].links == max(axis.links or 0 for axis in outer)
    ranked = plan(v5p, "tp:16,dp:4").axes
    assert (ranked[0].group_shape, ranked[0].links) == ((4, 4, 1), 4.0)


def test_granules_of_different_sizes_are_planned_on_and_warned_of() -> None:
    made = plan(UNEVEN, "dp:3,tp:8")
    assert codes(made) == ["granules_uneven"]
    assert "2 granules (slices, or hosts) with 16, 8 of its devices" in made.warnings[0].message
    assert [axis.dcn_size for axis in made.axes] == [2, 1]
    assert sorted((ref.granule, ref.position) for ref in made.devices) == sorted(UNEVEN.places)


def test_as_many_devices_of_each_host_are_taken_where_a_mesh_lies_better_on_them() -> None:
    made = plan(build_target("2*h100:8"), "dp:2,tp:6", devices=DeviceSelection(count=12))
    assert [ref.granule for ref in made.devices].count(0) == 6
    assert codes(made) == []


# ---- any size, any hole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "mesh"), [
    ("v5p:4x4x28", "dp:7,fsdp:16,tp:4"), ("v5p:4x4x28", "x:-1,tp:7"), ("v5p:4x4x20", "pp:5,dp:8,tp:8"),
    ("v5e:8x8", "x:64"), ("v5e:8x16", "a:2,b:2,c:2,d:2,e:2,f:2,g:2"), ("5*v5e:2x4", "dp:5,tp:8"),
    ("7*h100:8", "dp:7,tp:8"), ("v3:4x4", "dp:2,tp:16"), ("tpu7x:4x4x12", "dp:3,fsdp:64,tp:2"),
    ("gb200:72", "dp:9,tp:8"),
])  # fmt: skip
def test_a_mesh_of_any_sizes_has_a_plan_with_each_device_once(target: str, mesh: str) -> None:
    topology = build_target(target)
    made = plan(topology, mesh)
    assert sorted((ref.granule, ref.position) for ref in made.devices) == sorted(topology.places)


@pytest.mark.parametrize(("holes", "mesh"), [({5, 20, 33}, "x:61"), ({0}, "dp:7,tp:9"), ({7, 56}, "dp:2,tp:31")])
def test_a_slice_with_failed_chips_is_planned_on_around_them(holes: set[int], mesh: str) -> None:
    topology = drop_devices(build_target("v5e:8x8"), holes)
    made = plan(topology, mesh)
    gone = {build_target("v5e:8x8").devices[index].coords for index in holes}
    assert not gone & {ref.coords for ref in made.devices}
    assert len({ref.coords for ref in made.devices}) == 64 - len(holes)
    assert {axis.dcn_size for axis in made.axes} == {1}


# ---- every refusal names something that works -----------------------------------------------------------------------

Follow = Callable[[str], dict[str, Any]]


def use_mesh(hint: str) -> dict[str, Any]:
    return {"mesh": re.search(r"use (\S+)", hint)[1].rstrip(";")}  # type: ignore[index]


def use_count(hint: str) -> dict[str, Any]:
    return {"devices": {"count": int(re.search(r"ask for (\d+)", hint)[1])}}  # type: ignore[index]


def use_dcn(hint: str) -> dict[str, Any]:
    return {"dcn": re.search(r"use dcn (\S+),", hint)[1]}  # type: ignore[index]


def use_importance(hint: str) -> dict[str, Any]:
    return {"importance": json.loads(re.search(r"{.*}", hint)[0])}  # type: ignore[index]


def use_names(hint: str) -> dict[str, Any]:
    return {"devices": re.findall(r"host-\d/\d", hint)[:2]}


def leave_out(field: str) -> Follow:
    def follow(hint: str) -> dict[str, Any]:
        assert "leave" in hint
        return {field: None}

    return follow


REFUSED: list[tuple[str, dict[str, Any], Follow]] = [
    ("2*h100:8", {"mesh": "x:17"}, use_mesh), ("64*h100:8", {"mesh": "dp:100,tp:8"}, use_mesh),
    ("64*h100:8", {"mesh": "x:-1,tp:3"}, use_mesh), ("64*h100:8", {"mesh": "x:500"}, use_mesh),
    ("v5p:4x4x28", {"mesh": "dp:64,tp:8"}, use_mesh), ("3*v5e:2x4", {"mesh": "dp:2,tp:8"}, use_mesh),
    ("gb200:72", {"mesh": "tp:64"}, use_mesh), ("v5e:4x4", {"mesh": "x:-1", "devices": {"count": 17}}, use_count),
    ("2*h100:8", {"mesh": "x:-1", "devices": {"count": 99}}, use_count),
    ("2*v5e:4x4", {"mesh": "a:4,b:8", "dcn": "a:4"}, use_dcn),
    ("2*v5e:4x4", {"mesh": "a:5,b:2", "dcn": "a:5", "devices": {"count": 10}}, leave_out("dcn")),
    ("2*v5e:4x4", {"mesh": "a:4,b:8", "dcn": "c:2"}, lambda hint: {"dcn": f"{hint.split()[3].rstrip(',')}:2"}),
    ("2*v5e:4x4", {"mesh": "a:4,b:8", "importance": {"a": 1}}, use_importance),
    ("2*v5e:4x4", {"mesh": "a:4,b:8", "importance": {"a": 1, "c": 2}}, use_importance),
    ("2*h100:8", {"mesh": "x:2", "devices": [3]}, use_names),
    ("2*h100:8", {"mesh": "x:2", "devices": ["host-0/9"]}, use_names),
    ("2*h100:8", {"mesh": "x:2", "devices": []}, leave_out("devices")),
]  # fmt: skip


@pytest.mark.parametrize(("target", "fields", "follow"), REFUSED)
def test_what_a_refusal_offers_works(target: str, fields: dict[str, Any], follow: Follow) -> None:
    topology = build_target(target)
    error = refuse(RequestError, topology, **fields)
    assert error.errors[0]["message"] in error.detail
    again = {**fields, **follow(error.hint)}
    assert plan(topology, **again, allow_unused="devices" in fields).devices

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import DevicesUnusedError, InvalidMeshError, PlanInfeasibleError, RequestError
from meshwright.planning.mesh import plan_mesh
from meshwright.topology.model import Topology
from meshwright.wire.mesh import DeviceSelection, Plan, PlanRequest
from tests.fakes.topologies import (
    build_cpu,
    build_dgx1,
    build_dgx_h100,
    build_mig,
    build_pcie,
    build_topology,
    build_tpu,
    change_device,
    gpu,
    hold,
)

MACHINES = {
    "cpu": build_cpu(8),
    "dgx h100": build_dgx_h100(),
    "dgx1": build_dgx1(),
    "pcie": build_pcie(),
    "v5e": build_tpu((2, 4)),
    "v3": build_tpu((2, 2), kind="TPU v3", cores=2),
    "v5p": build_tpu((2, 2, 1), kind="TPU v5p"),
}


def plan(topology: Topology, mesh: Any, *, health: dict[int, str] | None = None, **more: Any) -> Plan:
    (made,) = plan_mesh(PlanRequest(mesh=mesh, **more), topology, health=health).plans
    return made


def indices(made: Plan) -> list[int]:
    assert made.devices is not None
    return [ref.local_index for ref in made.devices]


def codes(made: Plan) -> list[str]:
    return [notice.code for notice in made.warnings]


def refuse(kind: type[RequestError], topology: Topology, mesh: Any, **more: Any) -> RequestError:
    with pytest.raises(kind) as caught:
        plan(topology, mesh, **more)
    return caught.value


@given(st.sampled_from(sorted(MACHINES)), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_every_plan_places_each_device_once_and_its_product_is_the_count(
    name: str, sizes: list[int], data: st.DataObject
) -> None:
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
    assert made.granules[0].used_positions == tuple(sorted(ref.position for ref in made.devices or ()))


@given(st.permutations(range(8)))
def test_the_plan_of_a_machine_does_not_depend_on_the_order_of_its_description(order: list[int]) -> None:
    for name in ("dgx1", "v5e"):
        machine = MACHINES[name]
        at = {old: new for new, old in enumerate(order)}
        links = tuple(link.model_copy(update={"a": at[link.a], "b": at[link.b]}) for link in machine.links)
        shuffled = Topology(tuple(machine.devices[i] for i in order), links, machine.granules)
        assert plan(shuffled, "dp:2,tp:4") == plan(machine, "dp:2,tp:4")


@pytest.mark.parametrize("mesh", ["dp:2,tp:4", {"dp": 2, "tp": 4}, (("dp", 2), ("tp", 4)), "dp:-1,tp:4", "dp:2,tp:-1"])
def test_string_dict_and_pairs_mean_the_same_mesh(mesh: Any) -> None:
    assert plan(MACHINES["cpu"], mesh) == plan(MACHINES["cpu"], "dp:2,tp:4")


def test_anything_that_makes_another_mesh_makes_another_fingerprint() -> None:
    cpu = MACHINES["cpu"]
    made = [
        plan(cpu, "dp:2,tp:4"),
        plan(cpu, "dp:4,tp:2"),
        plan(cpu, "tp:2,dp:4"),
        plan(cpu, "dp:8"),
        plan(cpu, "dp:2,tp:4", axis_types="explicit"),
        plan(cpu, "dp:2,tp:4", axis_types=("auto", "manual")),
        plan(cpu, "dp:2,tp:4", devices=[1, 0, 2, 3, 4, 5, 6, 7], device_order="given"),
        plan(cpu, "dp:2,tp:2", devices=[0, 1, 2, 3]),
        plan(cpu, "dp:2,tp:2", devices=[4, 5, 6, 7]),
    ]
    assert len({each.fingerprint for each in made}) == len(made)


def test_a_fingerprint_is_the_same_on_a_host_of_another_name() -> None:
    assert plan(build_cpu(8, host="b"), "dp:8").fingerprint == plan(MACHINES["cpu"], "dp:8").fingerprint


def test_axis_types_are_always_told_and_auto_unless_asked() -> None:
    assert plan(MACHINES["cpu"], "dp:2,tp:4").axis_types == {"dp": "auto", "tp": "auto"}
    assert plan(MACHINES["cpu"], "dp:2,tp:4", axis_types={"tp": "Explicit"}).axis_types == {
        "dp": "auto",
        "tp": "explicit",
    }
    refuse(InvalidMeshError, MACHINES["cpu"], "dp:8", axis_types="car")


@pytest.mark.parametrize(
    "mesh", ["", "dp:0", "dp:-2", "dp:-1,tp:-1", "dp:2,dp:4", ":8", "dp:2,,tp:4", "dp:1.5", {}, ()]
)
def test_a_mesh_that_is_none_is_invalid(mesh: Any) -> None:
    refuse(InvalidMeshError, MACHINES["cpu"], mesh)


@pytest.mark.parametrize(
    ("mesh", "words", "hint"),
    [
        ("dp:16", ["needs 16 devices", "host a has 8"], "dp:8"),
        ("dp:3,tp:4", ["needs 12 devices", "host a has 8"], "dp:2,tp:4"),
        ("dp:-1,tp:3", ["the sizes beside dp make 3"], "dp:2,tp:4"),
        ("dp:-1,tp:16", ["at least 16 devices"], "dp:1,tp:8"),
        (f"dp:{2**60}", [str(2**60)], "dp:8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_shapes_that_do(mesh: str, words: list[str], hint: str) -> None:
    error = refuse(PlanInfeasibleError, MACHINES["cpu"], mesh)
    assert all(word in error.detail for word in words)
    assert hint in error.hint
    assert error.errors[0]["field"] == "mesh"
    for shape in error.hint.removeprefix("use ").split(" or "):
        assert plan(MACHINES["cpu"], shape)


def test_devices_left_idle_are_refused_unless_somebody_said_so() -> None:
    cpu = MACHINES["cpu"]
    error = refuse(DevicesUnusedError, cpu, "dp:3,tp:2")
    assert "uses 6 devices; host a has 8; 2 would stay idle" in error.detail
    assert "dp:4,tp:2 or dp:-1,tp:2" in error.hint
    for more in (
        {"allow_unused": True},
        {"devices": [0, 1, 2, 3, 4, 5, 6]},
        {"devices": DeviceSelection(count=7)},
    ):
        assert codes(plan(cpu, "dp:3,tp:2", **more)) == ["devices_unused"]
    assert codes(plan(cpu, "dp:3,tp:2", devices=[7, 6, 5, 4, 3, 2])) == []


def test_devices_are_named_by_index_uuid_or_pci_address() -> None:
    names = [3, str(gpu(1)["uuid"]).upper(), "00000000:12:00.0", "0"]
    made = plan(MACHINES["dgx h100"], "dp:4", devices=names, device_order="given")
    assert indices(made) == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([0, 9], "devices names 9; host a has devices 0, 1, 2"),
        ([0, -1], "devices names -1"),
        (["GPU-none"], "names 'GPU-none'"),
        ([0, 1, 0], "names device 0 2 times"),
        ([0, "0"], "names device 0 2 times"),
        ([], "empty list"),
        (DeviceSelection(count=9), "asks for 9; host a has 8"),
        (DeviceSelection(count=4, exclude=(0, 1, 2, 3, 4)), "5 are excluded"),
        (DeviceSelection(exclude=("nobody",)), "devices.exclude names 'nobody'"),
    ],
)
def test_devices_that_cannot_be_meant_are_refused(devices: Any, words: str) -> None:
    error = refuse(PlanInfeasibleError, MACHINES["cpu"], "dp:-1", devices=devices)
    assert words in error.detail
    assert error.hint


def test_the_rest_of_the_devices_is_the_rest_of_those_that_were_chosen() -> None:
    assert plan(MACHINES["cpu"], "dp:-1", devices=[1, 3, 5]).mesh_shape == {"dp": 3}
    assert plan(MACHINES["cpu"], "dp:-1", devices=DeviceSelection(exclude=(0,))).mesh_shape == {"dp": 7}
    assert plan(MACHINES["cpu"], "dp:-1", health={2: "unhealthy"}).mesh_shape == {"dp": 7}


def test_a_number_of_devices_is_taken_close_together_or_far_apart() -> None:
    v5e = MACHINES["v5e"]
    packed = plan(v5e, "dp:4", devices=DeviceSelection(count=4))
    assert packed.axes[0].group_shape == (2, 2)
    assert sorted(indices(plan(v5e, "dp:2", devices=DeviceSelection(count=2, policy="spread")))) == [0, 7]
    assert sorted(indices(plan(MACHINES["pcie"], "dp:2", devices=DeviceSelection(count=2, exclude=(0,))))) == [1, 3]


def test_given_order_is_kept_and_warned_of_where_another_one_is_faster() -> None:
    made = plan(MACHINES["pcie"], "dp:2,tp:2", devices=[0, 1, 2, 3], device_order="given")
    assert indices(made) == [0, 1, 2, 3]
    assert codes(made) == ["slow_link"]
    assert "axis tp runs over SYS (devices 0, 1)" in made.warnings[0].message
    assert made.score is not None
    assert made.score.cost == made.score.plain_cost
    crossed = plan(MACHINES["pcie"], "dp:2,tp:2", devices=[0, 1, 3, 2], device_order="given")
    assert [notice.message.split(" runs over ")[0] for notice in crossed.warnings] == ["axis tp"]
    assert crossed.warnings[0].hint == 'use device_order "planned"'
    planned = plan(MACHINES["pcie"], "dp:2,tp:2")
    assert indices(planned) == [0, 2, 1, 3]
    assert codes(planned) == []
    assert planned.score is not None
    assert planned.score.cost is not None
    assert planned.score.plain_cost is not None
    assert planned.score.cost < planned.score.plain_cost
    assert planned.score.jax_cost == planned.score.plain_cost, "JAX takes GPUs as they come"


def test_named_devices_over_a_slow_link_are_warned_of_while_a_fast_one_is_free() -> None:
    slow = plan(MACHINES["pcie"], "dp:2", devices=[0, 1])
    assert codes(slow) == ["slow_link"]
    assert slow.warnings[0].hint == "name devices 0, 2"
    assert codes(plan(MACHINES["pcie"], "dp:2", devices=[0, 2])) == []
    assert codes(plan(hold(hold(MACHINES["pcie"], 2), 3), "dp:2", devices=[0, 1])) == []


def test_axes_tell_the_slowest_link_the_hops_and_the_extent() -> None:
    inner = plan(MACHINES["v5e"], "dp:2,tp:4").axes[1]
    assert (inner.link, inner.group_shape, inner.neighbour_hops_max, inner.rings) == ("ici", (1, 4), 1, 0)
    assert (inner.links, inner.dcn_size) == (1.0, 1)
    assert plan(MACHINES["v5e"], "dp:4,tp:2").axes[1].rings == 1
    nvlink = plan(MACHINES["dgx h100"], "dp:8").axes[0]
    assert (nvlink.link, nvlink.bandwidth_bytes_per_s, nvlink.basis) == ("nvlink", 450e9, "declared")
    assert (nvlink.neighbour_hops_max, nvlink.rings, nvlink.group_shape) == (None, None, None)
    pcie = plan(MACHINES["pcie"], "dp:2,tp:2,pp:1").axes
    assert [axis.link for axis in pcie] == ["pcie", "pcie", None]
    assert pcie[0].bandwidth_bytes_per_s is None
    assert plan(MACHINES["cpu"], "dp:8").axes[0].link == "host"


def test_an_open_line_of_chips_closes_no_ring() -> None:
    line = plan(MACHINES["v5e"], "dp:4", devices=[0, 2, 4, 6], device_order="given").axes[0]
    assert (line.group_shape, line.neighbour_hops_max, line.rings) == ((1, 4), 1, 0)
    assert plan(build_tpu((1, 4), wrap=True), "dp:4").axes[0].rings == 2


def test_unhealthy_devices_are_left_out_unless_named() -> None:
    health = {1: "unhealthy", 2: "degraded", 3: "unknown", 4: "initializing"}
    made = plan(MACHINES["cpu"], "dp:7", health=health)
    assert 1 not in indices(made)
    assert codes(made) == ["devices_left_out", "devices_degraded"]
    named = plan(MACHINES["cpu"], "dp:2", devices=[0, 1], health=health)
    assert codes(named) == ["devices_unhealthy"]
    assert "device 1 is unhealthy" in named.warnings[0].message
    error = refuse(PlanInfeasibleError, MACHINES["cpu"], "dp:8", health=health)
    assert "of which 1 are left out" in error.detail
    assert "dp:7" in error.hint


def test_a_host_whose_devices_are_all_unwell_has_no_plan() -> None:
    error = refuse(PlanInfeasibleError, build_cpu(2), "dp:-1", health={0: "unhealthy", 1: "unhealthy"})
    assert "GET /health" in error.hint
    error = refuse(PlanInfeasibleError, Topology(()), "dp:1")
    assert "has none that jax can use" in error.detail


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


def test_mig_instances_are_named_by_uuid_and_warned_of() -> None:
    machine = build_mig()
    error = refuse(PlanInfeasibleError, machine, "dp:1", devices=["00000000:10:00.0"])
    assert "which 3 devices share" in error.detail
    made = plan(machine, "dp:2", devices=[0, 2])
    assert "mig_instances" in codes(made)
    assert "one instance only" in made.warnings[0].message
    assert made.environment["CUDA_VISIBLE_DEVICES"] == ",".join(str(machine.devices[i].uuid) for i in (0, 2))


def test_devices_of_several_kinds_are_warned_of() -> None:
    machine = build_topology([gpu(0), gpu(1, kind="NVIDIA T400")], {(0, 1): "PHB"})
    assert codes(plan(machine, "dp:2")) == ["devices_differ"]


def test_the_list_of_devices_can_be_left_out_and_changes_nothing_else() -> None:
    short = plan(MACHINES["cpu"], "dp:8", include_devices=False)
    assert short.devices is None
    assert short.model_copy(update={"devices": plan(MACHINES["cpu"], "dp:8").devices}) == plan(MACHINES["cpu"], "dp:8")


def test_two_nodes_of_memory_keep_the_inner_axis_inside_one() -> None:
    machine = build_cpu(8, numa_nodes=2)
    shuffled = [change_device(machine, 0, numa_node=1), change_device(machine, 7, numa_node=0)]
    swapped = change_device(shuffled[0], 7, numa_node=0)
    made = plan(swapped, "dp:2,tp:4")
    nodes = [swapped.devices[index].numa_node for index in indices(made)]
    assert nodes in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


def test_a_host_with_very_many_devices_is_planned_in_plain_order() -> None:
    made = plan(build_cpu(300, with_links=False), "dp:-1,tp:4")
    assert made.mesh_shape == {"dp": 75, "tp": 4}
    assert indices(made) == list(range(300))

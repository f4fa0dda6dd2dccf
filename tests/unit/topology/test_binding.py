from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import PlanMismatchError
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.topology.identity import JobDevice, bind, check_plan, digest
from meshwright.topology.join import join_devices
from meshwright.topology.model import Topology
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.fleets import build_host, build_slice
from tests.fakes.jobs import cpu_job, gpu_job, tpu_job
from tests.fakes.topologies import build_cpu, build_dgx_h100, build_tpu


def make_plan(topology: Topology, mesh: str, **more: Any) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh, **more), topology)


def refuse(plan: Plan, job: list[JobDevice]) -> PlanMismatchError:
    with pytest.raises(PlanMismatchError) as caught:
        bind(plan, job)
    assert "hint: " in str(caught.value)
    return caught.value


@given(st.permutations(range(8)), st.permutations(range(8)), st.sampled_from([1, 2, 4, 8]))
def test_positions_bind_whatever_ids_and_order_are(given_order: list[int], listed: list[int], each: int) -> None:
    plan = make_plan(build_cpu(8), "dp:2,tp:4", devices=given_order, device_order="given")
    job = cpu_job(8, each=each)
    binding = bind(plan, [job[i] for i in listed])
    assert list(binding.order) == [job[i].key for i in given_order]
    assert {binding.places[device.key] for device in job} == {(0, i) for i in range(8)}


@given(st.lists(st.integers(0, 7), min_size=1, max_size=7, unique=True))
def test_a_plan_for_a_part_binds_in_a_job_that_sees_the_part_or_the_whole(used: list[int]) -> None:
    plan = make_plan(build_cpu(8), "dp:-1", devices=used, device_order="given")
    whole, part = cpu_job(8), cpu_job(len(used), each=1)
    assert list(bind(plan, whole).order) == [whole[i].key for i in used]
    assert list(bind(plan, part).order) == [part[sorted(used).index(i)].key for i in used]
    assert set(bind(plan, part).places.values()) == {(0, i) for i in used}


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_any_other_number_of_devices_is_refused_with_names(count: int) -> None:
    error = refuse(make_plan(build_cpu(8), "dp:4", devices=[0, 2, 4, 6]), cpu_job(count))
    assert len(error.missing) == max(4 - count, 0)
    assert len(error.surplus) == max(count - 4, 0)
    if count == 3:
        assert error.missing == ("device 6 (position 6 of a)",)


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
def test_uuids_bind_gpus_whatever_process_sees_them(listed: list[int], used: list[int]) -> None:
    dgx = build_dgx_h100()
    plan = make_plan(dgx, "dp:-1", devices=used, device_order="given")
    for seen in (listed, [i for i in listed if i in used]):
        job = gpu_job(dgx, seen)
        by_key = {device.key: device.uuid for device in job}
        assert [by_key[key] for key in bind(plan, job).order] == [dgx.devices[i].uuid for i in used]


def test_other_gpus_than_the_planned_ones_are_named_even_when_their_number_is_right() -> None:
    dgx = build_dgx_h100()
    error = refuse(make_plan(dgx, "dp:2", devices=[0, 1]), gpu_job(dgx, [1, 2]))
    assert error.missing == (f"{dgx.devices[0].uuid} (position 0 of a)",)
    assert error.surplus == (f"{dgx.devices[2].uuid} (id 1 of process 1)",)


def test_two_processes_that_see_the_same_gpu_are_refused() -> None:
    dgx = build_dgx_h100()
    for seen in ([0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1]):
        error = refuse(make_plan(dgx, "dp:2", devices=[0, 1]), gpu_job(dgx, seen))
        assert len(error.surplus) == len(seen) - 2


def test_gpus_whose_uuid_a_process_cannot_tell_are_bound_by_position() -> None:
    plan = make_plan(build_dgx_h100(), "dp:8", devices=[7, 0, 6, 1, 5, 2, 4, 3], device_order="given")
    job = [JobDevice(rank, rank, "boot-1", "gpu") for rank in range(8)]
    assert [process for process, _ in bind(plan, job).order] == [7, 0, 6, 1, 5, 2, 4, 3]


def test_chips_are_bound_by_coordinates() -> None:
    v5e = build_tpu((2, 4))
    plan = make_plan(v5e, "dp:2,tp:2", devices=[7, 5, 2, 0], device_order="given")
    for seen in ([3, 1, 7, 5, 2, 0, 6, 4], [0, 2, 5, 7]):
        job = tpu_job(v5e, seen)
        coords = {device.key: device.coords for device in job}
        assert [coords[key] for key in bind(plan, job).order] == [v5e.devices[i].coords for i in (7, 5, 2, 0)]
    error = refuse(plan, tpu_job(v5e, [0, 2, 5, 6]))
    assert error.missing == ("coords (1,3) core 0 (position 7 of a)",)


def test_a_job_on_another_platform_or_without_devices_is_refused() -> None:
    plan = make_plan(build_dgx_h100(), "dp:8")
    error = refuse(plan, cpu_job(8))
    assert "is for 8 gpu devices; this job's devices are cpu" in str(error)
    assert len(error.missing) == len(error.surplus) == 8
    assert "no device" in str(refuse(plan, []))


def test_a_job_on_more_hosts_than_the_plan_has_is_refused() -> None:
    plan = make_plan(build_cpu(8), "dp:8")
    error = refuse(plan, [*cpu_job(4), *[JobDevice(1, 2048 + i, "boot-2", "cpu") for i in range(4)]])
    assert "is for 1 host(s); this job runs on 2" in str(error)
    assert len(error.surplus) == 4


CORRUPTIONS: dict[str, Any] = {
    "position 7 of granule 0 stands more than once": lambda data: data["devices"][3].update(position=7),
    "contents have the fingerprint": lambda data: data["devices"].reverse(),
    "gpu-0000000": lambda data: data["devices"][3].update(uuid=data["devices"][4]["uuid"]),
    "axis types": lambda data: data.update(axis_types={"dp": "auto"}),
    "it has 7 devices": lambda data: data["devices"].pop(),
    "it has a device at position 0 of granule 4": lambda data: data["devices"][0].update(granule=4),
    "without its devices": lambda data: data.update(devices=[]),
    "it has a device at position 3 of granule 0": lambda data: data["granules"][0].update(device_count=3),
    "have the fingerprint": lambda data: data.update(axis_types={"dp": "auto", "tp": "manual"}),
}


@pytest.mark.parametrize("words", CORRUPTIONS)
def test_a_plan_that_contradicts_itself_is_refused(words: str) -> None:
    dgx = build_dgx_h100()
    data = make_plan(dgx, "dp:2,tp:4").model_dump(mode="json")
    CORRUPTIONS[words](data)
    assert words in str(refuse(Plan.model_validate(data), gpu_job(dgx, list(range(8)))))


def test_a_plan_survives_a_store_that_sorts_the_keys_of_objects() -> None:
    plan = make_plan(build_cpu(8), "tp:4,dp:2")
    data = plan.model_dump(mode="json")
    data["mesh_shape"] = dict(sorted(data["mesh_shape"].items()))
    assert check_plan(Plan.model_validate(data)) == plan.devices


@given(st.sampled_from(["devices", "granules", "axis_types", "platform", "fingerprint"]))
def test_a_digest_tells_plans_apart_that_bind_differently(part: str) -> None:
    plan = make_plan(build_cpu(8), "dp:8")
    other = {"axis_types": {"dp": "manual"}, "platform": "tpu", "fingerprint": "mw1-"}.get(part, ())
    assert digest(plan) == digest(plan.model_copy(update={"environment": {}, "warnings": ()}))
    assert digest(plan) != digest(plan.model_copy(update={part: other}))


def make_fleet_plan(*counts: int, mesh: str = "dp:-1", **more: Any) -> Plan:
    joined = join_devices([build_host(f"n{i}", f"cpu:{count}") for i, count in enumerate(counts)])
    return make_plan(joined.topology, mesh, **more)


@pytest.mark.parametrize("each", [1, 2, 4])
def test_agents_that_share_a_machine_are_granules_of_whole_processes_in_their_order(each: int) -> None:
    plan = make_fleet_plan(4, 4, 4, devices=["n2/1", "n0/0", "n1/3"], device_order="given")
    job = cpu_job(12, each=each)
    binding = bind(plan, job[::-1])
    assert list(binding.order) == [job[i].key for i in (9, 0, 7)]
    assert binding.places == {device.key: (i // 4, i % 4) for i, device in enumerate(job)}


def test_a_job_that_sees_only_the_planned_part_of_each_agent_is_dealt_likewise() -> None:
    plan = make_fleet_plan(4, 4, devices=["n1/3", "n1/1", "n0/0", "n0/2"], device_order="given")
    job = cpu_job(4, each=2)
    assert list(bind(plan, job).order) == [job[i].key for i in (3, 2, 0, 1)]


def test_two_machines_of_which_one_has_two_agents_are_three_granules() -> None:
    plan = make_fleet_plan(2, 2, 4)
    job = [*cpu_job(4, each=2), *(JobDevice(2, 9000 + i, "boot-2", "cpu") for i in range(4))]
    assert list(bind(plan, job).order) == [device.key for device in job]


@pytest.mark.parametrize(("counts", "job"), [
    ((4, 4, 4), cpu_job(12, each=3)), ((4, 4, 4), cpu_job(12, each=12)), ((4, 4, 4), cpu_job(11, each=4)),
    ((4, 4, 4), cpu_job(16, each=4)), ((4, 2), cpu_job(6, each=2)[::-1][:4]),
    ((2, 4), [*cpu_job(4, each=4), *(JobDevice(1, 9000 + i, "boot-1", "cpu") for i in range(2))]),
])  # fmt: skip
def test_processes_that_do_not_make_up_the_granules_are_refused(counts: tuple[int, ...], job: list[JobDevice]) -> None:
    error = refuse(make_fleet_plan(*counts), job)
    assert f"is for {len(counts)} host(s); this job runs on 1" in str(error)
    assert error.missing


@pytest.mark.parametrize("seen", [[4, 5, 6, 7, 0, 1, 2, 3], [0, 3, 6, 1, 4, 7, 2, 5]])
@pytest.mark.parametrize("each", [1, 4])
def test_gpus_in_containers_are_bound_by_uuid_whichever_process_has_them(seen: list[int], each: int) -> None:
    topology = join_devices([build_host("pod-a"), build_host("pod-b")]).topology
    plan = make_plan(topology, "dp:8")
    job = [JobDevice(r // each, r, "boot-1", "gpu", uuid=topology.devices[i].uuid) for r, i in enumerate(seen)]
    by_key = {device.key: device.uuid for device in job}
    assert [by_key[key] for key in bind(plan, job).order] == [ref.uuid for ref in plan.devices]


def test_gpus_in_containers_that_are_not_planned_stand_beside_those_of_their_process() -> None:
    topology = join_devices([build_host("pod-a"), build_host("pod-b")]).topology
    plan = make_plan(topology, "dp:4", devices=["pod-b/2", "pod-a/1", "pod-b/0", "pod-a/3"], device_order="given")
    job = [JobDevice(1 - i // 4, i, "boot-1", "gpu", uuid=device.uuid) for i, device in enumerate(topology.devices)]
    binding = bind(plan, job)
    assert list(binding.order) == [job[i].key for i in (6, 1, 4, 3)]
    assert {key: place[0] for key, place in binding.places.items()} == {d.key: 1 - d.process for d in job}
    others = [JobDevice(0, i, "boot-1", "gpu", uuid=f"GPU-of-others-{i}") for i in range(8)]
    assert "is for 2 host(s); this job runs on 1" in str(refuse(plan, others[:7]))
    assert refuse(plan, [*job[:6], *others[:2]]).missing == (f"{job[6].uuid} (position 2 of pod-b)",)


def test_hosts_of_a_slice_are_one_granule_whose_devices_are_bound_by_coordinates() -> None:
    joined = join_devices(build_slice((2, 2, 2), (2, 2, 1)))
    plan = make_plan(joined.topology, "dp:8")
    job = tpu_job(joined.topology, [5, 2, 7, 0, 1, 6, 3, 4])
    coords = {device.key: device.coords for device in job}
    assert [coords[key] for key in bind(plan, job).order] == [ref.coords for ref in plan.devices]


def test_a_job_of_one_slice_is_no_job_of_two() -> None:
    slices = [build_slice((2, 2, 1), (2, 2, 1), name=name, prefix=name) for name in ("a", "b")]
    joined = join_devices([host for hosts in slices for host in hosts])
    plan = make_plan(joined.topology, "dp:8")
    error = refuse(plan, tpu_job(joined.topology, [0, 1, 2, 3]))
    assert "is for 2 slice(s); this job runs on 1" in str(error)

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright._reference import read_plan
from meshwright._verify.ask import find_hardware
from meshwright.errors import NotCompiledError, PlanInfeasibleError, SettingsError
from meshwright.planning.hardware import GPU_RESERVED_BYTES
from meshwright.planning.request import answer_request
from meshwright.wire.mesh import Plan, PlanRequest, Plans
from tests.fakes.hosts import build_devices


def answer(**fields: object) -> Plans:
    return answer_request(PlanRequest.model_validate({"mesh": "dp:2,tp:-1", "target": "2*h100:8", **fields}))


def on_host(what: str) -> Plan:
    return answer(target=None, topology=build_devices(what)).plans[0]


def test_a_plan_may_be_an_object_a_mapping_json_or_a_file(tmp_path: Path) -> None:
    plans = answer()
    path = tmp_path / "plan.json"
    path.write_text(plans.model_dump_json())
    ways = [plans, plans.plans[0], plans.model_dump(), plans.model_dump_json(), plans.model_dump_json().encode()]
    assert all(read_plan(way) == plans.plans[0] for way in [*ways, path, str(path)])


@pytest.mark.parametrize("wrong", ["{}", b"[]", "no such file.json", {"plans": 3}, "mw1-0123456789abcdef"])
def test_what_is_no_plan_is_refused_with_a_way(wrong: object) -> None:
    with pytest.raises(SettingsError, match="meshwright plan"):
        read_plan(wrong)  # type: ignore[arg-type]


def test_an_answer_without_a_plan_says_why_there_is_none() -> None:
    with pytest.raises(PlanInfeasibleError, match="no reason was given"):
        read_plan(Plans(plans=()))


@pytest.mark.parametrize(("strategy", "fraction"), [("conservative", 0.6), ("balanced", 0.75), ("aggressive", 0.9)])
def test_a_gpu_has_the_memory_that_the_plans_job_may_take(strategy: str, fraction: float) -> None:
    target, mesh, capacity_bytes = find_hardware(answer(memory_strategy=strategy).plans[0], None)
    assert (target.name, target.platform, target.granules, target.shape) == ("2*h100:8", "gpu", 2, (8,))
    assert mesh.shape == {"dp": 2, "tp": 8}
    assert capacity_bytes == int((81_559 * 2**20 - GPU_RESERVED_BYTES) * fraction)


def test_a_tpu_has_what_its_compiler_says() -> None:
    target, mesh, capacity_bytes = find_hardware(answer(target="v5e:2x4").plans[0], None)
    assert (target.chip, target.shape, capacity_bytes, len(mesh.places)) == ("v5e", (2, 4, 1), None, 8)


def test_a_plan_on_a_cpu_host_needs_no_target() -> None:
    target, mesh, _ = find_hardware(on_host("cpu:8"), None)
    assert (target.name, target.shape, target.granules) == ("cpu:8", (8,), 1)
    assert sorted(mesh.places) == [(0, place) for place in range(8)]


def test_a_plan_of_a_host_says_its_hardware_itself() -> None:
    plan = on_host("h100:8")
    assert find_hardware(plan, None)[:2] == find_hardware(plan, "h100:8")[:2]
    there = plan.granules[0].device_memory_bytes or 0
    assert find_hardware(plan, None)[2] == int((there - GPU_RESERVED_BYTES) * 0.75)


def test_a_plan_of_an_older_release_wants_its_hardware_named() -> None:
    plan = on_host("h100:8")
    bare = tuple(granule.model_copy(update={"device_kind": None}) for granule in plan.granules)
    with pytest.raises(NotCompiledError, match="not all of one kind that it names"):
        find_hardware(plan.model_copy(update={"granules": bare}), None)
    assert find_hardware(plan.model_copy(update={"granules": bare}), "h100:8")[0].name == "h100:8"


def test_a_plan_without_the_granules_of_its_devices_is_not_compiled() -> None:
    with pytest.raises(NotCompiledError, match="left out"):
        find_hardware(on_host("h100:8").model_copy(update={"granules": ()}), None)


@pytest.mark.parametrize("target", ["h100:4", "v5e:2x4", "cpu:8"])
def test_hardware_that_has_not_what_the_plan_stands_on_is_refused(target: str) -> None:
    with pytest.raises(SettingsError, match="name hardware that has them all"):
        find_hardware(on_host("h100:8"), target)


def test_a_plan_whose_devices_were_left_out_cannot_be_compiled() -> None:
    with pytest.raises(NotCompiledError, match="include_devices"):
        find_hardware(answer(include_devices=False).plans[0], None)

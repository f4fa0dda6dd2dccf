"""Jobs of real processes on loopback that make planned meshes, or refuse them together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.testing import FakeAgent
from meshwright.wire.mesh import Plan
from tests.process.jobs import LIMIT_S, run_program

PROGRAM = Path(__file__).with_name("mesh_job.py")
COLD_PROGRAM = Path(__file__).with_name("cold_job.py")
SHORT_S = 3.0


def make_plan(mesh: str, count: int, **more: Any) -> Plan:
    with FakeAgent(f"cpu:{count}").client() as client:
        return client.plan(mesh, **more)


def run_job(tmp_path: Path, steps: list[dict[str, Any]], *, processes: int, devices_each: int) -> list[dict[str, Any]]:
    return run_program(PROGRAM, tmp_path, steps, processes=processes, devices_each=devices_each)


def expected_order(plan: Plan, seen: list[list[int]]) -> list[list[int]]:
    if len(seen) == len(plan.devices):
        used = sorted(ref.position for ref in plan.devices)
        return [seen[used.index(ref.position)] for ref in plan.devices]
    return [seen[ref.position] for ref in plan.devices]


def build(plan: Plan | str | dict[str, str], **more: Any) -> dict[str, Any]:
    return {"do": "build", "plan": plan.model_dump_json() if isinstance(plan, Plan) else plan, **more}


def test_two_processes_build_planned_meshes_and_refuse_wrong_ones_together(tmp_path: Path) -> None:
    whole = make_plan("dp:2,tp:4", 8, axis_types="explicit")
    permuted = make_plan("dp:4,tp:2", 8, devices=[5, 0, 7, 2, 1, 6, 3, 4], device_order="given")
    subset = make_plan("dp:2,tp:2", 8, devices=[6, 1, 3, 4], device_order="given")
    large = make_plan("dp:16", 16)
    corrupt = whole.model_dump(mode="json")
    corrupt["devices"][3]["position"] = 7
    moved = whole.model_dump(mode="json")
    moved["devices"][3]["uuid"] = "GPU-of-somebody-else"
    with FakeAgent("h100:8").client() as client:
        gpus = client.plan("dp:2,tp:4")
    steps = [
        {"do": "fingerprint", "shape": [2, 4], "names": ["dp", "tp"]},
        build(whole),
        build(permuted),
        build(permuted, devices=[3, 6, 0, 5, 1, 7, 2, 4]),
        build(subset),
        build(subset, devices=[6, 4, 1, 3]),
        build(subset, devices=[1, 3, 4, 5, 6]),
        build(json.dumps(corrupt)),
        build({"0": whole.model_dump_json(), "1": json.dumps(corrupt)}),
        build({"0": whole.model_dump_json(), "1": permuted.model_dump_json()}),
        build({"0": whole.model_dump_json(), "1": json.dumps(moved)}),
        build(large),
        build(gpus),
        build("neither JSON nor a plan"),
        build(permuted),
    ]
    jobs = run_job(tmp_path, steps, processes=2, devices_each=4)
    assert jobs[0]["seen"] == jobs[1]["seen"]
    seen = jobs[0]["seen"]
    assert [process for process, _ in seen] == [0] * 4 + [1] * 4
    assert [identity for _, identity in seen] != list(range(8)), "ids of the second process should not go on"
    first, second = jobs[0]["answers"], jobs[1]["answers"]
    auto = make_plan("dp:2,tp:4", 8)
    for step, plan in ((0, auto), (1, whole), (2, permuted), (3, permuted), (4, subset), (14, permuted)):
        for answers in (first, second):
            assert answers[step]["fingerprint"] == answers[step]["again"] == plan.fingerprint, step
            assert answers[step]["order"] == expected_order(plan, seen), step
            assert answers[step]["types"] == [kind.capitalize() for kind in plan.axis_types.values()]
    # Four devices were offered, exactly those that the plan uses: taken in their canonical order.
    assert first[5]["order"] == expected_order(subset, seen)
    refused = {
        6: "surplus", 7: "contradicts itself", 8: "process 1: plan mw1-", 9: "hold different plans",
        10: "with other devices", 11: "uses all 16 devices", 12: "is for 8 gpu devices",
        13: "is no file that can be read",
    }  # fmt: skip
    for step, words in refused.items():
        for answers in (first, second):
            assert "hint: " in answers[step]["error"], step
            assert answers[step]["duration_s"] < LIMIT_S / 10
        both = first[step]["error"] + second[step]["error"]
        assert words in both, (step, both)
    assert len(first[11]["missing"]) == len(second[11]["missing"]) == 8
    assert len(first[6]["surplus"]) == len(second[6]["surplus"]) == 1
    assert len(first[12]["missing"]) == 8


def test_a_process_that_does_not_come_is_named_in_time_and_nobody_goes_on(tmp_path: Path) -> None:
    plan = make_plan("dp:2", 2).model_dump_json()
    mixed = build(plan, unplanned=[0], shape=[2], names=["dp"])
    jobs = run_job(
        tmp_path, [mixed, build(plan), build(plan, timeout_s=SHORT_S, only=[0])], processes=2, devices_each=1
    )
    fingerprint = jobs[1]["answers"][1]["fingerprint"]
    for job in jobs:
        assert "process 0 holds no plan; process 1 holds mw1-" in job["answers"][0]["error"]
        assert job["answers"][0]["error"].endswith(f"MESHWRIGHT_PLAN={fingerprint}")
        assert job["answers"][1]["fingerprint"] == fingerprint
    late = jobs[0]["answers"][2]
    assert "process 1 of 2 did not call it" in late["error"]
    assert SHORT_S * 0.9 < late["duration_s"] < SHORT_S + 5


@pytest.mark.exhaustive
def test_a_process_that_comes_late_is_named_in_time_though_jax_waits_for_it_to_start(tmp_path: Path) -> None:
    """The late process comes when the first one has its answer: a limit that is not kept would show no error."""
    plan = make_plan("dp:2,tp:2", 4)
    step = {"plan": plan.model_dump_json(), "timeout_s": SHORT_S, "came": str(tmp_path / "came")}
    first, last = run_program(COLD_PROGRAM, tmp_path, step, processes=2, devices_each=2)
    assert "did not start within 3 s; process 1 of 2 did not call it" in first["error"]
    assert "every process must call build_mesh" in first["error"]
    assert last["error"] == ""
    assert first["devices"] == last["devices"] == [0, 0, 1, 1]


def test_processes_that_share_a_host_and_each_see_all_cpu_devices_are_told_to_divide_them(tmp_path: Path) -> None:
    plan = make_plan("dp:2,tp:4", 8)
    each = int(plan.environment["JAX_NUM_CPU_DEVICES"])
    jobs = run_job(tmp_path, [build(plan)], processes=2, devices_each=each)
    for job in jobs:
        (answer,) = job["answers"]
        assert len(answer["surplus"]) == 8
        assert "with 2 processes on 1 host, start each with JAX_NUM_CPU_DEVICES=4" in answer["error"]


def test_one_process_builds_what_the_code_of_its_plan_builds(tmp_path: Path) -> None:
    whole = make_plan(
        "dp:2,tp:4", 8, devices=[5, 0, 7, 2, 1, 6, 3, 4], device_order="given", axis_types=["auto", "explicit"]
    )
    plain = make_plan("dp:8", 8)
    small = make_plan("dp:16", 16)
    steps = [
        {"do": "code", "plan": whole.code},
        {"do": "fingerprint", "shape": [8], "names": ["dp"]},
        build(whole),
        build(json.dumps({"plans": [json.loads(whole.model_dump_json())]})),
        build(json.dumps({"plans": []})),
        build(small),
        *(build(plain, devices=devices) for devices in ([0, 0, 1], [])),
        build(plain),
    ]
    (job,) = run_job(tmp_path, steps, processes=1, devices_each=8)
    answers = job["answers"]
    assert answers[0] == answers[2] == answers[3]
    assert answers[0]["fingerprint"] == whole.fingerprint
    assert answers[0]["types"] == ["Auto", "Explicit"]
    assert answers[1]["fingerprint"] == plain.fingerprint == answers[8]["fingerprint"]
    assert "no plan is possible" in answers[4]["error"]
    assert len(answers[5]["missing"]) == 8
    assert "more than once" in answers[6]["error"]
    assert "devices is empty" in answers[7]["error"]


def test_the_code_of_a_plan_for_a_part_builds_its_mesh_in_the_environment_of_the_plan(tmp_path: Path) -> None:
    plan = make_plan("dp:3", 8, devices=[6, 1, 4], device_order="given")
    (job,) = run_job(tmp_path, [build(plan), {"do": "code", "plan": plan.code}], processes=1, devices_each=3)
    assert plan.environment["JAX_NUM_CPU_DEVICES"] == "3"
    built, coded = job["answers"]
    assert built == coded
    assert built["fingerprint"] == plan.fingerprint
    assert built["order"] == [[0, 2], [0, 0], [0, 1]]

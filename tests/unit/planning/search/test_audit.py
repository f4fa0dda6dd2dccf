"""Audits: what is said of a mesh is what its step costs, and what is offered in its place costs what is told."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.models import read_model
from meshwright.planning.request import answer_request
from meshwright.planning.search.alternatives import Alternatives
from meshwright.planning.search.answer import Question
from meshwright.planning.search.audit import MATTERS, TIGHT, audit_plan
from meshwright.planning.search.request import build_question
from meshwright.topology.assemble import build_target
from meshwright.wire.cost import AuditRemark, PlanAudit, PlanMemory, PlanSchedule, PlanStepTime
from meshwright.wire.mesh import Plan, PlanRequest

TRAINING: dict[str, Any] = {"sequence_length": 8192, "global_batch": 256}
OFFER = re.compile(
    r'(?:mesh "(?P<mesh>[^"]+)" with )?gradient_accumulation (?P<passes>\d+) and remat (?P<remat>\w+)'
    r"(?: needs (?P<gib>[\d.]+) GiB,| fits, (?P<fits>[\d.]+) GiB:|:) (?P<total>[\d.]+) s a step"
)
"""A mesh or schedule that a hint offers, with what it is told to take."""


def ask(**fields: Any) -> Plan:
    asked = {"target": "8*h100:8", "model": "llama3-70b", "include_devices": False, **fields}
    request = PlanRequest.model_validate({**asked, "training": {**TRAINING, **fields.get("training", {})}})
    return answer_request(request).plans[0]


def audit(**fields: Any) -> tuple[Plan, PlanAudit]:
    """Returns the plan of a mesh, and its audit."""
    asked = {"target": "8*h100:8", "model": "llama3-70b", **fields}
    plan = ask(**asked)
    return plan, audit_plan(plan, build(plan, asked))


def build(plan: Plan, asked: dict[str, Any]) -> Question:
    request = PlanRequest.model_validate({**asked, "training": {**TRAINING, **asked.get("training", {})}})
    assert request.training is not None
    devices = math.prod(plan.mesh_shape.values())
    return build_question(request, read_model(asked["model"]), request.training, build_target(asked["target"]), devices)


def step_of(plan: Plan) -> PlanStepTime:
    assert plan.step_time is not None
    return plan.step_time


def memory_of(plan: Plan) -> PlanMemory:
    assert plan.memory is not None
    return plan.memory


def schedule_of(plan: Plan) -> PlanSchedule:
    assert plan.schedule is not None
    return plan.schedule


def pick(found: PlanAudit, code: str, part: str | None = None) -> AuditRemark:
    """Returns the one remark of this kind."""
    (remark,) = (each for each in found.remarks if each.code == code and part in (None, each.part))
    return remark


MESHES: tuple[dict[str, Any], ...] = (
    {"mesh": "fsdp:4,tp:16"},
    {"mesh": "tp:16,fsdp:4", "training": {"gradient_accumulation": 16}},
    {"mesh": "pp:8,tp:8", "training": {"gradient_accumulation": 16}},
    {"mesh": "fsdp:64", "training": {"gradient_accumulation": 2}},
    {"mesh": "fsdp:64", "target": "v5p:4x4x4"},
    {"mesh": "fsdp:64", "target": "v5p:4x4x4", "training": {"gradient_accumulation": 4, "remat": "minimal"}},
    {"mesh": "data:8,model:8", "target": "2*v5e:4x8", "model": "llama3-8b", "training": {"global_batch": 64}},
)


@pytest.mark.parametrize("fields", MESHES)
def test_shares_are_those_of_the_plan_and_the_greatest_comes_first(fields: dict[str, Any]) -> None:
    plan, found = audit(**fields)
    step = step_of(plan)
    shares = [remark.share_ratio or 0.0 for remark in found.remarks if not remark.code.startswith("memory")]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1 + 1e-6
    assert pick(found, "compute", "compute").share_ratio == pytest.approx(step.compute_s / step.total_s)
    told = {remark.part for remark in found.remarks if remark.code in ("communication", "axis_crosses")}
    roles = {"data": "dp", "model": "tp"}
    spent = {name: step.communication_s.get(roles.get(name, name), 0.0) / step.total_s for name in plan.mesh_shape}
    assert told == {name for name, share in spent.items() if share >= MATTERS}


@pytest.mark.parametrize("fields", MESHES)
def test_what_is_offered_costs_what_is_told_and_fits(fields: dict[str, Any]) -> None:
    plan, found = audit(**fields)
    offers = [(remark, match) for remark in found.remarks for match in OFFER.finditer(remark.hint)]
    assert offers
    for remark, offer in offers:
        training = {"gradient_accumulation": int(offer["passes"]), "remat": offer["remat"]}
        mesh = offer["mesh"] or plan.mesh_shape
        made = ask(**{**fields, "mesh": mesh, "training": {**fields.get("training", {}), **training}})
        assert memory_of(made).fits
        if remark.code.startswith("memory"):
            assert memory_of(made).per_device_bytes <= TIGHT * (memory_of(made).capacity_bytes or 0)
        assert step_of(made).total_s == pytest.approx(float(offer["total"]), rel=0.02)
        if said := offer["gib"] or offer["fits"]:
            assert memory_of(made).per_device_bytes / 2**30 == pytest.approx(float(said), abs=0.06)


@pytest.mark.parametrize("fields", MESHES)
def test_the_best_takes_as_long_as_is_told_and_fits(fields: dict[str, Any]) -> None:
    plan, found = audit(**fields)
    assert found.best is not None
    passes, remat = found.best.schedule.passes, found.best.schedule.remat
    training = {**fields.get("training", {}), "gradient_accumulation": passes, "remat": remat}
    made = ask(**{**fields, "mesh": found.best.mesh_shape, "training": training})
    assert memory_of(made).fits
    assert step_of(made).total_s == pytest.approx(found.best.total_s, rel=0.02)
    assert found.best.schedule.micro_batch == schedule_of(made).micro_batch
    assert found.best.saved_ratio == pytest.approx(max(0.0, 1 - found.best.total_s / step_of(plan).total_s))


# ---- an axis that leaves its host ----------------------------------------------------------------------


def test_a_tensor_axis_that_crosses_hosts_is_told_with_its_share_and_the_best_does_not_cross() -> None:
    plan, found = audit(mesh="fsdp:4,tp:16", training={"gradient_accumulation": 16})
    step = step_of(plan)
    remark = pick(found, "axis_crosses")
    share = step.communication_s["tp"] / step.total_s
    assert (remark.part, remark.share_ratio) == ("tp", pytest.approx(share))
    assert 0.3 < share < 0.7
    assert remark.message.startswith(f"tp:16 crosses hosts, 2 a group: that is {share:.0%} of the step")
    offer = OFFER.search(remark.hint)
    assert offer is not None
    for mesh in (offer["mesh"], found.best.mesh_shape if found.best else None):
        crossing = {axis.name for axis in ask(mesh=mesh).axes if axis.dcn_size > 1}
        assert not crossing & {"tp", "cp", "ep"}
    assert float(offer["total"]) < 0.9 * step.total_s


def test_axes_are_called_as_the_plan_calls_them() -> None:
    fields = {"mesh": "data:8,model:8", "target": "2*v5e:4x8", "model": "llama3-8b", "training": {"global_batch": 64}}
    _, found = audit(**fields)
    remark = pick(found, "communication", "model")
    assert remark.message.startswith("model:8 over ICI is ")
    offers = [match["mesh"] for each in found.remarks for match in OFFER.finditer(each.hint) if match["mesh"]]
    names = {entry.partition(":")[0] for mesh in offers for entry in mesh.split(",")}
    assert found.best is not None
    for called in (names, set(found.best.mesh_shape)):
        assert called & {"data", "model"}
        assert not called & {"dp", "tp"}
    assert all(f"{name}:{size}" in found.best.message for name, size in found.best.mesh_shape.items())


def test_a_mesh_in_another_order_is_priced_in_that_order() -> None:
    fields: dict[str, Any] = {"mesh": "fsdp:32,tp:2", "target": "2*v5e:4x8", "model": "llama3-8b"}
    plain, crossing = ask(**fields), ask(**fields, dcn={"tp": 2})
    assert step_of(crossing).total_s > 1.05 * step_of(plain).total_s
    others = Alternatives(crossing, build(crossing, fields))
    assert others.own.total_s == pytest.approx(step_of(crossing).total_s)
    assert others.vary(("full",)).total_s[0] == pytest.approx(step_of(crossing).total_s)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mesh": "dp:9,tp:16", "target": "2*gb200:72", "training": {"global_batch": 144}}, "crosses NVLink domains"),
        ({"mesh": "fsdp:32,tp:2", "target": "2*v5e:4x8", "dcn": {"tp": 2}, "model": "llama3-8b"}, "crosses slices"),
    ],
)
def test_what_is_crossed_is_called_as_the_hardware_has_it(fields: dict[str, Any], said: str) -> None:
    _, found = audit(**fields)
    assert said in pick(found, "axis_crosses", "tp").message


def test_an_axis_that_stays_inside_is_told_with_its_wires() -> None:
    plan, found = audit(mesh="fsdp:8,tp:8", training={"gradient_accumulation": 32})
    share = step_of(plan).communication_s["tp"] / step_of(plan).total_s
    assert pick(found, "communication", "tp").message.startswith(f"tp:8 over NVLink is {share:.0%} of the step")


# ---- the pipeline --------------------------------------------------------------------------------------


def count_bubble(plan: Plan) -> float:
    return step_of(plan).bubble_s / step_of(plan).total_s


def test_a_bubble_is_told_with_the_fewest_passes_that_shrink_it() -> None:
    # Of 16 passes through 8 stages, 7 of 23 turns are waits: 30 %, (p - 1)/(m + p - 1) of arXiv:2104.04473.
    plan, found = audit(mesh="pp:8,tp:8", training={"gradient_accumulation": 16})
    remark = pick(found, "bubble")
    assert remark.share_ratio == pytest.approx(count_bubble(plan))
    assert remark.share_ratio == pytest.approx(7 / 23, rel=0.1)
    assert "of 23 turns of a stage 7 are waits, with 16 passes" in remark.message
    passes = int(remark.hint.split()[1])
    enough, fewer = (
        ask(mesh="pp:8,tp:8", training={"gradient_accumulation": count}) for count in (passes, passes // 2)
    )
    assert count_bubble(enough) < 0.05 <= count_bubble(fewer)


def test_a_batch_that_is_too_small_for_its_pipeline_is_told_the_least_that_is_not() -> None:
    training = {"global_batch": 16, "gradient_accumulation": 4}
    _, found = audit(mesh="pp:8,tp:8", training=training)
    told = re.search(r"a global_batch of (\d+) in (\d+) passes", pick(found, "bubble").hint)
    assert told is not None
    batch, passes = int(told[1]), int(told[2])
    assert batch == 4 * passes
    enough, fewer = (
        ask(mesh="pp:8,tp:8", training={"global_batch": 4 * count, "gradient_accumulation": count})
        for count in (passes, passes - 1)
    )
    assert count_bubble(enough) < 0.05 <= count_bubble(fewer)


# ---- memory and recompute ------------------------------------------------------------------------------


def test_a_mesh_that_does_not_fit_is_told_first() -> None:
    plan, found = audit(mesh="fsdp:4,tp:16")
    memory, first = memory_of(plan), found.remarks[0]
    assert memory.capacity_bytes
    assert first.code == "memory"
    assert first.share_ratio == pytest.approx(memory.per_device_bytes / memory.capacity_bytes)
    assert first.share_ratio > 1
    assert first.part == max(memory.parts, key=lambda name: memory.parts[name])
    assert found.best is not None
    assert "does not fit" in found.best.message


@pytest.mark.parametrize(("used", "code"), [(0.94, None), (0.96, "memory_tight"), (1.01, "memory")])
def test_memory_is_tight_where_the_reckonings_error_decides(used: float, code: str | None) -> None:
    asked = {"mesh": "fsdp:64", "model": "llama3-70b", "target": "v5p:4x4x4"}
    plan = ask(**asked)
    memory = memory_of(plan)
    tight = memory.model_copy(update={"capacity_bytes": int(memory.per_device_bytes / used), "fits": used <= 1})
    found = audit_plan(plan.model_copy(update={"memory": tight}), build(plan, asked))
    assert {each.code for each in found.remarks if each.code.startswith("memory")} == ({code} if code else set())


def test_what_is_computed_again_is_told_where_less_fits() -> None:
    asked = {"mesh": "fsdp:64", "target": "v5p:4x4x4", "model": "llama3-8b"}
    plan, found = audit(**asked)
    remark = pick(found, "recompute")
    assert remark.share_ratio == pytest.approx(step_of(plan).remat_s / step_of(plan).total_s)
    assert "remat full" in remark.message
    offer = OFFER.search(remark.hint)
    assert offer is not None
    assert offer["remat"] in ("none", "minimal")
    assert float(offer["total"]) < step_of(plan).total_s


def test_where_less_remat_does_not_fit_it_is_told_what_it_needs() -> None:
    _, found = audit(mesh="fsdp:64", training={"gradient_accumulation": 4})
    made = ask(mesh="fsdp:64", training={"gradient_accumulation": 4, "remat": "minimal"})
    assert memory_of(made).fits is False
    gib = memory_of(made).per_device_bytes / 2**30
    assert pick(found, "recompute").hint.startswith(f"less needs {gib:.1f} GiB")


# ---- compute, and the best -----------------------------------------------------------------------------


def test_a_pass_with_too_few_tokens_is_told() -> None:
    # v5p: 459e12 FLOP/s over 2.765e12 bytes/s is 166 tokens a device.
    training = {"sequence_length": 128, "global_batch": 64}
    _, found = audit(mesh="fsdp:64", target="v5p:4x4x4", model="llama3-8b", training=training)
    remark = pick(found, "compute", "micro_batch")
    assert "a pass has 128 tokens a device, and below 166 a matmul on TPU v5p waits" in remark.message
    _, more = audit(mesh="fsdp:64", target="v5p:4x4x4", model="llama3-8b", training={**training, "global_batch": 128})
    assert {each.part for each in more.remarks if each.code == "compute"} == {"compute"}
    _, cut = audit(
        mesh="fsdp:32,cp:2",
        target="v5p:4x4x4",
        model="llama3-8b",
        training={"sequence_length": 256, "global_batch": 32},
    )
    assert "a pass has 128 tokens a device" in pick(cut, "compute", "micro_batch").message


def test_a_mesh_that_is_the_best_is_told_so_and_has_a_remark_all_the_same() -> None:
    best = ask(target="v5p:4x4x4")
    schedule = schedule_of(best)
    training = {"gradient_accumulation": schedule.passes, "remat": schedule.remat}
    plan, found = audit(target="v5p:4x4x4", mesh=best.mesh_shape, training=training)
    assert found.best is not None
    assert (found.best.saved_ratio, found.best.mesh_shape) == (0.0, plan.mesh_shape)
    assert found.best.message.startswith("this is the best")
    assert found.best.total_s == step_of(plan).total_s
    assert pick(found, "compute", "compute").message.startswith("compute is ")


def test_where_no_mesh_fits_there_is_no_best() -> None:
    _, found = audit(mesh="fsdp:4", target="v5e:2x2")
    assert found.best is None
    assert found.remarks[0].hint.startswith("no mesh of these devices needs less")


def test_a_plan_without_a_price_has_no_audit() -> None:
    asked = {"mesh": "fsdp:64", "model": "llama3-70b", "target": "8*h100:8"}
    plan = ask(**asked)
    with pytest.raises(InvalidRequestError, match="the plan has no price") as refused:
        audit_plan(plan.model_copy(update={"step_time": None}), build(plan, asked))
    assert "target" in refused.value.hint

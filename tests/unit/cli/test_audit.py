from __future__ import annotations

from meshwright.cli.audit import write_audit
from meshwright.planning.request import answer_request
from meshwright.wire.cost import AuditAlternative, AuditRemark, PlanAudit, PlanSchedule
from meshwright.wire.mesh import Plan, PlanRequest


def make_plan(audit: PlanAudit | None) -> Plan:
    plan = answer_request(PlanRequest(mesh="dp:8", target="h100:8")).plans[0]
    return plan.model_copy(update={"audit": audit})


def make_remark(message: str, **fields: object) -> AuditRemark:
    return AuditRemark.model_validate({"code": "axis_crosses", "part": "tp", "message": message, **fields})


BEST = AuditAlternative(
    mesh_shape={"fsdp": 8},
    schedule=PlanSchedule(micro_batch=1, passes=2, remat="full", global_batch=16, sequence_length=8),
    total_s=1.0,
    saved_ratio=0.31,
    message="fsdp:8, 2 passes of 1, remat full: 1 s a step, 31% less",
)


def test_each_remark_has_its_share_and_its_hint_and_the_best_comes_last() -> None:
    remarks = (make_remark("tp:16 crosses hosts", share_ratio=0.41, hint='mesh "tp:8"'), make_remark("tight"))
    lines = write_audit(make_plan(PlanAudit(remarks=remarks, best=BEST)))
    assert lines[1:4] == ["    41%  tp:16 crosses hosts", '         → mesh "tp:8"', "         tight"]
    assert lines[-1] == "the best of these devices: fsdp:8, 2 passes of 1, remat full: 1 s a step, 31% less"


def test_a_share_of_memory_is_not_under_where_the_step_goes() -> None:
    short = make_remark("the step needs 113.5 of the 55.9 GiB", code="memory", share_ratio=2.03, hint="remat full")
    remarks = (short, make_remark("tp:16 crosses hosts", share_ratio=0.41))
    lines = write_audit(make_plan(PlanAudit(remarks=remarks, best=BEST)))
    assert lines[:3] == ["memory: the step needs 113.5 of the 55.9 GiB", "  → remat full", ""]
    assert lines[3:5] == ["where the step goes", "    41%  tp:16 crosses hosts"]
    assert "203%" not in "\n".join(lines)


def test_where_nothing_fits_there_is_no_best() -> None:
    lines = write_audit(make_plan(PlanAudit(remarks=(make_remark("too large"),), best=None)))
    assert lines[-1] == "the best of these devices: no mesh of these devices fits"


def test_a_plan_that_was_not_audited_has_no_lines() -> None:
    assert write_audit(make_plan(None)) == []


def test_words_of_an_agent_cannot_steer_the_terminal() -> None:
    lines = write_audit(make_plan(PlanAudit(remarks=(make_remark("a\x1b[2J", hint="b\x1b[2J"),), best=None)))
    assert "\x1b" not in "".join(lines)

"""A plan's answer after a compile: the order of its plans, and its size."""

from __future__ import annotations

import pytest

from meshwright.planning.request import answer_request
from meshwright.wire.mesh import Plans, SearchRequest
from meshwright_agent.answers.plans import RUN_CHARS, PlanAnswer
from tests.fakes.stored import build_plan


def cut(plans: Plans) -> PlanAnswer:
    """Returns the answer as the planner sends it."""
    kept = [(plan.fingerprint, plan.model_dump_json()) for plan in plans.plans]
    return PlanAnswer(plans.model_dump_json(), kept, tasks=({},) * len(plans.plans))


def test_a_runs_result_lacks_the_devices_only_where_they_are_very_many() -> None:
    small = cut(Plans(plans=(build_plan(1),)))
    assert small.cut_for_run() is small
    large = cut(Plans(plans=(build_plan(1, code="x" * RUN_CHARS),)))
    plans = Plans.model_validate_json(large.cut_for_run().text)
    assert plans.plans[0].devices == ()
    assert [notice.code for notice in plans.warnings] == ["devices_left_out"]
    assert "GET /mesh/plan" in plans.warnings[0].hint


@pytest.mark.parametrize(("statuses", "order"), [
    (("does_not_fit", "aborted", "verified", "not_compiled"), [2, 1, 3, 0]),
    (("verified", "does_not_fit", "aborted", "verified"), [0, 3, 2, 1]),
    (("does_not_fit",) * 4, [0, 1, 2, 3]),
])  # fmt: skip
def test_plans_that_the_compiler_refuses_go_behind_those_that_it_passed(
    statuses: tuple[str, ...], order: list[int]
) -> None:
    targets = ["b200:8", "h200:8", "h100:8", "a100:8"]
    asked = {"model": "llama3-8b", "training": {"global_batch_size": 8}, "targets": targets, "fallback": True}
    plans = answer_request(SearchRequest.model_validate(asked))
    said = [f'{{"status":"{status}"}}' for status in statuses]
    found = Plans.model_validate_json(cut(plans).verify(said).text)
    assert [plan.target for plan in found.plans] == [row.target for row in found.comparison]
    assert [plan.target for plan in found.plans] == [targets[place] for place in order]
    assert [plan.verification and plan.verification.status for plan in found.plans] == [statuses[i] for i in order]
    assert f"times the step of {targets[order[0]]}" in found.comparison[1].message
    moved = order != [0, 1, 2, 3] and order[0] != 0
    assert "does not refuse" in found.comparison[0].message or not moved
    assert (found.fallback is None) == moved

"""A plan's answer in pieces of text is, joined, the text of the models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.request import answer_request
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, Plans, SearchRequest
from meshwright.wire.verification import Verification
from meshwright_agent.answers.plans import RUN_CHARS, PlanAnswer
from tests.fakes.stored import build_plan


def cut(plans: Plans) -> PlanAnswer:
    """Returns the answer as the planner sends it."""
    frame = plans.model_copy(update={"plans": ()}).model_dump_json()
    kept = [plan.model_dump_json() for plan in plans.plans]
    fingerprints = [plan.fingerprint for plan in plans.plans]
    return PlanAnswer.of({"frame": frame, "fingerprints": fingerprints, "kept": kept, "shown": None})


plans = st.builds(
    lambda numbers, texts: Plans(
        plans=tuple(build_plan(number, code=texts) for number in numbers), warnings=(Notice(code="c", message=texts),)
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.text() | st.just('"plans":[]'),
)


# ---- with what the compiler says ------------------------------------------------------------------------------------


def cut_tasks(plans: Plans) -> PlanAnswer:
    bare = tuple(plan.model_copy(update={"devices": ()}).model_dump_json() for plan in plans.plans)
    return replace(cut(plans), tasks=({},) * len(plans.plans), bare=bare)


@given(plans=plans, text=st.text() | st.just('"verification":null'))
def test_a_verification_stands_in_every_form_that_is_shown_and_changes_nothing_else(plans: Plans, text: str) -> None:
    said = Verification(status="verified", reason=text)
    filled = cut_tasks(plans).verify([said.model_dump_json()] * len(plans.plans))
    verified = [plan.model_copy(update={"verification": said}) for plan in plans.plans]
    assert filled.write() == plans.model_copy(update={"plans": tuple(verified)}).model_dump_json()
    assert filled.kept == cut_tasks(plans).kept
    assert [Plan.model_validate_json(each).verification for each in filled.bare] == [said] * len(verified)


def test_a_runs_result_lacks_the_devices_only_where_they_are_very_many() -> None:
    small = cut_tasks(Plans(plans=(build_plan(1),)))
    assert small.cut_for_run() is small
    large = cut_tasks(Plans(plans=(build_plan(1, code="x" * RUN_CHARS),)))
    plans = Plans.model_validate_json(large.cut_for_run().write())
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
    found = Plans.model_validate_json(cut_tasks(plans).verify(said).write())
    assert [plan.target for plan in found.plans] == [row.target for row in found.comparison]
    assert [plan.target for plan in found.plans] == [targets[place] for place in order]
    assert [plan.verification and plan.verification.status for plan in found.plans] == [statuses[i] for i in order]
    assert f"times the step of {targets[order[0]]}" in found.comparison[1].message
    moved = order != [0, 1, 2, 3] and order[0] != 0
    assert "does not refuse" in found.comparison[0].message or not moved
    assert (found.fallback is None) == moved

"""A plan's answer in pieces of text is, joined, the text of the models."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, Plans
from meshwright_agent.replies import PlanAnswer, frame_plans, frame_stored
from tests.fakes.stored import build_plan

NOTICE = Notice(code="a", message='"plans":[]', hint="b")


def cut(plans: Plans, *, bare: bool = False) -> PlanAnswer:
    """Returns the answer as the planner sends it."""
    shown = [plan.model_copy(update={"devices": None}).model_dump_json() for plan in plans.plans]
    pieces: dict[str, Any] = {
        "frame": plans.model_copy(update={"plans": ()}).model_dump_json(),
        "fingerprints": [plan.fingerprint for plan in plans.plans],
        "kept": [plan.model_dump_json() for plan in plans.plans],
        "shown": shown if bare else None,
    }
    return PlanAnswer.of(pieces)


plans = st.builds(
    lambda numbers, texts: Plans(
        plans=tuple(build_plan(number, code=texts) for number in numbers),
        warnings=(Notice(code="c", message=texts),),
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.text() | st.just('"plans":[]'),
)


@given(plans=plans)
def test_an_answer_is_written_as_its_models_are(plans: Plans) -> None:
    assert cut(plans).write() == plans.model_dump_json()


def test_what_is_shown_may_lack_the_devices_that_are_kept() -> None:
    answer = cut(Plans(plans=(build_plan(1),)), bare=True)
    assert Plans.model_validate_json(answer.write()).plans[0].devices is None
    assert Plan.model_validate_json(answer.kept[0]).devices is not None


@given(plans=plans)
def test_a_warning_more_stands_behind_those_that_are_there_and_changes_nothing_else(plans: Plans) -> None:
    warned = plans.model_copy(update={"warnings": (*plans.warnings, NOTICE)})
    assert cut(plans).warn(NOTICE).write() == warned.model_dump_json()


def test_a_stored_plan_is_shown_as_a_reply_of_one() -> None:
    plan = build_plan(1)
    assert frame_stored(plan.model_dump_json()) == Plans(plans=(plan,)).model_dump_json()


def test_a_frame_without_plans_stays_one() -> None:
    assert frame_plans(Plans(plans=()).model_dump_json()) == Plans(plans=()).model_dump_json()

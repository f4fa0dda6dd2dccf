"""What each kind of problem makes of the driver."""

from __future__ import annotations

from typing import get_args

import pytest

from meshwright_agent.facts.model import Problem, ProblemKind
from meshwright_agent.health.driver import RULES, judge_driver


def test_a_driver_without_a_problem_is_healthy() -> None:
    assert (judge_driver(()).state, judge_driver(()).action) == ("healthy", "")


@pytest.mark.parametrize("kind", get_args(ProblemKind))
def test_each_kind_of_problem_says_what_to_do(kind: ProblemKind) -> None:
    finding = judge_driver((Problem(kind, "something"),))
    assert (finding.state == "unhealthy") == (kind == "driver_down")
    assert (finding.reason, bool(finding.action)) == ("something", True)
    assert set(RULES) == set(get_args(ProblemKind))


def test_all_problems_are_told_and_each_action_once() -> None:
    finding = judge_driver(
        (Problem("unanswered", "no clock"), Problem("unanswered", "no name"), Problem("driver_down", "no card"))
    )
    assert (finding.state, finding.reason) == ("unhealthy", "no card; no clock; no name")
    assert finding.action.count("doctor") == 1

from __future__ import annotations

import pytest

from meshwright_agent.health.sxids import ALWAYS_FATAL, judge_sxid


@pytest.mark.parametrize("code", [20034, 11001, 24007, 99999])
def test_the_drivers_word_that_it_is_fatal_makes_a_switch_unhealthy_also_with_an_unknown_number(code: int) -> None:
    rule = judge_sxid(code, is_fatal=True)
    assert rule.state == "unhealthy"
    assert "reset" in rule.action


@pytest.mark.parametrize("code", [10003, 12020, 22003, 22011, 23001, 23017])
def test_what_is_always_fatal_is_so_for_the_whole_fabric_whatever_the_line_says(code: int) -> None:
    assert code in ALWAYS_FATAL
    assert "whole fabric" in judge_sxid(code, is_fatal=False).meaning
    assert judge_sxid(code, is_fatal=False).state == "unhealthy"


@pytest.mark.parametrize("code", [11012, 24003, 20001, 22013])
def test_what_the_switch_corrects_or_nvidia_ignores_is_no_fault(code: int) -> None:
    assert judge_sxid(code, is_fatal=False).state is None


@pytest.mark.parametrize("code", [11004, 12028, 19084, 20012])
def test_what_stops_traffic_without_being_fatal_is_degraded_and_says_what_to_do(code: int) -> None:
    rule = judge_sxid(code, is_fatal=False)
    assert rule.state == "degraded"
    assert rule.action


def test_a_number_that_is_not_known_is_told_and_not_passed_over() -> None:
    rule = judge_sxid(28006, is_fatal=False)
    assert rule.state == "degraded"
    assert "Fabric Manager" in rule.action

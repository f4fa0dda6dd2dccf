from __future__ import annotations

import pytest

from meshwright_agent.health.xids import APPLICATION, judge_xid


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_the_applications_own_are_no_fault(code: int) -> None:
    assert code in APPLICATION
    assert judge_xid(code).state is None


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
def test_what_the_catalogue_ends_with_a_reset_or_reboot_is_unhealthy_and_says_how(code: int) -> None:
    rule = judge_xid(code)
    assert rule.state == "unhealthy"
    assert any(word in rule.action for word in ("reset", "reboot"))


@pytest.mark.parametrize("code", [63, 92, 94, 144, 150])
def test_what_a_card_bears_is_degraded(code: int) -> None:
    assert judge_xid(code).state == "degraded"


@pytest.mark.parametrize(("code", "unit"), [(144, "SAW"), (147, "TREX"), (150, "MSE")])
def test_an_nvlink5_error_names_its_unit_and_the_line_to_look_at(code: int, unit: str) -> None:
    rule = judge_xid(code)
    assert (rule.state, rule.meaning) == ("degraded", f"NVLink error ({unit})")
    assert "kernel log's line" in rule.action


@pytest.mark.parametrize("code", [0, 1, 173, 9999])
def test_a_number_that_is_not_known_is_told_and_not_passed_over(code: int) -> None:
    rule = judge_xid(code)
    assert rule.state == "degraded"
    assert "catalogue" in rule.action


@pytest.mark.parametrize("code", [8, 32, 44, 69, 154])
def test_what_ends_with_its_job_is_no_fault(code: int) -> None:
    assert judge_xid(code).state is None

"""Each state of each part, from the figures that lead to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import WORST_FIRST
from meshwright_agent.facts.model import (
    CpuFacts,
    GpuHealth,
    HostFacts,
    MachineFacts,
    NicFacts,
    PciHealth,
    ProblemKind,
    SourceProblem,
)
from meshwright_agent.facts.nvml import Part
from meshwright_agent.health.events import Finding
from meshwright_agent.health.nics import NIC, NIC_RULES, NicView
from meshwright_agent.health.rules import (
    CARD_RULES,
    DRIVER_RULES,
    MAX_RETRIES,
    CardView,
    Rule,
    build_finding,
    evaluate_card,
    evaluate_driver,
    find_worst,
)

NOTHING = HostFacts(MachineFacts("a"), CpuFacts())
COOL = GpuHealth(temperature_celsius=41, slowdown_celsius=87, shutdown_celsius=92, slowdowns=())
CLEAN = GpuHealth(uncorrectable_count=0, uncorrectable_lifetime_count=0, remap_pending=False, remap_failed=False)
WIRED = GpuHealth(
    pcie_width=16, pcie_most_width=16, pcie_generation=5, pcie_most_generation=5, performance_state=0,
    is_computing=True, nvlinks_active=18, nvlink_errors={"replay": 5, "recovery": 2, "crc": 0},
)  # fmt: skip


PORT = NicView(NicFacts("mlx5_0:1", "0000:01:00.0"), siblings=(NicFacts("mlx5_1:1", "0000:02:00.0"),))
VIEWS = {"driver": SourceProblem("unreadable", "no card"), NIC: PORT}


@pytest.mark.parametrize("rule", [*DRIVER_RULES, *CARD_RULES, *NIC_RULES], ids=lambda rule: rule.when)
def test_the_facts_in_the_words_of_each_rule_exist(rule: Rule[Any]) -> None:
    assert build_finding(rule, VIEWS.get(rule.component, CardView(WIRED))).state == rule.state


def state(finding: Finding | None) -> str | None:
    return None if finding is None else finding.state


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "healthy"), ({"temperature_celsius": 86}, "healthy"), ({"temperature_celsius": 87}, "degraded"),
    ({"temperature_celsius": 92}, "unhealthy"),
    ({"slowdown_celsius": None, "shutdown_celsius": None, "temperature_celsius": 120}, "unknown"),
    ({"slowdowns": ("hardware thermal slowdown",)}, "degraded"), ({"slowdowns": ("hardware slowdown",)}, "degraded"),
    ({"slowdowns": ("hardware power brake",)}, "degraded"), ({"slowdowns": None}, "healthy"),
    ({"temperature_celsius": None, "slowdowns": None}, None),
    ({"slowdown_celsius": None, "shutdown_celsius": None, "slowdowns": None}, "unknown"),
    ({"slowdown_celsius": None, "shutdown_celsius": None, "temperature_celsius": None}, "healthy"),
    ({"slowdown_celsius": None, "slowdowns": None}, "healthy"),
])  # fmt: skip
def test_heat_is_judged_by_the_cards_own_limits(changes: dict[str, object], expected: str | None) -> None:
    assert state(evaluate_card("thermal", CardView(replace(COOL, **changes)))) == expected  # type: ignore[arg-type]


HOPPER = GpuHealth(
    temperature_celsius=60, margin_celsius=27, slowdown_margin_celsius=-2, shutdown_margin_celsius=-8, slowdowns=()
)


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "healthy"), ({"margin_celsius": -1}, "healthy"), ({"margin_celsius": -2}, "degraded"),
    ({"margin_celsius": -8}, "unhealthy"),
    ({"margin_celsius": -40, "slowdown_margin_celsius": None, "shutdown_margin_celsius": None}, "unknown"),
    ({"margin_celsius": 1, "slowdown_margin_celsius": None, "slowdowns": None}, "healthy"),
    ({"margin_celsius": -2, "temperature_celsius": None, "slowdowns": None}, "degraded"),
    ({"margin_celsius": None, "slowdowns": None}, "unknown"),
    ({"margin_celsius": 5, "slowdown_celsius": 60}, "degraded"),
])  # fmt: skip
def test_heat_is_judged_by_margins_where_the_driver_tells_those(changes: dict[str, object], expected: str) -> None:
    assert state(evaluate_card("thermal", CardView(replace(HOPPER, **changes)))) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["temperature_celsius", "margin_celsius"])
def test_the_reason_to_drain_a_host_for_heat_stays_the_same_while_it_is_as_hot(field: str) -> None:
    limits = replace(COOL, slowdown_margin_celsius=-2, shutdown_margin_celsius=-8)
    degrees = (92, 93) if field == "temperature_celsius" else (-8, -9)
    first, second = (evaluate_card("thermal", CardView(replace(limits, **{field: each}))) for each in degrees)  # type: ignore[arg-type]
    assert (first, state(first)) == (second, "unhealthy")


@pytest.mark.parametrize(("changes", "words"), [
    ({}, "clocks are not held down; draws at most 700 W"),
    ({"power_limit_watts": 400.0}, "at most 400 W, set below its own 700 W"),
    ({"power_limit_watts": 750.0}, "clocks are not held down; draws at most 750 W"),
    ({"power_default_watts": None}, "at most 700 W"), ({"power_limit_watts": None}, "clocks are not held down"),
    ({"slowdowns": ("hardware thermal slowdown", "hardware power brake")}, "hardware power brake"),
])  # fmt: skip
def test_power_is_told_with_the_heat(changes: dict[str, object], words: str) -> None:
    health = replace(COOL, **({"power_limit_watts": 700.0, "power_default_watts": 700.0} | changes))  # type: ignore[arg-type]
    finding = evaluate_card("thermal", CardView(health))
    assert finding is not None
    assert words in finding.reason
    assert ("set below" in finding.reason) == ("set below" in words)
    assert ("power supplies" in finding.action) == ("slowdowns" in changes)


def test_a_power_limit_alone_is_no_ground_to_call_a_card_well() -> None:
    assert evaluate_card("thermal", CardView(GpuHealth(power_limit_watts=700.0))) is None


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "healthy"), ({"uncorrectable_lifetime_count": 9}, "healthy"), ({"uncorrectable_count": 1}, "unhealthy"),
    ({"remap_pending": True}, "degraded"), ({"remap_failed": True}, "unhealthy"),
    ({"retirement_pending": True}, "degraded"), ({"remap_pending": True, "remap_failed": True}, "unhealthy"),
    ({"remap_pending": None}, "healthy"),
])  # fmt: skip
def test_memory_is_judged_by_what_could_not_be_corrected(changes: dict[str, object], expected: str) -> None:
    finding = evaluate_card("memory", CardView(replace(CLEAN, **changes)))  # type: ignore[arg-type]
    assert state(finding) == expected
    assert finding is not None
    assert (finding.permanence == "permanent") == (expected != "healthy")
    assert ("cannot be read here" in finding.reason) == ("remap_pending" in changes and not changes["remap_pending"])


def test_a_card_that_says_nothing_of_its_memory_is_not_called_healthy() -> None:
    assert evaluate_card("memory", CardView(GpuHealth())) is None


def test_errors_that_were_acknowledged_are_none_until_more_come_or_the_driver_counts_anew() -> None:
    health = replace(CLEAN, uncorrectable_count=2)
    assert state(evaluate_card("memory", CardView(health, baselines={"uncorrectable": 2}))) == "healthy"
    assert state(evaluate_card("memory", CardView(health, baselines={"uncorrectable": 1}))) == "unhealthy"
    assert state(evaluate_card("memory", CardView(health, baselines={"uncorrectable": 5}))) == "unhealthy"


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "healthy"), ({"pcie_width": 8}, "degraded"), ({"pcie_generation": 1}, "degraded"),
    ({"pcie_generation": 1, "is_computing": False}, "healthy"),
    ({"pcie_generation": 1, "performance_state": 8}, "healthy"),
    ({"pcie_width": 8, "is_computing": False, "performance_state": 8}, "degraded"),
    ({"nvlinks_active": 17}, "degraded"), ({"nvlinks_active": 0}, "unhealthy"),
    ({"nvlink_errors": {"replay": 5, "recovery": 3, "crc": 0}}, "degraded"),
    ({"nvlink_errors": {"replay": 5 + MAX_RETRIES, "recovery": 2, "crc": 0}}, "healthy"),
    ({"nvlink_errors": {"replay": 5 + MAX_RETRIES, "recovery": 2, "crc": 1}}, "degraded"),
    ({"nvlink_errors": {"replay": 0, "recovery": 0, "crc": 0}}, "healthy"),
    ({"nvlink_errors": {"replay 4": 5 + MAX_RETRIES, "recovery 4": 9}}, "healthy"),  # a link that returned
])  # fmt: skip
def test_a_link_is_judged_by_what_it_could_be(changes: dict[str, object], expected: str) -> None:
    view = CardView(health=replace(WIRED, **changes), before=WIRED, expected_nvlinks=18)  # type: ignore[arg-type]
    assert state(evaluate_card("link", view)) == expected


def test_recoveries_of_nvlinks_are_not_counted_as_retries() -> None:
    errors = {"replay": 5 + MAX_RETRIES, "recovery": 3, "crc": 0}
    view = CardView(health=replace(WIRED, nvlink_errors=errors), before=WIRED, expected_nvlinks=18)
    assert (view.recoveries, view.retries) == (1, MAX_RETRIES)


@pytest.mark.parametrize(("count", "words"), [(9, "ECC errors, 9 in its life"), (None, "ECC errors")])
def test_errors_of_a_cards_life_are_told_and_no_fault(count: int | None, words: str) -> None:
    finding = evaluate_card("memory", CardView(replace(CLEAN, uncorrectable_lifetime_count=count)))
    assert finding is not None
    assert (finding.state, finding.reason.split(";")[0]) == ("healthy", f"no new uncorrectable {words}")


def test_a_link_that_is_well_is_told_with_its_nvlinks() -> None:
    finding = evaluate_card("link", CardView(health=WIRED, before=WIRED, expected_nvlinks=18))
    assert finding is not None
    assert "18 NVLinks are up" in finding.reason


@pytest.mark.parametrize(("pci", "view", "expected"), [
    (PciHealth(width=16, most_width=16), CardView(), "healthy"),
    (PciHealth(width=4, most_width=16), CardView(), "degraded"),
    (PciHealth(width=16, most_width=8), CardView(), "healthy"),
    (PciHealth(fatal_count=3), CardView(baselines={"fatal": 3}), "healthy"),
    (PciHealth(fatal_count=4), CardView(baselines={"fatal": 3}), "unhealthy"),
    (PciHealth(nonfatal_count=2), CardView(nonfatal_before=1), "degraded"),
    (PciHealth(nonfatal_count=2, width=1, most_width=1), CardView(nonfatal_before=2), "healthy"),
    (PciHealth(nonfatal_count=2, width=1, most_width=1), CardView(), "healthy"),  # read for the first time
    (PciHealth(), CardView(), None),
])  # fmt: skip
def test_sysfs_tells_of_devices_that_nvml_does_not_know(pci: PciHealth, view: CardView, expected: str | None) -> None:
    assert state(evaluate_card("link", replace(view, pci=pci))) == expected


TOLD = {"temperature_celsius": "answered", "remapped_rows": "absent"}


@pytest.mark.parametrize(("part", "answers", "sibling", "words"), [
    ("thermal", TOLD, {}, None),
    ("thermal", {**TOLD, "margin_celsius": "absent"}, {"margin_celsius": "absent"}, None),
    ("thermal", {**TOLD, "margin_celsius": "absent"}, {"margin_celsius": "answered"},
     "nvmlDeviceGetMarginTemperature is not supported here, but on another card of its kind"),
    ("thermal", {**TOLD, "slowdown_celsius": "NVML_ERROR_TIMEOUT", "shutdown_celsius": "NVML_ERROR_TIMEOUT"}, {},
     "nvmlDeviceGetTemperatureThreshold failed: NVML_ERROR_TIMEOUT"),
    ("memory", {**TOLD, "slowdown_celsius": "NVML_ERROR_TIMEOUT"}, {}, None),
    ("memory", {**TOLD, "uncorrectable_count": "absent"}, {"uncorrectable_count": "answered"}, "nvidia-smi -e 1"),
    ("thermal", {"slowdowns": "NVML_ERROR_UNKNOWN"}, {}, "failed: NVML_ERROR_UNKNOWN"),
    ("device", {**TOLD, "pci": "NVML_ERROR_UNKNOWN"}, {}, "nvmlDeviceGetPciInfo failed: NVML_ERROR_UNKNOWN"),
    ("device", {"name": "answered", "recovery": "answered"}, {}, "the driver answers no question about its health"),
    ("device", {}, {}, "the driver answers no question about its health"),
])  # fmt: skip
def test_a_part_whose_question_has_no_answer_is_unknown(
    part: Part, answers: dict[str, str], sibling: dict[str, str], words: str | None
) -> None:
    health = GpuHealth(answers=answers, temperature_celsius=41 if "temperature_celsius" in answers else None)
    view = CardView(health, siblings=(GpuHealth(answers=sibling),))
    found = evaluate_card(part, view)
    if words is None and found is not None:
        assert found.state != "unknown" or "limit" in found.reason
        return
    assert state(found) == (None if words is None else "unknown")
    assert words is None or (found is not None and words in found.reason and found.reason.count("failed") <= 1)


def test_a_lost_card_is_told_as_lost_and_not_as_one_that_does_not_answer() -> None:
    found = evaluate_card("device", CardView(GpuHealth(error="GPU is lost")))
    assert (state(found), found and "answers no question" in found.reason) == ("unhealthy", False)


def test_the_drivers_own_word_is_the_devices() -> None:
    assert evaluate_card("device", CardView(replace(COOL, recovery=""))) is None
    for health in (GpuHealth(error="GPU is lost"), GpuHealth(recovery="reset the GPU")):
        assert state(evaluate_card("device", CardView(health))) == "unhealthy"


FINDINGS = st.builds(Finding, st.sampled_from(WORST_FIRST), st.text(min_size=1, max_size=5))


@given(st.lists(FINDINGS, min_size=1, max_size=6))
def test_the_worst_finding_is_none_better_than_any(findings: list[Finding]) -> None:
    worst = find_worst(findings)
    assert worst is not None
    assert worst.state == min((finding.state for finding in findings), key=WORST_FIRST.index)
    assert all(finding.reason in worst.reason for finding in findings if finding.state != "healthy")


@pytest.mark.parametrize("kind", get_args(ProblemKind))
def test_each_kind_of_problem_says_what_to_do(kind: ProblemKind) -> None:
    finding = evaluate_driver(replace(NOTHING, problems=(SourceProblem(kind, "something"),)))
    assert (finding.state == "unhealthy") == (kind in ("driver_down", "fabric_down", "no_tpu_driver"))
    assert (finding.reason, bool(finding.action)) == ("something", True)


def test_all_problems_are_told_and_each_action_once() -> None:
    told = (("unanswered", "no clock"), ("unanswered", "no name"), ("driver_down", "no card"))
    problems = tuple(SourceProblem(*each) for each in told)  # type: ignore[arg-type]
    finding = evaluate_driver(replace(NOTHING, problems=problems))
    assert (finding.state, finding.reason) == ("unhealthy", "no card; no clock; no name")
    assert finding.action.count("doctor") == 1
    assert evaluate_driver(NOTHING).state == "healthy"

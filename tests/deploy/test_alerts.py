"""Alert rules: made of metrics that there are; each fires when it should, and not when it should not.

Promtool judges them. Each has its row in the runbook.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.promql import find_unknown, list_metrics, run_promtool
from tests.documents import ROOT, Document

FOLDER = ROOT / "deploy" / "monitoring"
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
NAMES = [rule["alert"] for rule in RULES]


def test_promtool_takes_the_rules() -> None:
    run_promtool("check", "rules", "alerts.yaml", cwd=FOLDER)


def test_each_alert_fires_and_does_not_as_its_cases_say() -> None:
    run_promtool("test", "rules", "alerts_test.yaml", cwd=FOLDER)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    cases = [case for test in TESTS for case in test["alert_rule_test"] if case["alertname"] == name]
    assert {bool(case["exp_alerts"]) for case in cases} == {True, False}


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_is_made_of_our_metrics_and_says_what_an_operator_needs(rule: dict[str, Any]) -> None:
    assert find_unknown(rule["expr"], list_metrics()) == []
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["runbook"] == "deploy/RUNBOOK.md#alerts"


def test_the_runbook_says_of_each_alert_what_to_do() -> None:
    rows = Document.read("deploy/RUNBOOK.md").table("Alerts", "alert")
    assert [row[0] for row in rows] == NAMES
    assert all(row[1] for row in rows)

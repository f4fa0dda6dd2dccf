"""The dashboard for Grafana: expressions parse, with metrics and labels that there are; panels do not collide."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.deploy.promql import check_rules, fill_variables, find_unknown, list_metrics
from tests.documents import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "monitoring" / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", ())]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_every_expression_is_made_of_our_metrics_with_labels_that_they_have() -> None:
    known = list_metrics()
    wrong = {title: found for title, target in TARGETS if (found := find_unknown(target["expr"], known))}
    assert wrong == {}


def test_promtool_parses_every_expression(tmp_path: Path) -> None:
    assert len(TARGETS) > 20
    check_rules([fill_variables(target["expr"]) for _, target in TARGETS], tmp_path)


def test_the_data_source_and_the_hosts_are_chosen_by_whoever_looks() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert all(variables[name]["datasource"] == SOURCE for name in ("job", "instance"))
    for panel in (panel for panel in PANELS if panel["type"] != "row"):
        assert panel["datasource"] == SOURCE
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert 'job=~"$job", instance=~"$instance"' in target["expr"]


def test_no_two_panels_overlap() -> None:
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)

"""The Helm chart, rendered by Helm's own engine. Knows nothing of what the chart should say."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"
CHART: Final = DEPLOY / "helm" / "meshwright"
NAME: Final = "meshwright"
DRAIN_TIMEOUT_S: Final = 5.0
"""Within which an agent that is stopped answers what is under way: deploy/RUNBOOK.md, "Drain"."""


def render(values: Mapping[str, Any] | None = None, *, name: str = NAME) -> dict[str, dict[str, Any]]:
    """Returns the manifests of a release by kind, of which there is one each."""
    with helm_python.Chart.load(str(CHART)) as chart:
        rendered = chart.render(dict(values or {}), name=name, namespace=NAME)
    texts = [text for path, text in rendered.items() if not path.endswith(".txt")]
    documents = [yaml.safe_load(text) for text in texts if text.strip()]
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def read_values() -> dict[str, Any]:
    """Returns a copy of the chart's default values, to change and give to `render`."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return copy.deepcopy(values)

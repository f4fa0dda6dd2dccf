"""The Helm chart, rendered by Helm's own engine, and the manifests that stand beside it.

    python -m tests.deploy.charts --write     writes deploy/kubernetes/meshwright.yaml anew

Knows nothing of what the chart should say.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"
CHART: Final = DEPLOY / "helm" / "meshwright"
MANIFESTS: Final = DEPLOY / "kubernetes" / "meshwright.yaml"
NAME: Final = "meshwright"

_HEAD: Final = """\
# What the Helm chart makes of its default values, for clusters without Helm. Made by `python -m tests.deploy.charts
# --write`; a test holds it equal to the chart. Change the image, and make the Secret meshwright-tokens first.
"""


def render_texts(values: Mapping[str, Any] | None = None, *, name: str = NAME) -> list[str]:
    """Returns the manifests of a release as text, in the order of their templates' names."""
    with helm_python.Chart.load(str(CHART)) as chart:
        rendered = chart.render(dict(values or {}), name=name, namespace=NAME)
    texts = [text.strip("\n") for path, text in sorted(rendered.items()) if not path.endswith(".txt")]
    return [text for text in texts if text.strip()]


def render(values: Mapping[str, Any] | None = None, *, name: str = NAME) -> dict[str, dict[str, Any]]:
    """Returns the manifests of a release by kind, of which there is one each."""
    documents = [yaml.safe_load(text) for text in render_texts(values, name=name)]
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def read_values() -> dict[str, Any]:
    """Returns a copy of the chart's default values, to change and give to `render`."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return copy.deepcopy(values)


def write_manifests() -> None:
    """Writes the static manifests."""
    MANIFESTS.write_text(_HEAD + "---\n" + "\n---\n".join(render_texts()) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write_manifests()

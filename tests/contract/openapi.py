"""The HTTP contract as a file in git; `python -m tests.contract.openapi --write` writes it anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from meshwright_agent.agent import Agent
from meshwright_agent.api.app import build_api
from meshwright_agent.settings import Settings
from tests.fakes.stored import build_closed_store

SNAPSHOT = Path(__file__).with_name("openapi.json")


def build_document() -> dict[str, Any]:
    """Returns the document that the agent serves at /openapi.json."""
    document: dict[str, Any] = json.loads(json.dumps(build_api(Agent(Settings(), build_closed_store())).openapi()))
    return document


def main() -> None:
    """Writes the snapshot, unless the contract changed without a new version; one in development may change."""
    document = build_document()
    version = document["info"]["version"]
    if SNAPSHOT.exists():
        held = json.loads(SNAPSHOT.read_text())
        if held != document and held["info"]["version"] == version and not version.endswith(".dev"):
            sys.exit(f"the contract changed but API_VERSION is still {version}: raise it in api/app.py")
    SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"wrote {SNAPSHOT.name}, version {version}")


if __name__ == "__main__":
    main()

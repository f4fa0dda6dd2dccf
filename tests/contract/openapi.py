"""The HTTP contract as a file in git; `python -m tests.contract.openapi --write` writes it anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.agents import RunningAgent, start_agent

SNAPSHOT = Path(__file__).with_name("openapi.json")


def read_document(agent: RunningAgent) -> dict[str, Any]:
    """Returns the document that an agent serves."""
    document: dict[str, Any] = httpx.get(f"{agent.url}/openapi.json").json()
    return document


def main() -> None:
    """Writes the snapshot, unless the contract changed without a new version; one in development may change."""
    with start_agent(cpu_devices=1, ready=False) as agent:
        document = read_document(agent)
    version = document["info"]["version"]
    if SNAPSHOT.exists():
        held = json.loads(SNAPSHOT.read_text())
        if held != document and held["info"]["version"] == version and not version.endswith(".dev"):
            sys.exit(
                f"the contract changed but API_VERSION is still {version}: raise it in service/meshwright_agent/app.py"
            )
    SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"wrote {SNAPSHOT.name}, version {version}")


if __name__ == "__main__":
    main()

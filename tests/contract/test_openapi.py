from __future__ import annotations

import json

import httpx
from openapi_spec_validator import validate

from tests.agents import RunningAgent
from tests.contract.openapi import SNAPSHOT, build_document


def test_the_contract_is_the_one_in_git() -> None:
    held, now = json.loads(SNAPSHOT.read_text()), build_document()
    changed = held != now
    version = now["info"]["version"]
    same_version = held["info"]["version"] == version and not version.endswith(".dev")
    assert not changed, (
        "the HTTP contract changed "
        + ("without a new version: raise API_VERSION in api/app.py, " if same_version else "")
        + "then `make snapshot` and look at the difference"
    )


def test_the_served_document_is_valid_and_the_same(agent: RunningAgent) -> None:
    served = httpx.get(f"{agent.url}/openapi.json").json()
    validate(served)
    assert served["openapi"] == "3.2.0"
    assert served == json.loads(SNAPSHOT.read_text())


def test_every_operation_documents_its_failures_as_problems() -> None:
    for path, operations in build_document()["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)
            assert operation.get("summary"), (method, path)
            assert operation.get("description"), (method, path)

from __future__ import annotations

import json

from openapi_spec_validator import validate

from tests.agents import RunningAgent
from tests.contract.openapi import SNAPSHOT, read_document


def test_the_contract_is_the_one_in_git_and_valid(agent: RunningAgent) -> None:
    held, now = json.loads(SNAPSHOT.read_text()), read_document(agent)
    changed = [
        f"{part} {name}" for part, was, new in (
            ("path", held["paths"], now["paths"]),
            ("schema", held["components"]["schemas"], now["components"]["schemas"]),
        ) for name in sorted({*was, *new}) if was.get(name) != new.get(name)
    ]  # fmt: skip
    assert held == now, f"the contract changed: {changed}; raise API_VERSION (not while it is .dev), `make snapshot`"

    validate(now)
    assert now["openapi"] == "3.2.0"


def test_every_operation_documents_its_failures_as_problems() -> None:
    for path, operations in json.loads(SNAPSHOT.read_text())["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)
            assert operation.get("summary"), (method, path)
            assert operation.get("description"), (method, path)

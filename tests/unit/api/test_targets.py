"""GET /targets: the tables as the client's own module has them, one chip by name, and 304 while they are the same."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from meshwright.topology.targets import list_targets
from meshwright_agent.agent import Agent
from meshwright_agent.api.app import build_api
from meshwright_agent.settings import Settings
from tests.unit.api.asgi import ask
from tests.unit.store.opening import build_closed_store


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return build_api(Agent(Settings(), build_closed_store()))


@pytest.mark.parametrize(
    ("target", "chip"), [("/targets", None), ("/targets?chip=v5p", "v5p"), ("/targets?chip=H100%20SXM", "h100")]
)
def test_the_answer_is_what_the_tables_say(app: FastAPI, target: str, chip: str | None) -> None:
    heard = ask(app, target=target)
    assert (heard.status, heard.headers["content-type"]) == (200, "application/json")
    assert heard.body == list_targets(chip).model_dump_json().encode()


def test_an_etag_of_before_is_not_modified_and_another_is_told_all(app: FastAPI) -> None:
    etag = ask(app, target="/targets?chip=v4").headers["etag"]
    for tags in (etag, f'"x", {etag}', f"W/{etag}"):
        heard = ask(app, target="/targets?chip=v4", headers={"if-none-match": tags})
        assert (heard.status, heard.body, heard.headers["etag"]) == (304, b"", etag)
    assert ask(app, target="/targets?chip=v5p", headers={"if-none-match": etag}).status == 200


def test_a_chip_that_no_table_knows_is_unknown_hardware(app: FastAPI) -> None:
    heard = ask(app, target="/targets?chip=h1000")
    assert (heard.status, heard.document["code"]) == (422, "unknown_hardware")
    assert "h100" in heard.document["hint"]
    assert [entry["field"] for entry in heard.document["errors"]] == ["chip"]


@pytest.mark.parametrize(
    ("query", "field"), [("colour=red", "colour"), ("chip=a&chip=b", "chip"), (f"chip={'x' * 81}", "chip")]
)
def test_a_query_that_is_not_understood_is_refused(app: FastAPI, query: str, field: str) -> None:
    heard = ask(app, target=f"/targets?{query}")
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert [entry["field"] for entry in heard.document["errors"]] == [field]


def test_the_document_has_the_replies_that_there_are(app: FastAPI) -> None:
    operation = app.openapi()["paths"]["/targets"]["get"]
    assert set(operation["responses"]) == {"200", "304", "401", "421", "422"}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Targets")

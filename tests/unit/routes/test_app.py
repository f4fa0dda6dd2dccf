"""The wrapper, problems and access around every route: asked by hand, on an agent that was not started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.types import ASGIApp, Message

from meshwright.errors import InvalidRequestError
from meshwright_agent.app import MAX_BODY_BYTES
from meshwright_agent.auth import Operator, hash_secret, note
from tests.unit.routes.asgi import HOST, JSON, Heard, ask, build_api_alone, build_scope, wrap

OPEN = {"/healthz", "/readyz"}
READ = 3


@pytest.fixture(scope="module")
def api() -> FastAPI:
    return build_api_alone()


@pytest.fixture(scope="module")
def app(api: FastAPI) -> ASGIApp:
    return wrap(api)


@pytest.fixture
def guarded(tmp_path: Path) -> ASGIApp:
    """An agent with a token of each scope: its secret is the scope."""
    tokens = tmp_path / "tokens"
    lines = [f"{scope}er {scope} sha256:{hash_secret(scope).hex()}\n" for scope in ("read", "operate", "admin")]
    tokens.write_text("".join(lines))
    return wrap(build_api_alone(insecure=False, tokens_file=tokens))


def _code(heard: Heard) -> tuple[int, str]:
    assert heard.headers["content-type"] == "application/problem+json", heard.body
    assert heard.document["request_id"] == heard.headers["x-request-id"]
    return heard.status, heard.document["code"]


# ---- access ---------------------------------------------------------------------------------------------------------


def _list_routes(api: FastAPI) -> list[tuple[str, str]]:
    paths = [(path, method) for path, operations in api.openapi()["paths"].items() for method in operations]
    assert len(paths) > 20
    return paths


def test_every_route_but_the_probes_needs_a_scope_and_one_that_changes_something_more_than_read(api: FastAPI) -> None:
    reading = {"/mesh/plan", "/mesh/search", "/batch-size"}
    for path, method in _list_routes(api):
        security = api.openapi()["paths"][path][method].get("security", [])
        scopes = {scope for each in security for scope in each.get("bearer", [])}
        assert bool(scopes) == (path not in OPEN), path
        assert (scopes <= {"read"}) == (method == "get" or path in reading), (path, method)


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/devices", "/metrics", "/web/page.js"])
def test_without_a_token_an_agent_with_tokens_answers_401(guarded: ASGIApp, path: str) -> None:
    refused = ask(guarded, target=path)
    assert _code(refused) == (401, "unauthorized")
    assert refused.headers["www-authenticate"] == 'Bearer, Basic realm="meshwright"'
    for authorization in ("Bearer read", "Basic eDpyZWFk"):  # x:read
        assert ask(guarded, target=path, headers={"Authorization": authorization}).status in {200, 503}


@pytest.mark.parametrize("authorization", ["Bearer wrong", "Basic ?", "Basic eA==", "Token read", "read", "Bearer"])
def test_a_wrong_authorization_is_refused_without_being_shown(guarded: ASGIApp, authorization: str) -> None:
    refused = ask(guarded, target="/runs", headers={"Authorization": authorization})
    assert _code(refused) == (401, "unauthorized")
    assert authorization not in refused.document["detail"]
    assert ("is not one that this agent knows" in refused.document["detail"]) is (authorization == "Bearer wrong")


def test_a_scope_that_is_too_small_is_403_and_names_the_one_that_is_needed(guarded: ASGIApp) -> None:
    refused = ask(guarded, "POST", "/devices/release", headers={"Authorization": "Bearer read"})
    assert _code(refused) == (403, "forbidden")
    assert "needs the scope operate; token:reader has read" in refused.document["detail"]
    body = {"Authorization": "Bearer operate", **JSON}
    acknowledged = ask(guarded, "POST", "/health/acknowledge", headers=body, pieces=[b'{"component":"a","reason":"b"}'])
    assert _code(acknowledged) == (403, "forbidden")


def test_metrics_may_be_public(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch()
    app = wrap(build_api_alone(insecure=False, tokens_file=tmp_path / "tokens", public_metrics=True))
    assert ask(app, target="/metrics").status == 200
    assert ask(app, target="/runs").status == 401


@pytest.mark.parametrize("host", ["evil.example", "agent.evil.example", "xagent"])
def test_another_host_is_421(app: ASGIApp, host: str) -> None:
    assert _code(ask(app, target="/healthz", headers={"Host": host})) == (421, "forbidden")


@pytest.mark.parametrize("host", ["10.1.2.3:8790", "[fd00::1]:80", "localhost", "AGENT:1", "127.0.0.1"])
def test_addresses_and_own_names_are_answered(app: ASGIApp, host: str) -> None:
    assert ask(app, target="/healthz", headers={"Host": host}).status == 200


def test_a_host_that_is_none_or_doubled_is_400(app: ASGIApp) -> None:
    assert _code(ask(app, headers={"Host": "a b"})) == (400, "invalid_request")
    assert _code(ask(app, headers=[(b"host", b"agent"), (b"host", b"agent")])) == (400, "invalid_request")


def test_a_request_with_two_lengths_is_400_and_ends_its_connection(app: ASGIApp) -> None:
    refused = ask(app, "POST", headers={"Content-Length": "1", "Transfer-Encoding": "chunked"})
    assert (_code(refused), refused.headers["connection"]) == ((400, "invalid_request"), "close")


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_a_page_of_another_site_changes_nothing_and_spends_no_planner(app: ASGIApp, headers: dict[str, str]) -> None:
    assert _code(ask(app, "POST", "/devices/release", headers=headers)) == (403, "forbidden")
    assert _code(ask(app, target="/mesh/plan?mesh=tp:4&target=h100:8", headers=headers)) == (403, "forbidden")
    assert ask(app, target="/leases", headers=headers).status == 200
    own = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
    assert ask(app, "DELETE", "/leases/a", headers=own).status != 403


# ---- the audit ------------------------------------------------------------------------------------------------------


def test_each_operation_and_each_refused_one_leaves_one_line(
    guarded: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "meshwright.audit"):
        for number, token in enumerate(("operate", "read", "wrong")):
            headers = {"Authorization": f"Bearer {token}", "X-Request-ID": f"a-{number}"}
            ask(guarded, "DELETE", "/leases/x", headers=headers)
        ask(guarded, "POST", "/placement/bench", headers=JSON | {"X-Request-ID": "a-3"}, pieces=[b"{"])
        ask(guarded, target="/devices", headers={"Authorization": "Bearer admin"})
        ask(guarded, "POST", "/batch-size", headers={"Authorization": "Bearer read", **JSON}, pieces=[b"{}"])
    lines = [each.getMessage() for each in caplog.records if each.name == "meshwright.audit"]
    assert lines[0].startswith("caller=token:operateer scope=operate method=DELETE path=/leases/x status=")
    assert lines[1] == "caller=token:reader scope=read method=DELETE path=/leases/x status=403 request_id=a-1"
    assert lines[2:] == [
        "caller=addr:unknown method=DELETE path=/leases/x status=401 request_id=a-2",
        "caller=addr:unknown method=POST path=/placement/bench status=422 request_id=a-3",
    ]


def test_what_a_route_notes_stands_in_the_line_and_cannot_break_it(caplog: pytest.LogCaptureFixture) -> None:
    api = build_api_alone()

    @api.post("/noted/{name}")
    async def noted(name: str, caller: Operator, http: Request) -> None:
        note(http, [0, 1])
        note(http, lease="a\nb c")

    with caplog.at_level(logging.INFO, "meshwright.audit"):
        ask(wrap(api), "POST", "/noted/x", headers={"X-Request-ID": "n"})
    assert caplog.messages[-1] == (
        'caller=addr:unknown scope=admin method=POST path=/noted/x devices="0,1" '
        r'lease="a\nb c" status=200 request_id=n'
    )


# ---- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mesh/plan", "/placement/bench", "/nowhere"])
def test_a_large_body_is_413_and_is_not_taken_whole(app: ASGIApp, path: str) -> None:
    piece = b"x" * (MAX_BODY_BYTES // 4)
    heard = ask(app, "POST", path, headers=JSON, pieces=[piece] * 100)
    if path == "/nowhere":  # whose answer does not wait for the body
        assert heard.status == 404
        heard = ask(app, "POST", path, headers={**JSON, "content-length": str(MAX_BODY_BYTES + 1)})
    assert _code(heard) == (413, "invalid_request")
    assert heard.pieces_taken < 10


@pytest.mark.parametrize(("headers", "body", "status"), [
    ({}, b"", 422), (JSON, b"", 422), ({}, b"{}", 415), ({"Content-Type": "text/plain"}, b"{}", 415),
])  # fmt: skip
def test_only_a_body_that_was_sent_has_a_wrong_type(
    app: ASGIApp, headers: dict[str, str], body: bytes, status: int
) -> None:
    assert _code(ask(app, "POST", "/mesh/plan", headers=headers, pieces=[body])) == (status, "invalid_request")


# ---- answers --------------------------------------------------------------------------------------------------------


def test_head_of_a_stream_ends(app: ASGIApp) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = build_scope("HEAD", "/events/stream")
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def _build_broken() -> FastAPI:
    api = build_api_alone()

    @api.get("/bug")
    async def fail() -> None:
        raise RuntimeError("a bug of ours")

    @api.get("/busy")
    async def refuse() -> None:
        raise InvalidRequestError("no", retry_after_s=2.4)

    @api.get("/endless", response_class=EventSourceResponse)
    async def stream() -> AsyncIterator[ServerSentEvent]:
        while True:
            yield ServerSentEvent(raw_data="1")

    return api


def test_a_bug_is_a_500_and_its_traceback_stands_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = ask(wrap(_build_broken()), target="/bug")
    assert _code(heard) == (500, "internal")
    assert "a bug of ours" not in heard.document["detail"]
    assert caplog.text.count("RuntimeError: a bug of ours") == 1


def test_a_time_to_come_back_is_a_header_in_whole_seconds() -> None:
    heard = ask(wrap(_build_broken()), target="/busy")
    assert heard.headers["retry-after"] == "3"


async def test_a_listener_that_leaves_while_events_wait_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    left, read = asyncio.Event(), 0

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal read
        read += bool(message.get("body"))
        if read >= READ:
            await asyncio.sleep(0.05)  # the next event waits meanwhile, and one behind it
            left.set()
            await asyncio.sleep(30)

    await asyncio.wait_for(wrap(_build_broken())(build_scope("GET", "/endless"), receive, send), 30)
    assert read >= READ
    assert "Traceback" not in caplog.text

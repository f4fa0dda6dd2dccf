from __future__ import annotations

import asyncio
import json
from itertools import repeat
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Query
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from meshwright.errors import DeviceBusyError
from meshwright_agent.api.dependencies import needs
from meshwright_agent.api.gate import Gate, JsonRoute, PlainRoute, read_body, refuse_other_sites
from meshwright_agent.api.problem import install_handlers
from meshwright_agent.bodies import parse_body
from tests.unit.api.asgi import JSON, LIMIT_BYTES, Heard, ask, build_doorkeeper, build_small_app

Observed = list[tuple[str, str, int, float]]


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: Any = None


async def _answer_bare(request: Request) -> Response:
    limit_bytes = request.app.state.agent.settings.body_limit_bytes
    question = parse_body(await read_body(request, limit_bytes, setting="MESHWRIGHT_BODY_LIMIT_BYTES"), Question)
    return Response(json.dumps({"value": question.value}), media_type="application/json")


async def _answer_with_framework(question: Question) -> dict[str, Any]:
    return {"value": question.value}


async def _greet(request: Request) -> Response:
    match request.query_params.get("mood"):
        case "busy":
            raise DeviceBusyError("process 7 holds it", hint="stop it", retry_after_s=2.5)
        case "broken":
            raise RuntimeError("no such luck")
        case _:
            return PlainTextResponse("hello")


@pytest.fixture(scope="module")
def app() -> FastAPI:
    """The same question at /framework (a JsonRoute) and at /bare (a plain route), and a greeting."""
    app = build_small_app()
    router = APIRouter(route_class=JsonRoute)
    router.post("/framework", openapi_extra=needs("read"))(_answer_with_framework)
    router.get("/things/{name}")(_echo_name)
    app.include_router(router)
    app.router.routes[:0] = [
        PlainRoute("/bare", _answer_bare, methods=["POST"], openapi_extra=needs("read")),
        PlainRoute("/greeting", _greet),
    ]
    return app


async def _echo_name(name: str) -> dict[str, str]:
    return {"name": name}


def _gated(app: FastAPI) -> tuple[Gate, Observed]:
    observed: Observed = []
    plain = [route for route in app.routes if isinstance(route, PlainRoute)]
    gate = Gate(app, observe=lambda *seen: observed.append(seen), plain=plain, doorkeeper=build_doorkeeper())
    return gate, observed


both_kinds = pytest.mark.parametrize("path", ["/framework", "/bare"])


# ---- request ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sane", ["trace-7", "a", "0:1.2_3-4", "x" * 128])
def test_a_callers_sane_id_comes_back_in_the_header_and_in_a_problem(app: FastAPI, sane: str) -> None:
    gate, _ = _gated(app)
    assert ask(gate, target="/greeting", headers={"X-Request-ID": sane}).headers["x-request-id"] == sane
    refused = ask(gate, target="/nowhere", headers={"X-Request-ID": sane})
    assert refused.document["request_id"] == refused.headers["x-request-id"] == sane


@pytest.mark.parametrize("wild", ["", " ", "x" * 129, "a b", "a\tb", "<script>", "ä", "id\x00", 'a"b', "a\r\nb: c"])
def test_a_wild_id_is_replaced_so_that_it_can_stand_in_a_log(app: FastAPI, wild: str) -> None:
    gate, _ = _gated(app)
    given_id = ask(gate, target="/greeting", headers={"X-Request-ID": wild}).headers["x-request-id"]
    assert given_id != wild
    assert len(given_id) == 16
    assert given_id.isalnum()


def test_each_request_without_an_id_gets_one_of_its_own(app: FastAPI) -> None:
    gate, _ = _gated(app)
    ids = {ask(gate, target="/greeting").headers["x-request-id"] for _ in range(50)}
    assert len(ids) == 50


# ---- what is counted ------------------------------------------------------------------------------------------------


def test_a_request_is_counted_once_by_the_template_of_its_route_not_by_its_path(app: FastAPI) -> None:
    gate, observed = _gated(app)
    for name in ("a", "b%20c", "d"):
        ask(gate, target=f"/things/{name}")
    assert [seen[:3] for seen in observed] == [("/things/{name}", "GET", 200)] * 3
    assert all(seconds >= 0 for *_, seconds in observed)


def test_plain_routes_are_counted_by_their_path_and_paths_that_are_none_as_unmatched(app: FastAPI) -> None:
    gate, observed = _gated(app)
    for target in ("/greeting", "/greeting?mood=busy", "/nowhere", "/wp-admin"):
        ask(gate, target=target)
    assert [seen[:3] for seen in observed] == [
        ("/greeting", "GET", 200),
        ("/greeting", "GET", 409),
        ("unmatched", "GET", 404),
        ("unmatched", "GET", 404),
    ]


def test_an_application_that_dies_is_counted_as_500_and_dies_on() -> None:
    async def die(scope: Scope, receive: Receive, send: Send) -> None:
        raise OSError("gone")

    app = build_small_app()
    app.mount("/mounted", die)
    gate, observed = _gated(app)
    with pytest.raises(OSError, match="gone"):
        ask(gate, target="/mounted/x")
    assert [seen[:3] for seen in observed] == [("unmatched", "GET", 500)]


def test_what_is_no_request_passes_the_gate_untouched(app: FastAPI) -> None:
    gate, observed = _gated(app)
    said: list[str] = []

    async def receive() -> Message:
        return {"type": "lifespan.shutdown" if said else "lifespan.startup"}

    async def send(message: Message) -> None:
        said.append(message["type"])

    asyncio.run(gate({"type": "lifespan"}, receive, send))
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert observed == []


# ---- the size of bodies ---------------------------------------------------------------------------------------------


def _body(size: int) -> bytes:
    return json.dumps({"value": "x" * (size - len('{"value": ""}'))}).encode()


@both_kinds
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(app: FastAPI, path: str, announced: bool) -> None:
    def post(size: int) -> Heard:
        body = _body(size)
        assert len(body) == size
        pieces = [body[start : start + 100] for start in range(0, size, 100)]
        size_said = {"content-length": str(size)} if announced else {"transfer-encoding": "chunked"}
        return ask(app, "POST", path, headers=JSON | size_said, pieces=pieces)

    assert post(LIMIT_BYTES).status == 200
    refused = post(LIMIT_BYTES + 1)
    assert (refused.status, refused.document["code"]) == (413, "body_too_large")
    assert str(LIMIT_BYTES) in refused.document["detail"]


@both_kinds
def test_a_body_announced_as_too_large_is_refused_before_it_is_read(app: FastAPI, path: str) -> None:
    headers = JSON | {"content-length": str(10**12)}
    heard = ask(app, "POST", path, headers=headers, pieces=repeat(b"x", 10_000))
    assert (heard.status, heard.pieces_taken) == (413, 0)


@both_kinds
def test_a_long_body_without_a_length_is_read_no_further_than_the_limit(app: FastAPI, path: str) -> None:
    heard = ask(app, "POST", path, headers=JSON | {"transfer-encoding": "chunked"}, pieces=repeat(b"x" * 100, 10_000))
    assert heard.status == 413
    assert heard.pieces_taken <= LIMIT_BYTES // 100 + 2


@both_kinds
def test_a_body_longer_than_it_announced_is_measured_not_believed(app: FastAPI, path: str) -> None:
    headers = JSON | {"content-length": "10"}
    assert ask(app, "POST", path, headers=headers, pieces=[_body(LIMIT_BYTES + 1)]).status == 413


@both_kinds
@pytest.mark.parametrize("length", ["many", "-5", "１２", "1e3", "0x10"])
def test_a_content_length_that_is_no_number_is_not_believed_either(app: FastAPI, path: str, length: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length.encode())]
    assert ask(app, "POST", path, headers=headers, pieces=[b'{"value": 1}']).status == 200
    assert ask(app, "POST", path, headers=headers, pieces=[_body(LIMIT_BYTES + 1)]).status == 413


@both_kinds
def test_a_body_in_single_bytes_is_put_together_again(app: FastAPI, path: str) -> None:
    body = json.dumps({"value": ["ä", 1, None]}, ensure_ascii=False).encode()
    heard = ask(app, "POST", path, headers=JSON, pieces=[body[n : n + 1] for n in range(len(body))])
    assert heard.document == {"value": ["ä", 1, None]}


# ---- strict JSON ----------------------------------------------------------------------------------------------------

NOT_JSON: dict[str, bytes] = {
    "a name twice": b'{"value": 1, "value": 2}',
    "a name twice further in": b'{"value": [{"a": {"b": 1, "b": 1}}]}',
    "NaN": b'{"value": NaN}',
    "Infinity": b'{"value": Infinity}',
    "minus Infinity": b'{"value": [-Infinity]}',
    "nothing": b"",
    "half of it": b'{"value": ',
    "two of it": b"{}{}",
    "single quotes": b"{'value': 1}",
    "a comment": b'{"value": 1 /* one */}',
    "a trailing comma": b'{"value": 1,}',
    "not UTF-8 outside a string": b'\xff\xfe{"value": 1}',
    "too deep": b'{"value":' + b"[" * 100_000,
    "a number of 5000 digits": b'{"value": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("wrong", NOT_JSON)
def test_what_is_no_json_is_refused_by_both_kinds_of_route_alike(wrong: str) -> None:
    app = build_small_app(limit_bytes=1 << 20)
    router = APIRouter(route_class=JsonRoute)
    router.post("/framework", openapi_extra=needs("read"))(_answer_with_framework)
    app.include_router(router)
    app.router.routes[:0] = [PlainRoute("/bare", _answer_bare, methods=["POST"], openapi_extra=needs("read"))]
    framework, bare = (
        ask(app, "POST", path, headers=JSON, pieces=[NOT_JSON[wrong]]) for path in ("/framework", "/bare")
    )
    for heard in (framework, bare):
        assert (heard.status, heard.document["code"]) == (422, "invalid_request"), heard.document
        assert heard.document["errors"][0]["field"] == "body"
    if wrong != "nothing":  # the framework says "required", the plain route what the parser says
        assert framework.document == bare.document


@both_kinds
@pytest.mark.parametrize("name", ["colour", "query", "path", "header", "body"])
def test_a_field_that_is_not_known_is_named_whatever_it_is_called(app: FastAPI, path: str, name: str) -> None:
    heard = ask(app, "POST", path, headers=JSON, pieces=[json.dumps({name: 1}).encode()])
    assert heard.status == 422
    assert heard.document["errors"] == [{"field": name, "message": "unknown field"}]


def test_a_doubled_name_is_named(app: FastAPI) -> None:
    heard = ask(app, "POST", "/bare", headers=JSON, pieces=[NOT_JSON["a name twice"]])
    assert "'value' stands twice" in heard.document["detail"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(value=json_values, ascii_only=st.booleans())
def test_what_is_json_arrives_as_it_was_sent(value: Any, ascii_only: bool) -> None:
    app = build_small_app(limit_bytes=1 << 20)
    app.router.routes[:0] = [PlainRoute("/bare", _answer_bare, methods=["POST"], openapi_extra=needs("read"))]
    body = json.dumps({"value": value}, ensure_ascii=ascii_only).encode("utf-8", errors="surrogatepass")
    heard = ask(app, "POST", "/bare", headers=JSON, pieces=[body])
    if not ascii_only and b"\xed" in body and heard.document != {"value": value}:
        return  # lone surrogates have no UTF-8
    assert heard.document == {"value": value}


# ---- queries --------------------------------------------------------------------------------------------------------


async def _advise(hardware: str | None = None, form: Annotated[str, Query(alias="format")] = "json") -> dict[str, Any]:
    return {"hardware": hardware, "format": form}


class Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: str = "red"


async def _grant(wish: Annotated[Wish, Query()]) -> str:
    return wish.colour


@pytest.fixture(scope="module")
def questions() -> FastAPI:
    app = build_small_app()
    router = APIRouter(route_class=JsonRoute)
    router.get("/advice")(_advise)
    router.get("/wish")(_grant)
    router.get("/things/{name}")(_echo_name)
    app.include_router(router)
    return app


def test_a_query_parameter_that_the_route_knows_is_taken_under_its_public_name(questions: FastAPI) -> None:
    heard = ask(questions, target="/advice?hardware=h100&format=text")
    assert heard.document == {"hardware": "h100", "format": "text"}
    assert ask(questions, target="/advice").document == {"hardware": None, "format": "json"}


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/advice?hardwre=h100", ["hardwre"]),
        ("/advice?hardware=h100&form=text", ["form"]),
        ("/advice?Hardware=h100&x", ["Hardware", "x"]),
        ("/advice?=1", [""]),
        ("/things/a?limit=3", ["limit"]),
        ("/wish?color=blue", ["color"]),
    ],
)
def test_a_mistyped_parameter_is_refused_and_not_answered_as_if_it_were_not_there(
    questions: FastAPI, target: str, fields: list[str]
) -> None:
    heard = ask(questions, target=target)
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert [entry["field"] for entry in heard.document["errors"]] == fields
    assert heard.document["hint"]


def test_the_refusal_of_a_parameter_names_those_that_there_are(questions: FastAPI) -> None:
    assert "/advice takes hardware, format" in ask(questions, target="/advice?hardwre=h100").document["detail"]
    assert "takes none" in ask(questions, target="/things/a?limit=3").document["detail"]


# ---- media types ----------------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize(
    "media_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/merge-patch+json"],
)
def test_a_body_announced_as_json_is_read(app: FastAPI, path: str, media_type: str) -> None:
    headers = {"content-type": media_type, "content-length": "12"}
    assert ask(app, "POST", path, headers=headers, pieces=[b'{"value": 1}']).document == {"value": 1}


@both_kinds
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
@pytest.mark.parametrize("sent", [{"content-length": "12"}, {"transfer-encoding": "chunked"}])
def test_a_body_announced_as_something_else_is_refused(
    app: FastAPI, path: str, media_type: str, sent: dict[str, str]
) -> None:
    headers = ({"content-type": media_type} if media_type else {}) | sent
    heard = ask(app, "POST", path, headers=headers, pieces=[b'{"value": 1}'])
    assert (heard.status, heard.document["code"]) == (415, "unsupported_media_type")
    assert (media_type or "no Content-Type") in heard.document["detail"]


# ---- plain routes ---------------------------------------------------------------------------------------------------


def test_a_problem_of_a_plain_route_is_answered_as_a_problem_with_its_retry_after(app: FastAPI) -> None:
    heard = ask(_gated(app)[0], target="/greeting?mood=busy")
    assert (heard.status, heard.document["code"], heard.headers["retry-after"]) == (409, "device_busy", "3")
    assert heard.document["request_id"] == heard.headers["x-request-id"]


def test_a_bug_in_a_plain_route_is_answered_as_internal_without_its_words(app: FastAPI) -> None:
    heard = ask(_gated(app)[0], target="/greeting?mood=broken")
    assert (heard.status, heard.document["code"]) == (500, "internal")
    assert "RuntimeError" in heard.document["detail"]
    assert "no such luck" not in heard.body.decode()
    assert heard.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("target", ["/greeting", "/greeting?mood=busy"])
def test_a_plain_route_answers_the_same_past_the_framework_as_through_it(app: FastAPI, target: str) -> None:
    past, through = ask(_gated(app)[0], target=target), ask(app, target=target)
    past.headers.pop("x-request-id")
    assert (past.status, past.headers | {"content-length": ""}) == (
        through.status,
        through.headers | {"content-length": ""},
    )
    assert past.body.split(b"request_id")[0] == through.body.split(b"request_id")[0]


def test_a_plain_route_does_not_take_other_methods_and_says_which_it_takes(app: FastAPI) -> None:
    heard = ask(app, "DELETE", "/greeting")
    assert (heard.status, heard.headers["allow"], heard.document["hint"]) == (
        405,
        "GET, HEAD",
        "it takes GET, HEAD",
    )


def test_a_plain_route_that_takes_get_takes_head(app: FastAPI) -> None:
    gate, observed = _gated(app)
    heard, got = ask(gate, "HEAD", "/greeting"), ask(gate, "GET", "/greeting")
    assert (heard.status, heard.headers["content-length"]) == (200, got.headers["content-length"])
    assert [seen[:3] for seen in observed] == [("/greeting", "HEAD", 200), ("/greeting", "GET", 200)]
    assert ask(gate, "HEAD", "/bare").status == 405


def test_a_plain_route_stands_in_the_document_like_any_other(app: FastAPI) -> None:
    route = next(route for route in app.routes if getattr(route, "path", "") == "/greeting")
    assert isinstance(route, APIRoute)
    assert route.include_in_schema


# ---- pages of other sites -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("site", "lines"), [("cross-site", 1), ("same-origin", 0)])
def test_a_get_that_costs_work_is_refused_to_another_sites_page_counted_and_audited(
    caplog: pytest.LogCaptureFixture, site: str, lines: int
) -> None:
    app = FastAPI()
    install_handlers(app)

    async def plan(request: Request) -> Response:
        refuse_other_sites(request)
        return PlainTextResponse("planned")

    app.router.routes.append(PlainRoute("/plan", plan))
    refused: list[str] = []
    gate = Gate(app, observe=lambda *_: None, observe_refusal=refused.append, plain=(), doorkeeper=build_doorkeeper())
    heard = ask(gate, target="/plan", headers={"Sec-Fetch-Site": site})
    assert heard.status == (403 if lines else 200)
    assert refused == ["forbidden"] * lines
    audit = [record.getMessage() for record in caplog.records if record.name == "meshwright.audit"]
    assert len(audit) == lines
    assert all("method=GET path=/plan status=403" in line for line in audit)

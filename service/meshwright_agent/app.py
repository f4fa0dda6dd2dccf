"""The application: the FastAPI routes, a problem document for every error, and one outermost wrapper.

The wrapper adds the id and the peer to each request, checks the Host header, runs GET for HEAD, counts and audits.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any, Final

import anyio
import h11
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.errors import InvalidRequestError, NotFoundError, ProblemError, UnauthorizedError
from meshwright.wire.problem import Problem, build_problem, translate_validation
from meshwright_agent.agent import Agent
from meshwright_agent.auth import (
    CHALLENGE,
    NEEDS_READ,
    SAFE_METHODS,
    Authenticator,
    Caller,
    Reader,
    check_site,
    read_peer,
    record,
)
from meshwright_agent.logs import REQUEST_ID
from meshwright_agent.routes import devices, health, leases, metrics, plans, preflight, runs

log = logging.getLogger(__name__)

API_VERSION: Final = "2.0.10"
"""The version of the HTTP contract. tests/contract holds its document. A change without a new version fails there,
unless the version is in development."""
MEDIA_TYPE: Final = "application/problem+json"
MAX_BODY_BYTES: Final = 256 << 10
CONTENT_SECURITY_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_PROBLEM: Final[dict[str, Any]] = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": "the request is refused: the code says why", **_PROBLEM},
    "5XX": {"description": "the agent cannot answer now, or has a bug", **_PROBLEM},
}
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def build_api(agent: Agent, authenticator: Authenticator) -> FastAPI:
    """Returns the FastAPI application of an agent. The owner of the agent starts it."""
    app = FastAPI(
        title="meshwright agent",
        version=API_VERSION,
        description="What devices are here, which mesh, how large a batch, and how fast it really is. "
        "Every error is application/problem+json (RFC 9457) with a stable `code` and a `hint`.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # served by a route below, with the same token check
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,  # methods of generated clients are called so
        max_body_size=MAX_BODY_BYTES,
        redirect_slashes=False,  # a redirect would have no problem document
        responses=_PROBLEMS,
        telemetry={  # spans of requests, sent to OTEL_EXPORTER_OTLP_ENDPOINT
            "auto_configure": True,
            "operation_spans": False,
            "metrics": False,
            "logs": False,
            "exclude": lambda scope: scope["path"] in {"/healthz", "/readyz", "/metrics"},
        },
    )
    app.openapi_version = "3.2.0"
    app.state.agent, app.state.authenticator = agent, authenticator
    app.state.registry = metrics.build_registry(agent)
    for router in (health, devices, plans, runs, preflight, leases, metrics):
        app.include_router(router.router)
    app.include_router(_build_pages())
    app.get("/openapi.json", include_in_schema=False, dependencies=[NEEDS_READ])(functools.partial(_read_document, app))
    for kind, answer in (
        (ProblemError, _answer_problem),
        (RequestValidationError, _answer_invalid),
        (HTTPException, _answer_http),
        (ClientDisconnect, _answer_gone),
        (Exception, _answer_bug),
    ):
        app.add_exception_handler(kind, answer)
    _document_problems(app)
    return app


def build_app(agent: Agent, authenticator: Authenticator) -> ASGIApp:
    """Returns the application that the server runs: the API in its wrapper."""
    return Wrapper(build_api(agent, authenticator), authenticator)


def _document_problems(app: FastAPI) -> None:
    """Adds the problem models to the document's schemas."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            schemas = build()["components"]["schemas"]
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {"Problem": schema}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _read_document(app: FastAPI) -> Response:
    """Returns the OpenAPI document. Runs in a thread, because the first build takes 0.7 s."""
    return Response(json.dumps(app.openapi()), media_type="application/json")


# ---- pages ----------------------------------------------------------------------------------------------------------


def _build_pages() -> APIRouter:
    """Returns the routes of `/`, `/docs` and their files in `web/`, which work without internet."""
    router = APIRouter(include_in_schema=False)
    for path, name, media_type in (
        ("/", "index.html", "text/html"),
        ("/docs", "docs.html", "text/html"),
        ("/web/dom.js", "dom.js", "text/javascript"),
        ("/web/page.js", "page.js", "text/javascript"),
        ("/web/docs.js", "docs.js", "text/javascript"),
        ("/web/style.css", "style.css", "text/css"),
    ):
        router.get(path)(_build_page((resources.files("meshwright_agent") / "web" / name).read_bytes(), media_type))
    return router


def _build_page(body: bytes, media_type: str) -> Callable[[Caller], Coroutine[Any, Any, Response]]:
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"}

    async def read(caller: Reader) -> Response:
        scope = f'data-scope="{caller.scope}"'.encode()  # the page hides buttons that this scope may not use
        return Response(body.replace(b'data-scope="read"', scope, 1), media_type=media_type, headers=headers)

    return read


# ---- problems -------------------------------------------------------------------------------------------------------


def build_response(error: ProblemError) -> Response:
    """Returns the HTTP reply of an error."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = CHALLENGE
    body = build_problem(error, request_id=REQUEST_ID.get()).model_dump_json()
    return Response(body, status_code=error.status, media_type=MEDIA_TYPE, headers=headers)


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return build_response(error)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    kind = request.headers.get("content-type", "")
    is_json = re.fullmatch(r"application/([^;]*\+)?json", kind.partition(";")[0].strip().lower())
    is_sent = any(each["loc"] == ("body",) and (kind or each["type"] != "missing") for each in errors)
    if is_sent and not is_json:
        detail = f"the body came with Content-Type {kind[:80]!r}; it must be application/json"
        hint = "curl: add -H 'Content-Type: application/json' (or use --json)"
        return build_response(InvalidRequestError(detail, status=415, hint=hint))
    return build_response(translate_validation(errors))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 401:
            detail = "the Authorization header is malformed"
            return build_response(UnauthorizedError(detail, hint="send `Authorization: Bearer TOKEN`"))
        case 404:
            hint = "GET /openapi.json or /docs lists the routes"
            return build_response(NotFoundError(f"there is no route {path}", hint=hint))
        case 405:
            allowed = ", ".join(_list_methods(request))
            detail = f"{path} does not take {request.method}"
            response = build_response(NotFoundError(detail, status=405, hint=f"it takes {allowed}"))
            response.headers["Allow"] = allowed
            return response
        case 413:
            return build_response(_build_too_large())
    hint = "GET /docs shows every route with what it takes"
    return build_response(InvalidRequestError(str(error.detail), status=error.status_code, hint=hint))


def _list_methods(request: Request) -> list[str]:
    """Returns the methods of all routes on the path. The router names only those of the first route."""
    routes, scope = request.app.routes, request.scope
    taken = {name for name in _METHODS for each in routes if each.matches({**scope, "method": name})[0] is Match.FULL}
    return [name for name in _METHODS if name in taken or (name == "HEAD" and "GET" in taken)]


def _build_too_large() -> ProblemError:
    hint = "send less; a plan of many hosts is made without an agent: `meshwright plan --offline`"
    return InvalidRequestError(f"the body has more than {MAX_BODY_BYTES} bytes", status=413, hint=hint)


async def _answer_gone(request: Request, error: Exception) -> Response:
    return build_response(InvalidRequestError("the client left before its body was complete", status=400))


async def _answer_bug(request: Request, error: Exception) -> Response:
    asked = f"{request.method} {request.url.path}"
    detail = f"{type(error).__name__} while answering {asked}; this is a bug of the agent"
    hint = "report it with the request id; the agent's log has the traceback"
    return build_response(ProblemError(detail, hint=hint, code="internal"))


# ---- the wrapper ----------------------------------------------------------------------------------------------------


class Wrapper:
    """The outermost ASGI application."""

    def __init__(self, app: FastAPI, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or the lifespan events."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked_id = headers.get("x-request-id", "")
        request_id = asked_id if _ID.fullmatch(asked_id) else secrets.token_hex(8)
        REQUEST_ID.set(request_id)
        transport = getattr(getattr(receive, "__self__", None), "transport", None)  # uvicorn's, see tests/unit
        state: dict[str, Any] = {**scope.get("state", {}), "peer": read_peer(transport)}
        answer = _Answer(send, request_id, is_head=scope["method"] == "HEAD")
        inner = {**scope, "method": "GET" if answer.is_head else scope["method"], "state": state}
        began_s = time.perf_counter()
        try:
            self._check(inner, headers)
            await self._run(inner, receive, answer)
        except ProblemError as error:
            response = build_response(error)
            response.headers["connection"] = "close"
            await response(inner, receive, answer)
        finally:
            route = getattr(inner.get("route"), "path", "unmatched")
            metrics.observe_request(route, scope["method"], answer.status, time.perf_counter() - began_s)
            self._audit(scope, state, answer.status)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises ProblemError if the request is for another host, from a page of another site, or has two lengths."""
        if "content-length" in headers and "transfer-encoding" in headers:  # RFC 9112 section 6.1
            detail = "the request has Content-Length and Transfer-Encoding"
            raise InvalidRequestError(detail, status=400, hint="send one of them")
        if scope["state"]["peer"].is_unix:
            return
        hosts = headers.getlist("host")
        if hosts or scope.get("http_version") != "1.0":  # HTTP/1.0 has no Host; browsers always send it
            self._authenticator.check_host(hosts[0] if len(hosts) == 1 else None)
        if scope["method"] not in SAFE_METHODS:
            check_site(headers)

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer)
        except* (anyio.BrokenResourceError, h11.LocalProtocolError):
            # FastAPI 0.165 closes a stream before it ends the task that waits to write into it. uvicorn itself answers
            # 400 if invalid bytes follow the request.
            log.debug("a client of %s has left, or sent what is no HTTP", scope["path"])
        except* Exception:
            log.exception("request %s %s failed", scope["method"], scope["path"])

    def _audit(self, scope: Scope, state: dict[str, Any], status: int) -> None:
        """Writes one line for each request that may change something, that started a run, or that was refused."""
        caller: Caller | None = state.get("caller")
        is_unnamed = caller is None and scope["method"] not in SAFE_METHODS  # its body was refused before its caller
        if not (is_unnamed or state.get("is_audited") or status in {202, 401, 403, 421}):
            return
        who = {"caller": caller.name, "scope": caller.scope} if caller else {"caller": state["peer"].name}
        asked = {"method": scope["method"], "path": scope["path"]}
        record(**who, **asked, **state.get("noted", {}), status=status, request_id=REQUEST_ID.get())


class _Answer:
    """Sends an answer with the request's id. Omits the body for HEAD. Turns a text 413 into a problem."""

    def __init__(self, send: Send, request_id: str, *, is_head: bool) -> None:
        self.is_head = is_head
        self.status = 500
        self._send = send
        self._request_id = request_id
        self._is_over = False

    async def __call__(self, message: Message) -> None:
        """Sends one ASGI message."""
        if self._is_over:
            return
        if message["type"] != "http.response.start":
            await self._send(message)
            return
        self.status = message["status"]
        self._is_over = self.is_head
        body = b""
        if self.status == 413 and Headers(raw=message["headers"]).get("content-type") != MEDIA_TYPE:
            response = build_response(_build_too_large())
            message, body, self._is_over = {**message, "headers": response.raw_headers}, bytes(response.body), True
        await self._send({**message, "headers": [*message["headers"], (b"x-request-id", self._request_id.encode())]})
        if self._is_over:
            await self._send({"type": "http.response.body", "body": b"" if self.is_head else body})

"""The gate: what every request passes before its route, as plain ASGI: a request id, who sent it, a count, the audit.

Rule: a few microseconds, no copying of bodies. Bodies are read by `JsonRoute`: bounded, and as strict JSON. A route of
either kind answers only callers whom the gate has let in, and who have the scope that it declares.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import anyio
from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.requests import Request as PlainRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshwright.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    ProblemError,
    RequestTimeoutError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
)
from meshwright_agent.access.audit import LineLimit, record
from meshwright_agent.access.callers import Caller
from meshwright_agent.access.doorkeeper import CHALLENGE, Doorkeeper, check_site
from meshwright_agent.access.peers import LATE_KEY
from meshwright_agent.access.scopes import SAFE_METHODS, read_scope
from meshwright_agent.api.head import HeadRoute
from meshwright_agent.api.problem import answer_bug, build_response, request_id_of
from meshwright_agent.api.sending import Sending
from meshwright_agent.bodies import parse_json
from meshwright_agent.telemetry.request_id import REQUEST_ID

log = logging.getLogger(__name__)
PlainEndpoint = Callable[[PlainRequest], Coroutine[Any, Any, Response]]
Observe = Callable[[str, str, int, float], None]
"""(route template, method, status, seconds)"""
ObserveRefusal = Callable[[str], None]
"""(the code of the refusal)"""

CALLER_KEY: Final = "meshwright.caller"
"""Where the gate leaves the `Caller` in an ASGI scope."""
_ROUTE_KEY: Final = "meshwright.audited"
_COSTS_KEY: Final = "meshwright.costs"
_NOTED_KEY: Final = "meshwright.noted"
_REFUSAL_KEY: Final = "meshwright.refused"

_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def name_caller(scope: Mapping[str, Any]) -> str:
    """Returns who sent a request that the gate has let in: `token:NAME`, `cert:NAME`, `addr:…` or `uid:…`."""
    caller: Caller = scope[CALLER_KEY]
    return caller.name


class Gate:
    """Gives each request an id (the caller's `X-Request-ID` if it is sane), and reports its status and duration.

    A plain route is served here, past the framework: `/devices` and `/mesh/plan` are asked most.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        observe: Observe,
        plain: Iterable[PlainRoute],
        doorkeeper: Doorkeeper,
        observe_refusal: ObserveRefusal = lambda code: None,
    ) -> None:
        self._app = app
        self._observe = observe
        self._observe_refusal = observe_refusal
        self._doorkeeper = doorkeeper
        self._refusal_lines = LineLimit()
        self._plain = {(method, route.path): route for route in plain for method in _list_methods(route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _read_request_id(scope)
        scope["meshwright.request_id"] = request_id.decode()
        REQUEST_ID.set(request_id.decode())
        sending = Sending(send, request_id, lambda: self._may_go_on(scope))
        started_s = time.perf_counter()
        plain = self._plain.get((scope["method"], scope["path"]))
        if plain is not None:
            scope["app"], scope["route"] = self._app, plain
        try:
            if (refusal := self._admit(scope)) is not None:
                await refusal(scope, receive, sending)
            else:
                await (self._app if plain is None else plain.serve)(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._observe(route, scope["method"], sending.status, time.perf_counter() - started_s)
            if _REFUSAL_KEY in scope or _ROUTE_KEY in scope:
                self._tell(scope, sending.status)

    def _admit(self, scope: Scope) -> Response | None:
        """Leaves the caller in the scope; returns the refusal of who may not come in."""
        try:
            scope[CALLER_KEY] = self._doorkeeper.admit(scope)
        except ProblemError as error:
            scope[_REFUSAL_KEY] = error.code
            return _build_refusal(error, scope)
        return None

    def _may_go_on(self, scope: Scope) -> bool:
        """Returns whether the caller of a stream would still be let in: their token may have ended, or gone."""
        try:
            self._doorkeeper.admit(scope)
        except ProblemError as error:
            log.info("the stream %s of %s ends: %s", scope["path"], scope[CALLER_KEY].name, error.detail)
            return False
        return True  # every scope may read, and no stream asks for more

    def _tell(self, scope: Scope, status: int) -> None:
        """Counts a refusal; writes the audit's line of an operation, or of somebody unknown who asked for one."""
        caller: Caller | None = scope.get(CALLER_KEY)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            **scope.get(_NOTED_KEY, {}),
            "status": status,
            "request_id": scope["meshwright.request_id"],
        }
        if (code := scope.get(_REFUSAL_KEY)) is not None:
            self._observe_refusal(code)
        if _ROUTE_KEY in scope and caller is not None:
            record(caller=caller.name, scope=caller.scope, **fields)
        elif scope["method"] not in SAFE_METHODS or _COSTS_KEY in scope:
            peer = self._doorkeeper.name_peer(scope)
            if self._refusal_lines.allows(peer):
                record(caller=peer, **fields)


def _list_methods(route: PlainRoute) -> set[str]:
    return {*(route.methods or ()), *(("HEAD",) if route.has_head else ())}


def _build_refusal(error: ProblemError, scope: Scope) -> Response:
    response = build_response(error, request_id=scope["meshwright.request_id"])
    if isinstance(error, UnauthorizedError):
        response.headers["www-authenticate"] = CHALLENGE
    return response


def let_in(route: APIRoute) -> Callable[[Scope], None]:
    """Returns what checks that a request's caller has the scope that a route needs.

    Raises:
        ValueError: the route declares no scope (see `read_scope`).
    """
    methods = sorted(route.methods or ())
    needed = read_scope(route.openapi_extra, methods, route.path)
    name = f"{'/'.join(methods)} {route.path}"

    def check(scope: Scope) -> None:
        if needed != "read":
            scope[_ROUTE_KEY] = True
        caller: Caller = scope[CALLER_KEY]  # a KeyError where no gate stands before the route: nobody gets by
        try:
            caller.check(needed, name)
        except ProblemError as error:
            scope[_REFUSAL_KEY] = error.code
            raise

    return check


def refuse_other_sites(request: PlainRequest) -> None:
    """Refuses, for a page of another site, a GET that costs the planner's or the compiler's time.

    Raises:
        ForbiddenError: a browser sent it for such a page.
    """
    request.scope[_COSTS_KEY] = True
    try:
        check_site(request.scope)
    except ProblemError as error:
        request.scope[_REFUSAL_KEY] = error.code
        raise


def note_operation(request: PlainRequest, devices: Iterable[object] = (), **made: str) -> None:
    """Adds to the audit's line of a request what its path does not tell: its devices ("all", or each), what it made."""
    named = {"devices": devices if isinstance(devices, str) else ",".join(map(str, devices))} if devices else {}
    request.scope.setdefault(_NOTED_KEY, {}).update(named | made)


def _read_request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()


class StrictJsonRequest(Request):
    """Reads JSON as RFC 8259 has it, and refuses what `json` lets through: doubled names, NaN, Infinity, no UTF-8."""

    async def read_body(self, limit_bytes: int, setting: str = "MESHWRIGHT_BODY_LIMIT_BYTES") -> None:
        """Reads the whole body, to be had by `body()` and `json()`.

        Raises:
            BodyTooLargeError: it is larger than the limit; what is beyond is not kept.
        """
        announced = self.headers.get("content-length", "0")
        size = int(announced) if announced.isascii() and announced.isdigit() else 0
        chunks: list[bytes] = []
        if size <= limit_bytes:
            size = 0
            async for chunk in self._receive_chunks():
                size += len(chunk)
                if size > limit_bytes:
                    break
                chunks.append(chunk)
        if size > limit_bytes:
            detail = f"the body has {size} bytes or more; this agent takes {limit_bytes}"
            raise BodyTooLargeError(detail, hint=f"send less, or raise {setting} on the agent")
        self._body = b"".join(chunks)

    async def _receive_chunks(self) -> AsyncIterator[bytes]:
        """Yields the body; who leaves in its midst, or sends it too slowly, is no bug of ours."""
        try:
            async for chunk in self.stream():
                yield chunk
        except ClientDisconnect:
            if self.scope.get(LATE_KEY):
                raise RequestTimeoutError("the body did not arrive in time", hint="send it faster") from None
            raise InvalidRequestError("the client left before its body was complete", status=400) from None

    async def json(self) -> Any:
        """Returns the body's value.

        Raises:
            json.JSONDecodeError: not UTF-8, not JSON, a name twice in one object, a number that is none, or nested
                too deep.
        """
        return parse_json(await self.body())


class JsonRoute(HeadRoute):
    """A route whose bodies are strict JSON, announced as such, and whose query holds only what the route knows."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; a listener of events who leaves in the midst of one is no fault.

        FastAPI closes a stream before it ends the task that waits to write into it (0.165, `_sse_producer_cm`).
        """
        try:
            await super().handle(scope, receive, send)
        except* anyio.BrokenResourceError:
            log.debug("a listener of %s has left in the midst of an event", self.path)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns FastAPI's handler behind the strict reader."""
        answer = super().get_route_handler()
        known = _list_query(self.dependant)
        check = let_in(self)

        async def handle(request: Request) -> Response:
            check(request.scope)
            strict = StrictJsonRequest(request.scope, request.receive)
            if request.scope["query_string"]:
                check_query(request, known)
            if request.method in {"POST", "PUT", "PATCH"}:
                _check_media_type(request)
                await strict.read_body(request.app.state.agent.settings.body_limit_bytes)
            return await answer(strict)

        return handle


def _list_query(dependant: Dependant) -> tuple[str, ...]:
    """Returns the names of a route's query parameters; a model that takes the query whole stands for its fields."""
    names: list[str] = []
    for field in (field for part in _walk(dependant) for field in part.query_params):
        kind: Any = field.field_info.annotation
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        names += list(kind.model_fields) if is_model else [field.alias]
    return tuple(names)


def _walk(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for part in dependant.dependencies:
        yield from _walk(part)


def check_query(request: PlainRequest, known: Sequence[str]) -> None:
    """Refuses a parameter that the route would ignore: a mistyped one, or the first of two of one name.

    Raises:
        InvalidRequestError: naming it, and those that there are.
    """
    path, takes = request.url.path, ", ".join(known) or "none"
    fields = []
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            fields.append({"field": name[:80], "message": f"unknown query parameter; {path} takes {takes}"})
        elif times > 1:
            fields.append({"field": name, "message": f"stands {times} times in the query; it may stand once"})
    if fields:
        detail = f"{fields[0]['field']}: {fields[0]['message']}"
        hint = f"{path} takes {takes}; GET /docs shows each with its type and bounds"
        raise InvalidRequestError(detail, errors=fields, hint=hint)


def _check_media_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and content_type != "application/json" and not content_type.endswith("+json"):
        said = f"Content-Type {content_type!r}" if content_type else "no Content-Type"
        hint = "curl: add -H 'Content-Type: application/json' (or use --json)"
        raise UnsupportedMediaTypeError(f"the body came with {said}; it must be application/json", hint=hint)


async def read_body(request: PlainRequest, limit_bytes: int, *, setting: str) -> bytes:
    """Returns the body of a plain route's request, which says that it is JSON; it is not parsed.

    Raises:
        UnsupportedMediaTypeError: it says otherwise.
        BodyTooLargeError: it is larger than the limit, which is the setting of this name.
    """
    strict = StrictJsonRequest(request.scope, request.receive)
    _check_media_type(strict)
    await strict.read_body(limit_bytes, setting)
    return await strict.body()


class PlainRoute(HeadRoute):
    """A route that is documented by FastAPI and served by its bare function: where the framework would cost most."""

    def __init__(self, path: str, endpoint: PlainEndpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.plain_endpoint = endpoint
        self._check = let_in(self)
        self.app = self.serve

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; a problem and a bug become what they become elsewhere."""
        request = PlainRequest(scope, receive, send)
        try:
            self._check(scope)
            response = await self.plain_endpoint(request)
        except ProblemError as error:
            response = build_response(error, request_id=request_id_of(request))
        except Exception as error:
            response = answer_bug(request, error)
        await response(scope, receive, send)

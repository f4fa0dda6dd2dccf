"""Errors as `application/problem+json` (RFC 9457): every failure of a request leaves through here, with a code.

Knows the error classes and HTTP; nothing of what went wrong.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from meshwright.errors import (
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    ProblemError,
    RouteNotFoundError,
    TooManyConnectionsError,
)
from meshwright.wire.problem import build_problem, translate_validation

MEDIA_TYPE: Final = "application/problem+json"
SHORTAGE_RETRY_S: Final = 2.0
"""asyncio waits 1 s before it accepts again when no descriptor is free (CPython, ACCEPT_RETRY_DELAY)."""
log = logging.getLogger(__name__)


def build_response(error: ProblemError, *, request_id: str) -> Response:
    """Returns the HTTP reply of an error; `Retry-After` where it says when."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    body = build_problem(error, request_id=request_id).model_dump_json()
    return Response(body, status_code=error.status, media_type=MEDIA_TYPE, headers=headers)


def request_id_of(request: Request) -> str:
    """Returns the id that the gate gave to this request."""
    return str(request.scope.get("meshwright.request_id", ""))


def install_handlers(app: FastAPI) -> None:
    """Sends every exception of a route through this module."""
    app.add_exception_handler(ProblemError, _answer_problem)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(OSError, _answer_os_error)
    app.add_exception_handler(Exception, _answer_bug)


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return build_response(error, request_id=request_id_of(request))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return build_response(translate_validation(error.errors()), request_id=request_id_of(request))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = _list_methods(request)
    response = build_response(_translate_http(request, error, headers), request_id=request_id_of(request))
    response.headers.update(headers)
    return response


def _list_methods(request: Request) -> str:
    """Returns what the path takes, of all routes on it: the router names only those of the first that matched."""
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    routes = request.app.router.routes
    return ", ".join(
        method
        for method in methods
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    )


async def _answer_os_error(request: Request, error: Exception) -> Response:
    if not _is_short_of_descriptors(error):
        raise error  # a bug: answered by `_answer_bug`
    return answer_bug(request, error)


async def _answer_bug(request: Request, error: Exception) -> Response:
    return answer_bug(request, error)


def answer_bug(request: Request, error: Exception) -> Response:
    """Returns the reply to an exception that nobody expected, and logs its traceback.

    A lack of file descriptors is none of ours: it passes, and is answered 503 with Retry-After.
    """
    if _is_short_of_descriptors(error):
        log.warning("request %s %s: no file descriptor was free: %s", request.method, request.url.path, error)
        return build_response(_build_shortage(request), request_id=request_id_of(request))
    log.exception("request %s %s failed", request.method, request.url.path, exc_info=error)
    detail = f"{type(error).__name__} while answering {request.method} {request.url.path}; this is a bug of the agent"
    hint = "report it with the request id; the agent's log has the traceback"
    return build_response(InternalError(detail, hint=hint), request_id=request_id_of(request))


def _is_short_of_descriptors(error: BaseException | None) -> bool:
    """Returns whether an error, or what led to it, is that no descriptor is free: EMFILE, ENFILE of open(2)."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _build_shortage(request: Request) -> ProblemError:
    return TooManyConnectionsError(
        f"no file descriptor was free to answer {request.method} {request.url.path}",
        hint="try again; raise the agent's limit of file descriptors (LimitNOFILE), or close connections that are idle",
        retry_after_s=SHORTAGE_RETRY_S,
    )


def _translate_http(request: Request, error: HTTPException, headers: Mapping[str, str]) -> ProblemError:
    path = request.url.path
    match error.status_code:
        case 404:
            return RouteNotFoundError(f"there is no route {path}", hint="GET /openapi.json or /docs lists the routes")
        case 405:
            hint = f"it takes {headers['Allow']}"
            return MethodNotAllowedError(f"{path} does not take {request.method}", hint=hint)
        case _:
            hint = "GET /docs shows every route with what it takes"
            return InvalidRequestError(str(error.detail), status=error.status_code, hint=hint)

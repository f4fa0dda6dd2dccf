"""Shared parts of the routes: access to the agent, queries that reject unknown and repeated parameters, and strict
JSON bodies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

import pydantic_core
from fastapi import Depends, Header, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from meshwright.errors import InvalidRequestError
from meshwright.wire.runs import Run
from meshwright_agent.agent import Agent
from meshwright_agent.auth import Authenticator, Caller, note
from meshwright_agent.leases import Owner

MAX_SEQ: Final = 2**53
"""The largest number of an event: the largest integer that every JSON reader represents exactly (RFC 8259 §6)."""
TEXT: Final[dict[str, Any]] = {"text/plain": {"schema": {"type": "string"}}}
"""Documentation of a text answer: `responses={200: {"content": TEXT}}`."""


class QueryParameters(BaseModel):
    """The parameters of a route; an unknown one is refused, since it may be mistyped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _StrictRequest(Request):
    """A request with JSON by RFC 8259: UTF-8, finite numbers, whole surrogate pairs. Python's parser accepts others."""

    async def json(self) -> Any:
        """Returns the body's value."""
        try:
            return pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class StrictRoute(APIRoute):
    """A route that reads its body as strict JSON, and refuses a repeated query parameter: it may be meant to differ."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns FastAPI's handler with the strict request."""
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            for name, count in Counter(name for name, _ in request.query_params.multi_items()).most_common(1):
                if count > 1:
                    detail = f"{name[:80]} stands {count} times in the query; a parameter has one value"
                    raise InvalidRequestError.of(name[:80], detail, "give it once")
            return await answer(_StrictRequest(request.scope, request.receive))

        return handle


async def _find_agent(request: Request) -> Agent:
    agent: Agent = request.app.state.agent
    return agent


async def _find_authenticator(request: Request) -> Authenticator:
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator


AgentHere = Annotated[Agent, Depends(_find_agent)]
AuthenticatorHere = Annotated[Authenticator, Depends(_find_authenticator)]
LastEventId = Annotated[int | None, Header(ge=0, le=MAX_SEQ, description="the id of the last event that was read")]


def owner_of(caller: Caller) -> Owner:
    """Returns the lease owner of a caller: its token or certificate. An address or a user id does not own leases."""
    kind, _, name = caller.name.partition(":")
    return Owner(name if kind in {"token", "cert"} else "", is_admin=caller.has("admin"))


def answer_run(request: Request, run: Run) -> Response:
    """Returns the answer for long work, and notes the run for the audit: 202 and the location of the run."""
    note(request, run=run.id)
    headers = {"Location": f"/runs/{run.id}"}
    return Response(run.model_dump_json(), status_code=202, media_type="application/json", headers=headers)


ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    202: {"description": "the compiler is asked; `Location` names the run, whose result is the answer", "model": Run}
}
"""Documentation of a route that may start a run."""

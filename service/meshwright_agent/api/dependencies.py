"""What routes share: the agent behind them, and how they are documented."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Request
from pydantic import BaseModel

from meshwright.errors import InvalidRequestError
from meshwright_agent.access.scopes import Scope, declare_scope
from meshwright_agent.agent import Agent
from meshwright_agent.api.problem import MEDIA_TYPE


async def _find_agent(request: Request) -> Agent:
    agent: Agent = request.app.state.agent
    return agent


AgentHere = Annotated[Agent, Depends(_find_agent)]

MOST_SEQ: Final = 2**53
"""The largest number that an event may have: what every JSON reader keeps whole (RFC 8259 §6)."""


async def read_last_event_id(request: Request) -> int | None:
    """Returns the number of the event that a listener saw last, as it says; None where it says nothing.

    A dependency, so that it is refused before the stream begins.

    Raises:
        InvalidRequestError: it is no number that an event can have.
    """
    text = request.headers.get("last-event-id", "")
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 32 and int(text) <= MOST_SEQ:
        return int(text)
    message = f"{text[:80]!r} is no id of an event; it is a number from 0 to {MOST_SEQ}"
    raise InvalidRequestError(
        f"Last-Event-ID: {message}",
        hint="send the `id` of the last event that was read, or leave the header out",
        errors=[{"field": "last-event-id", "message": message}],
    )


LastEventId = Annotated[int | None, Depends(read_last_event_id)]


def needs(scope: Scope) -> dict[str, Any]:
    """Returns the declaration of the scope that a caller of a route needs: `openapi_extra=needs("operate")`.

    GET and HEAD need `read` without saying so; every other route must declare, else the agent does not start.
    """
    return declare_scope(scope)


def document_body(model: type[BaseModel]) -> dict[str, Any]:
    """Returns a plain route's request body for the document; `app.DOCUMENTED` must hold the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def problems(**statuses: str) -> dict[int | str, dict[str, Any]]:
    """Returns the documented failures of a route: `problems(s422="what is wrong")`."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {int(status[1:]): {"description": text, "content": content} for status, text in statuses.items()}


BODY_REFUSALS: Final = problems(
    s413="the body is larger than MESHWRIGHT_BODY_LIMIT_BYTES", s415="the body is not application/json"
)
"""How every route that reads a body refuses one."""

SITE_REFUSAL: Final = problems(s403="forbidden: it costs work, and a browser sent it for a page of another site")
"""How a GET that the planner or the compiler answers refuses pages of other sites."""

STORE_REFUSALS: Final = problems(s503="the store does not answer, or the agent is starting")

TEXT: Final[dict[str, Any]] = {"text/plain": {"schema": {"type": "string"}}}
"""How an answer for people is documented: `responses={200: {"content": TEXT}}`."""

"""HEAD: answered wherever GET is, with GET's headers; the server leaves the body out. RFC 9110 §9.3.2.

Rule: a route that streams is left out: its answer has no end, and HEAD's would have nothing else.
"""

from __future__ import annotations

from fastapi.routing import APIRoute
from fastapi.sse import EventSourceResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send


class HeadRoute(APIRoute):
    """A route that takes HEAD for GET; the document names GET alone."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether this is the route: for HEAD, whether it is GET's."""
        return super().matches({**scope, "method": "GET"} if self._takes(scope) else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request. The scope keeps its method, by which the server leaves the body out."""
        if self._takes(scope):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _takes(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] == "HEAD" and self.has_head

    @property
    def has_head(self) -> bool:
        """Whether HEAD is answered here."""
        return "GET" in (self.methods or ()) and self.response_class is not EventSourceResponse

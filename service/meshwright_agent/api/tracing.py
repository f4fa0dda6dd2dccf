"""A span for each request, around the gate: also of routes that pass the framework by.

Rule: named by the route's template, never by what the caller wrote. Liveness, readiness and scrapes have none: they are
most of the traffic and say nothing.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright_agent.telemetry.tracing import TRACING, Span

UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class TracedApp:
    """An ASGI app whose requests are spans, beneath the caller's where it sends a `traceparent`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope."""
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with TRACING.span(
            scope["method"], kind="SERVER", carrier=headers, http__request__method=scope["method"]
        ) as span:
            await self._app(scope, receive, _watch(send, span))
            route = getattr(scope.get("route"), "path", "unmatched")
            span.rename(f"{scope['method']} {route}")
            span.note(http__route=route, meshwright__request_id=scope.get("meshwright.request_id", ""))


def _watch(send: Send, span: Span) -> Send:
    async def send_watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            span.note(http__response__status_code=status)
            if status >= 500:
                span.fail(f"answered {status}")
        await send(message)

    return send_watched

"""Pages for people, from files in `web/`: `/` and `/docs`, which work without internet. No build step."""

from __future__ import annotations

from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from meshwright_agent.access.callers import Caller
from meshwright_agent.api.gate import CALLER_KEY, PlainRoute

CONTENT_SECURITY_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SCOPE_IN_PAGE: Final = b'data-scope="read"'
"""What the page finds its visitor's scope in; it shows no button that the agent would refuse."""
_MEDIA_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def _read_file(name: str) -> bytes:
    return (resources.files("meshwright_agent") / "web" / name).read_bytes()


def _page(path: str, file: str, summary: str) -> PlainRoute:
    body = _read_file(file)
    media_type = _MEDIA_TYPES[file.rsplit(".", 1)[1]]

    async def read(request: Request) -> Response:
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"}
        caller: Caller = request.scope[CALLER_KEY]
        page = body.replace(_SCOPE_IN_PAGE, f'data-scope="{caller.scope}"'.encode(), 1)
        return Response(page, media_type=media_type, headers=headers)

    return PlainRoute(path, read, summary=summary, include_in_schema=False, response_class=HTMLResponse)


PLAIN_ROUTES = (
    _page("/", "index.html", "The agent, for people"),
    _page("/docs", "docs.html", "The routes, for people"),
    _page("/web/dom.js", "dom.js", "what both pages build with"),
    _page("/web/page.js", "page.js", "the agent's page"),
    _page("/web/docs.js", "docs.js", "the routes' page"),
    _page("/web/style.css", "style.css", "their style"),
)

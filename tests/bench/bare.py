"""A bare Starlette server: each path with its bytes, in the agent's uvicorn with the agent's options.

python -m tests.bench.bare FOLDER      (FOLDER holds bodies.json: path to text)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from meshwright_agent.server import open_tcp


def build_bare(bodies: dict[str, str]) -> Starlette:
    """Returns the app."""
    return Starlette(
        routes=[Route(path.partition("?")[0], _build_route(body.encode())) for path, body in bodies.items()]
    )


def _build_route(body: bytes) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return answer


def main() -> None:
    """Serves on a free loopback port, which it prints."""
    sock = open_tcp("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    app = build_bare(json.loads((Path(sys.argv[1]) / "bodies.json").read_text()))
    config = uvicorn.Config(app, http="h11", ws="none", loop="asyncio", access_log=False, log_level="error")
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()

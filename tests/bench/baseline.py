"""What the agent's routes are compared with: bare Starlette routes that return the same bytes, and a FastAPI route that
parses and returns models of the plan's size. Same uvicorn, same options, a process of its own.

    python -m tests.bench.baseline FOLDER      (FOLDER holds healthz.body, devices.body, plan.body)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from meshwright.wire.mesh import PlanRequest, Plans
from meshwright_agent.serving.server import open_tcp


def build_baseline(folder: Path) -> ASGIApp:
    """Returns the app: `/bare/healthz`, `/bare/devices` by Starlette, `/fastapi/plan` by FastAPI."""
    routes = [Route(f"/bare/{path.stem}", _build_route(path.read_bytes())) for path in folder.glob("*.body")]
    return Starlette(routes=[*routes, Mount("/fastapi", _build_fastapi((folder / "plan.body").read_bytes()))])


def _build_route(body: bytes) -> Callable[[Request], object]:
    media_type = "application/json" if body.startswith(b"{") else "text/plain"

    async def answer(request: Request) -> Response:
        return Response(body, media_type=media_type)

    return answer


def _build_fastapi(plan: bytes) -> FastAPI:
    app = FastAPI()
    plans = Plans.model_validate_json(plan)

    @app.post("/plan")
    async def answer(request: PlanRequest) -> Plans:
        return plans

    return app


def main() -> None:
    """Serves on a free loopback port, which it prints."""
    sock = open_tcp("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(
        build_baseline(Path(sys.argv[1])),
        http="httptools",
        ws="none",
        loop="asyncio",
        access_log=False,
        log_level="error",
    )
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()

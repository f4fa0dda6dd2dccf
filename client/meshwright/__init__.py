"""The public API: the client of the device agent, meshes, and the errors. Imports neither jax nor numpy.

The clients need httpx and pydantic. They are loaded at first access, so that importing the rest stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    ConflictError,
    DeviceBusyError,
    DeviceLeasedError,
    FleetIncompleteError,
    ForbiddenError,
    InvalidMeshError,
    InvalidRequestError,
    MeshwrightError,
    NotFoundError,
    PlanInfeasibleError,
    PlanMismatchError,
    ProblemError,
    QueueFullError,
    RequestError,
    RunFailedError,
    SettingsError,
    UnauthorizedError,
    UnavailableError,
    UnknownHardwareError,
)
from meshwright.spec import MeshSpec

if TYPE_CHECKING:
    from meshwright._client.awaiting import AsyncClient
    from meshwright._client.blocking import Client
    from meshwright._client.holding import Held
    from meshwright._client.requests import BenchOptions, PlanOptions, Readiness, SearchOptions
    from meshwright._reference import load_plan
    from meshwright.fleet import Fleet, FleetState

__all__ = [
    "AgentConnectionError",
    "AgentTimeoutError",
    "AsyncClient",
    "BenchOptions",
    "Client",
    "ConflictError",
    "DeviceBusyError",
    "DeviceLeasedError",
    "Fleet",
    "FleetIncompleteError",
    "FleetState",
    "ForbiddenError",
    "Held",
    "InvalidMeshError",
    "InvalidRequestError",
    "MeshSpec",
    "MeshwrightError",
    "NotFoundError",
    "PlanInfeasibleError",
    "PlanMismatchError",
    "PlanOptions",
    "ProblemError",
    "QueueFullError",
    "Readiness",
    "RequestError",
    "RunFailedError",
    "SearchOptions",
    "SettingsError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownHardwareError",
    "load_plan",
]

_LAZY = {
    "AsyncClient": "meshwright._client.awaiting",
    "BenchOptions": "meshwright._client.requests",
    "Client": "meshwright._client.blocking",
    "Fleet": "meshwright.fleet",
    "FleetState": "meshwright.fleet",
    "Held": "meshwright._client.holding",
    "PlanOptions": "meshwright._client.requests",
    "SearchOptions": "meshwright._client.requests",
    "Readiness": "meshwright._client.requests",
    "load_plan": "meshwright._reference",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What people import: the client of the device agent, meshes, and the errors. Imports neither jax nor numpy.

The clients come with httpx and pydantic; they are loaded when first named, so that the rest stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    BenchTooLargeError,
    ConflictError,
    DeviceBusyError,
    DevicesUnusedError,
    DoesNotDivideError,
    FleetIncompleteError,
    InvalidMeshError,
    InvalidRequestError,
    MeshwrightError,
    NotFoundError,
    PlanInfeasibleError,
    PlanMismatchError,
    PlanNotFoundError,
    ProblemError,
    QueueFullError,
    RequestError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    SettingsError,
    UnavailableError,
    UnknownHardwareError,
)
from meshwright.spec import MeshSpec

if TYPE_CHECKING:
    from meshwright._calls.calls import Readiness
    from meshwright._client import AsyncClient, Client
    from meshwright._reference import load_plan
    from meshwright.fleet import AsyncFleet, Fleet, FleetState

__all__ = [
    "AgentConnectionError",
    "AgentTimeoutError",
    "AsyncClient",
    "AsyncFleet",
    "BenchTooLargeError",
    "Client",
    "ConflictError",
    "DeviceBusyError",
    "DevicesUnusedError",
    "DoesNotDivideError",
    "Fleet",
    "FleetIncompleteError",
    "FleetState",
    "InvalidMeshError",
    "InvalidRequestError",
    "MeshSpec",
    "MeshwrightError",
    "NotFoundError",
    "PlanInfeasibleError",
    "PlanMismatchError",
    "PlanNotFoundError",
    "ProblemError",
    "QueueFullError",
    "Readiness",
    "RequestError",
    "RunCancelledError",
    "RunFailedError",
    "RunNotFoundError",
    "SettingsError",
    "UnavailableError",
    "UnknownHardwareError",
    "load_plan",
]

_LAZY = {
    "AsyncClient": "meshwright._client",
    "AsyncFleet": "meshwright.fleet",
    "Client": "meshwright._client",
    "Fleet": "meshwright.fleet",
    "FleetState": "meshwright.fleet",
    "Readiness": "meshwright._calls.calls",
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

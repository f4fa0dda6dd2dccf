"""Every route of the agent, once: method, path, the answer, and the effect of a repeated request.

All of them may be repeated (a lease has an id that the client makes), except a request that makes a run: a bench, and a
plan or batch size that needs the compiler. If its answer is lost, it is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from meshwright.errors import InvalidRequestError
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.bench import BenchRequest, LatestBench
from meshwright.wire.devices import Devices, Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Acknowledgement, Component, Health, HealthEvents
from meshwright.wire.leases import Lease, LeaseRequest, Leases
from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
from meshwright.wire.runs import Run, RunList
from meshwright.wire.targets import Targets

R = TypeVar("R")


@dataclass(frozen=True)
class Endpoint(Generic[R]):
    """One route with one method.

    Attributes:
        method, path: as in the agent's OpenAPI document; `{name}` is replaced by a part of the path.
        reply: the model of the answer; `str` for plain text, `dict` for JSON without a model.
        request: the model of the body, or None.
        statuses: the statuses of answers; all others are errors.
        makes_run: true where every request starts a run.
        is_retried: false where the request asks for the current state.
    """

    method: str
    path: str
    reply: type[R]
    request: type[BaseModel] | None = None
    statuses: frozenset[int] = frozenset({200})
    makes_run: bool = False
    is_retried: bool = True

    def build_path(self, parts: Mapping[str, str], query: Mapping[str, object]) -> str:
        """Returns the path with its parts filled in and quoted; query parameters that are None are left out.

        Raises:
            InvalidRequestError: a part is empty or not text.
        """
        asked = {name: value for name, value in query.items() if value is not None}
        path = self.path.format(**{name: _quote(name, part) for name, part in parts.items()})
        return f"{path}?{urlencode(asked)}" if asked else path


def _quote(name: str, part: str) -> str:
    try:
        quoted = quote(part, safe="")
    except UnicodeEncodeError:
        quoted = ""
    if not quoted:
        raise InvalidRequestError.of(name, f"{name} {part!r} is no name: it is empty, or not text")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted  # "." and ".." are not parts of a path


ALIVE: Final = Endpoint("GET", "/healthz", str, is_retried=False)
READY: Final = Endpoint("GET", "/readyz", str, statuses=frozenset({200, 503}), is_retried=False)
HEALTH: Final = Endpoint("GET", "/health", Health)
DEVICES: Final = Endpoint("GET", "/devices", Devices)
DEVICES_TEXT: Final = Endpoint("GET", "/devices", str)
RELEASE: Final = Endpoint("POST", "/devices/release", Release)
PLAN: Final = Endpoint("POST", "/mesh/plan", Plans, request=PlanRequest, statuses=frozenset({200, 202}))
SEARCH: Final = Endpoint("POST", "/mesh/search", Plans, request=SearchRequest, statuses=frozenset({200, 202}))
STORED_PLAN: Final = Endpoint("GET", "/mesh/plan/{fingerprint}", Plans)
BATCH_SIZE: Final = Endpoint("POST", "/batch-size", BatchSize, request=BatchSizeRequest, statuses=frozenset({200, 202}))
SUBMIT_BENCH: Final = Endpoint(
    "POST", "/placement/bench", Run, request=BenchRequest, statuses=frozenset({200, 202}), makes_run=True
)
LATEST_BENCH: Final = Endpoint("GET", "/placement/bench", LatestBench)
RUNS: Final = Endpoint("GET", "/runs", RunList)
RUN: Final = Endpoint("GET", "/runs/{run_id}", Run)
RUN_EVENTS: Final = Endpoint("GET", "/runs/{run_id}/events", str)
CANCEL_RUN: Final = Endpoint("DELETE", "/runs/{run_id}", Run, statuses=frozenset({200, 202}))
ENVIRONMENT: Final = Endpoint("GET", "/environment", Environment)
TARGETS: Final = Endpoint("GET", "/targets", Targets)
METRICS: Final = Endpoint("GET", "/metrics", str)
PUT_LEASE: Final = Endpoint("PUT", "/leases/{lease_id}", Lease, request=LeaseRequest, statuses=frozenset({200, 201}))
LEASES: Final = Endpoint("GET", "/leases", Leases)
GET_LEASE: Final = Endpoint("GET", "/leases/{lease_id}", Lease)
END_LEASE: Final = Endpoint("DELETE", "/leases/{lease_id}", Lease)
EVENTS: Final = Endpoint("GET", "/events", HealthEvents)
EVENT_STREAM: Final = Endpoint("GET", "/events/stream", str)
ACKNOWLEDGE: Final = Endpoint("POST", "/health/acknowledge", Component, request=Acknowledgement)

ENDPOINTS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Endpoint))
"""All of them; the fake agent and the contract tests read this table."""

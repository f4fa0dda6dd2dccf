"""The errors of meshwright, grouped by what the caller can do; each code stands here once, for agent and client.

    MeshwrightError
    ├── AgentConnectionError            nobody answered: is the agent up, is the address right?
    │   └── AgentTimeoutError           somebody is there but did not answer in time
    ├── PlanMismatchError               this job is not the one that the plan was made for
    ├── SettingsError                   an address, token or plan reference that cannot be used
    └── ProblemError                    the agent (or the planner in this process) said no, with a code
        ├── RequestError                change the request
        │   ├── InvalidRequestError         invalid_request          422
        │   ├── InvalidMeshError            invalid_mesh             422   also a ValueError
        │   ├── PlanInfeasibleError         plan_infeasible          422
        │   ├── DevicesUnusedError          devices_unused           422
        │   ├── BenchTooLargeError          bench_too_large          422
        │   ├── UnknownHardwareError        unknown_hardware         422
        │   ├── BodyTooLargeError           body_too_large           413
        │   ├── UnsupportedMediaTypeError   unsupported_media_type   415
        │   ├── NotAcceptableError          not_acceptable           406
        │   └── MethodNotAllowedError       method_not_allowed       405
        ├── NotFoundError               name something that exists
        │   ├── RouteNotFoundError          route_not_found          404
        │   ├── RunNotFoundError            run_not_found            404
        │   └── PlanNotFoundError           plan_not_found           404
        ├── ConflictError               wait, or settle it with whoever is in the way
        │   ├── DeviceBusyError             device_busy              409
        │   └── IdempotencyConflictError    idempotency_conflict     409
        ├── QueueFullError              queue_full               429   try again after `retry_after_s`
        ├── UnavailableError            try again, or look at the agent
        │   ├── NotReadyError               not_ready                503
        │   ├── DrainingError               draining                 503
        │   ├── WorkerCrashedError          worker_crashed           503
        │   ├── WorkerTimeoutError          worker_timeout           503
        │   ├── WorkerFailedError           worker_failed            503
        │   └── StoreUnavailableError       store_unavailable        503
        ├── RunFailedError              run_failed               500   a run that was waited for did not succeed
        ├── RunCancelledError           run_cancelled            409   … or was cancelled
        └── InternalError               internal                 500   a bug of ours: report it with the request id

Knows nothing of HTTP libraries: `_calls` turns a reply into these, `meshwright_agent.api.problem` these into a reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class MeshwrightError(Exception):
    """Any error that meshwright raises on purpose."""


class AgentConnectionError(MeshwrightError):
    """No agent answered at `host`: refused, reset, no route, no such socket."""

    def __init__(self, message: str, *, host: str = "", hint: str = "") -> None:
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)
        self.host = host
        self.hint = hint


class AgentTimeoutError(AgentConnectionError):
    """The agent at `host` did not answer within the time limit."""


class PlanMismatchError(MeshwrightError, ValueError):
    """The devices or the ranks of this job do not match the plan.

    `missing` and `surplus` name devices: those that the plan has and the job has not, and the reverse.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = (), surplus: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.surplus = tuple(surplus)


class SettingsError(MeshwrightError, ValueError):
    """An argument of the client, or the `MESHWRIGHT_` variable that stands for it, cannot be used."""


class ProblemError(MeshwrightError):
    """A refusal or failure with a stable `code`: RFC 9457's problem as an exception.

    Attributes:
        code: the machine-readable name; stable across versions.
        status: the HTTP status that goes with it.
        title: the code in words, the same for every occurrence.
        detail: what was asked, what was there, the rule.
        hint: a value or a step that works.
        errors: one entry a wrong field: `{"field": "mesh", "message": "…"}`.
        log: last lines of a dead worker, where there is one.
        retry_after_s: when to try again, where the agent said so.
        request_id, host: where it came from, empty when raised in this process.
    """

    code: str = ""
    default_status: ClassVar[int] = 500
    title: ClassVar[str] = "Error"

    def __init__(
        self,
        detail: str,
        *,
        hint: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        log: Sequence[str] = (),
        retry_after_s: float | None = None,
        request_id: str = "",
        host: str = "",
        status: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(detail)
        if code is not None:  # one that this release does not know, from a newer agent
            self.code = code
        self.detail = detail
        self.hint = hint
        self.errors = tuple(dict(error) for error in errors)
        self.log = tuple(log)
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.host = host
        self.status = self.default_status if status is None else status

    def __str__(self) -> str:
        lines = [self.detail]
        lines += [f"  {error.get('field', '?')}: {error.get('message', '')}" for error in self.errors]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        lines += [f"  log: {line}" for line in self.log[-5:]]
        where = " ".join(part for part in (f"code {self.code}", self.host, self.request_id) if part)
        return "\n".join([*lines, f"  ({where})"]) if self.host else "\n".join(lines)


class RequestError(ProblemError):
    """The request must change before it can succeed."""


class NotFoundError(ProblemError):
    """The thing that was named does not exist here."""


class ConflictError(ProblemError):
    """Somebody or something is in the way."""


class UnavailableError(ProblemError):
    """The agent is up but cannot answer this now."""


class InvalidRequestError(RequestError):
    """A field is unknown, missing, of the wrong type, or out of range."""

    code, default_status, title = "invalid_request", 422, "The request is not valid"


class InvalidMeshError(RequestError, ValueError):
    """The mesh is no mesh: syntax, names, sizes."""

    code, default_status, title = "invalid_mesh", 422, "The mesh is not valid"


class PlanInfeasibleError(RequestError, ValueError):
    """The mesh is well formed but cannot be laid on the devices."""

    code, default_status, title = "plan_infeasible", 422, "No plan is possible on these devices"


class DevicesUnusedError(RequestError, ValueError):
    """The mesh would silently leave devices unused."""

    code, default_status, title = "devices_unused", 422, "The mesh leaves devices unused"


class BenchTooLargeError(RequestError):
    """A bench asks for more memory than the device or host has."""

    code, default_status, title = "bench_too_large", 422, "The bench does not fit in memory"


class UnknownHardwareError(RequestError, ValueError):
    """A hardware name that no table knows."""

    code, default_status, title = "unknown_hardware", 422, "The hardware is not known"


class BodyTooLargeError(RequestError):
    """The body is over the agent's limit."""

    code, default_status, title = "body_too_large", 413, "The request body is too large"


class UnsupportedMediaTypeError(RequestError):
    """The body is not JSON."""

    code, default_status, title = "unsupported_media_type", 415, "The body is not application/json"


class NotAcceptableError(RequestError):
    """The answer cannot be written in the format that was asked for."""

    code, default_status, title = "not_acceptable", 406, "No such format"


class MethodNotAllowedError(RequestError):
    """The route exists, not with this method."""

    code, default_status, title = "method_not_allowed", 405, "The route does not take this method"


class RouteNotFoundError(NotFoundError):
    """No such path."""

    code, default_status, title = "route_not_found", 404, "No such route"


class RunNotFoundError(NotFoundError):
    """No run has this id."""

    code, default_status, title = "run_not_found", 404, "No such run"


class PlanNotFoundError(NotFoundError):
    """No stored plan has this fingerprint."""

    code, default_status, title = "plan_not_found", 404, "No such plan"


class DeviceBusyError(ConflictError):
    """Another process holds the device."""

    code, default_status, title = "device_busy", 409, "The device is held by another process"


class IdempotencyConflictError(ConflictError):
    """This Idempotency-Key was used before, with another request."""

    code, default_status, title = "idempotency_conflict", 409, "The idempotency key was used for another request"


class RunCancelledError(ConflictError):
    """The run that was waited for was cancelled."""

    code, default_status, title = "run_cancelled", 409, "The run was cancelled"


class QueueFullError(ProblemError):
    """Too many runs are waiting."""

    code, default_status, title = "queue_full", 429, "The queue of runs is full"


class NotReadyError(UnavailableError):
    """The agent has not yet seen its devices."""

    code, default_status, title = "not_ready", 503, "The agent is not ready yet"


class DrainingError(UnavailableError):
    """The agent is shutting down."""

    code, default_status, title = "draining", 503, "The agent is shutting down"


class WorkerCrashedError(UnavailableError):
    """The process that owns the devices died while it worked."""

    code, default_status, title = "worker_crashed", 503, "The device worker died"


class WorkerTimeoutError(UnavailableError):
    """The process that owns the devices did not answer in time and was killed."""

    code, default_status, title = "worker_timeout", 503, "The device worker did not answer"


class WorkerFailedError(UnavailableError):
    """The process that owns the devices cannot start, or has crashed too often."""

    code, default_status, title = "worker_failed", 503, "The device worker cannot start"


class StoreUnavailableError(UnavailableError):
    """The agent's database does not answer."""

    code, default_status, title = "store_unavailable", 503, "The agent's store does not answer"


class RunFailedError(ProblemError):
    """The run that was waited for failed."""

    code, default_status, title = "run_failed", 500, "The run failed"


class InternalError(ProblemError):
    """A bug of ours."""

    code, default_status, title = "internal", 500, "Internal error"


def _leaves(root: type[ProblemError]) -> list[type[ProblemError]]:
    own = [root] if root.code else []
    return own + [leaf for child in root.__subclasses__() for leaf in _leaves(child)]


BY_CODE: dict[str, type[ProblemError]] = {leaf.code: leaf for leaf in _leaves(ProblemError)}
"""Every problem code, and the class that means it on both sides."""

_BY_STATUS: dict[int, type[ProblemError]] = {
    404: NotFoundError,
    409: ConflictError,
    429: QueueFullError,
    503: UnavailableError,
}


def class_for(code: str, status: int) -> type[ProblemError]:
    """Returns the error class for a problem, falling back to its status for codes of a newer agent."""
    if code in BY_CODE:
        return BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return RequestError if 400 <= status < 500 else ProblemError

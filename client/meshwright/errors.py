"""The errors of meshwright, grouped by what the caller can do; each code is defined here once, for agent and client.

    MeshwrightError
    ├── AgentConnectionError            no agent answered: is it running, is the address right?
    │   └── AgentTimeoutError           the agent did not answer in time
    ├── FleetIncompleteError            hosts of a fleet did not answer: `.hosts` says which, and why
    ├── PlanMismatchError               this job does not match the plan
    ├── NotCompiledError                no compiler was started: the text says why; `verify` returns it as a status
    ├── SettingsError                   an address, token or plan reference that cannot be used
    └── ProblemError                    the agent (or the planner in this process) returned an error with a code
        ├── RequestError                change the request
        │   ├── InvalidRequestError         invalid_request          422
        │   ├── InvalidMeshError            invalid_mesh             422   also a ValueError
        │   ├── PlanInfeasibleError         plan_infeasible          422
        │   ├── DevicesUnusedError          devices_unused           422
        │   ├── DoesNotDivideError          does_not_divide          422
        │   ├── BenchTooLargeError          bench_too_large          422
        │   └── UnknownHardwareError        unknown_hardware         422
        ├── AccessError                 use a token with the scope, or the agent's own host name
        │   ├── UnauthorizedError           unauthorized             401
        │   └── ForbiddenError              forbidden                403, 421 to another host name
        ├── NotFoundError               not_found                404, 405   name something that exists
        ├── ConflictError               wait, or ask the owner of the lease or process
        │   ├── DeviceBusyError             device_busy              409
        │   └── DeviceLeasedError           device_leased            409
        ├── QueueFullError              queue_full               429   try again after `retry_after_s`
        ├── UnavailableError            try again, or check the agent
        │   ├── NotReadyError               not_ready                503
        │   ├── WorkerFailedError           worker_failed            503
        │   └── StoreUnavailableError       store_unavailable        503
        ├── RunFailedError              run_failed               500   a run that was waited for did not succeed
        ├── RunCancelledError           run_cancelled            409   … or was cancelled
        └── InternalError               internal                 500   a bug: report it with the request id

Independent of HTTP libraries: `_client` turns a reply into these, `meshwright_agent.api.problem` these into a reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self


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


class FleetIncompleteError(MeshwrightError):
    """Hosts of a fleet did not answer, and all of them (or at least one) are needed.

    `hosts` names each of them by its address, with the reason.
    """

    def __init__(self, message: str, *, hint: str = "", hosts: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)
        self.hint = hint
        self.hosts: dict[str, str] = dict(hosts or {})


class PlanMismatchError(MeshwrightError, ValueError):
    """The devices or the ranks of this job do not match the plan.

    `missing` and `surplus` name devices: those that the plan has and the job has not, and the reverse.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = (), surplus: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing: tuple[str, ...] = tuple(missing)
        self.surplus: tuple[str, ...] = tuple(surplus)


class NotCompiledError(MeshwrightError):
    """No compiler was started: the text says why, in a sentence, with an alternative that works."""


class SettingsError(MeshwrightError, ValueError):
    """An argument of the client, or its `MESHWRIGHT_` variable, cannot be used."""


class ProblemError(MeshwrightError):
    """A rejection or failure with a stable `code`: RFC 9457's problem as an exception.

    Attributes:
        code: the machine-readable name; stable across versions.
        status: its HTTP status.
        title: the code in words, the same for every occurrence.
        detail: the request, what was found, the rule.
        hint: a value or a step that works.
        errors: one entry per wrong field: `{"field": "mesh", "message": "…"}`.
        log: last lines of a dead worker's log, where there is one.
        retry_after_s: when to try again, where the agent reports it.
        request_id, host: its origin; empty when raised in this process.
    """

    code: str = ""
    default_status: ClassVar[int] = 500
    title: ClassVar[str] = "Error"

    def __init_subclass__(cls, *, code: str = "", status: int = 500, title: str = "Error") -> None:
        """Sets the code of a class; classes that only group others have no code."""
        super().__init_subclass__()
        cls.code, cls.default_status, cls.title = code, status, title

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
        if code is not None:  # a code that this release does not know, from a newer agent
            self.code = code
        self.detail = detail
        self.hint = hint
        self.errors: tuple[dict[str, Any], ...] = tuple(dict(error) for error in errors)
        self.log: tuple[str, ...] = tuple(log)
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.host = host
        self.status: int = self.default_status if status is None else status

    @classmethod
    def of(cls, field: str, detail: str, hint: str = "", message: str | None = None) -> Self:
        """Returns the error of one field of a request.

        Args:
            field: its name in the request, such as "training.global_batch_size".
            detail, hint: as in the class.
            message: the problem of the field; None: the whole detail.
        """
        return cls(detail, hint=hint, errors=[{"field": field, "message": detail if message is None else message}])

    def __str__(self) -> str:
        lines = [self.detail]
        lines += [f"  {error.get('field', '?')}: {error.get('message', '')}" for error in self.errors]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        lines += [f"  log: {line}" for line in self.log[-5:]]
        where = " ".join(part for part in (f"code {self.code}", self.host, self.request_id) if part)
        return "\n".join([*lines, f"  ({where})"]) if self.host else "\n".join(lines)


class RequestError(ProblemError):
    """The request must change before it can succeed."""


class AccessError(ProblemError):
    """The agent does not answer this caller."""


class UnauthorizedError(AccessError, code="unauthorized", status=401, title="A token is needed"):
    """No token, or none that this agent knows."""


class ForbiddenError(AccessError, code="forbidden", status=403, title="This caller may not do that"):
    """The caller's scope is too small, or the request names another host (421) or comes from a page of another site."""


class NotFoundError(ProblemError, code="not_found", status=404, title="No such thing"):
    """No route, run, plan, lease or component has this name, or the route does not take this method (405)."""


class ConflictError(ProblemError):
    """Another process, lease or run blocks the request."""


class UnavailableError(ProblemError):
    """The agent is up but cannot answer this now."""


class InvalidRequestError(RequestError, code="invalid_request", status=422, title="The request is not valid"):
    """A field is unknown, missing or out of range; or the body is too large (413) or not JSON (415)."""


class InvalidMeshError(RequestError, ValueError, code="invalid_mesh", status=422, title="The mesh is not valid"):
    """The mesh is no mesh: syntax, names, sizes."""


class PlanInfeasibleError(
    RequestError, ValueError, code="plan_infeasible", status=422, title="No plan is possible on these devices"
):
    """The mesh is well formed but cannot be laid on the devices."""


class DevicesUnusedError(
    RequestError, ValueError, code="devices_unused", status=422, title="The mesh leaves devices unused"
):
    """The mesh would silently leave devices unused."""


class DoesNotDivideError(
    RequestError, ValueError, code="does_not_divide", status=422, title="The mesh does not divide the model"
):
    """An axis of the mesh does not divide what it cuts of the model, the batch or the sequence."""


class BenchTooLargeError(RequestError, code="bench_too_large", status=422, title="The bench does not fit in memory"):
    """A bench asks for more memory than the device or host has."""


class UnknownHardwareError(
    RequestError, ValueError, code="unknown_hardware", status=422, title="The hardware is not known"
):
    """A hardware name that no table knows."""


class DeviceBusyError(ConflictError, code="device_busy", status=409, title="The device is held by another process"):
    """Another process holds the device."""


class DeviceLeasedError(ConflictError, code="device_leased", status=409, title="The device is leased"):
    """Somebody has reserved the device."""


class RunCancelledError(ConflictError, code="run_cancelled", status=409, title="The run was cancelled"):
    """The run that was waited for was cancelled."""


class QueueFullError(ProblemError, code="queue_full", status=429, title="The queue is full"):
    """Too many runs, or requests for plans, are waiting."""


class NotReadyError(UnavailableError, code="not_ready", status=503, title="The agent is not ready yet"):
    """The agent has not yet seen its devices, or is shutting down."""


class WorkerFailedError(UnavailableError, code="worker_failed", status=503, title="A worker failed"):
    """The process that owns the devices, or makes plans, cannot start, died, or did not answer in time."""


class StoreUnavailableError(
    UnavailableError, code="store_unavailable", status=503, title="The agent's store does not answer"
):
    """The agent's database does not answer."""


class RunFailedError(ProblemError, code="run_failed", status=500, title="The run failed"):
    """The run that was waited for failed."""


class InternalError(ProblemError, code="internal", status=500, title="Internal error"):
    """A bug of ours."""


def _leaves(root: type[ProblemError]) -> list[type[ProblemError]]:
    own = [root] if root.code else []
    return own + [leaf for child in root.__subclasses__() for leaf in _leaves(child)]


BY_CODE: dict[str, type[ProblemError]] = {leaf.code: leaf for leaf in _leaves(ProblemError)}
"""Every problem code, and its class on both sides."""

_BY_STATUS: dict[int, type[ProblemError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    421: ForbiddenError,
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

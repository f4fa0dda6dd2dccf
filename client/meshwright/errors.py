"""The errors of meshwright. A class is what callers catch; `CODES` has every code once, for agent and client.

    MeshwrightError
    ├── AgentConnectionError            no agent answered: is it running, is the address right?
    │   └── AgentTimeoutError           the agent did not answer in time
    ├── FleetIncompleteError            hosts of a fleet did not answer: `.hosts` says which, and why
    ├── PlanMismatchError               this job does not match the plan
    ├── NotCompiledError                no compiler was started: the text says why; `verify` returns it as a status
    ├── SettingsError                   an address, token or plan reference that cannot be used
    └── ProblemError                    the agent (or the planner in this process) returned an error with a code
        ├── RequestError                change the request
        │   ├── InvalidRequestError         invalid_request          422   … or bench_too_large
        │   ├── InvalidMeshError            invalid_mesh             422   also a ValueError
        │   ├── PlanInfeasibleError         plan_infeasible          422   … or devices_unused, does_not_divide
        │   └── UnknownHardwareError        unknown_hardware         422
        ├── UnauthorizedError           unauthorized             401   use a token
        ├── ForbiddenError              forbidden                403, 421   use another token, or the host's own name
        ├── NotFoundError               not_found                404, 405   name something that exists
        ├── ConflictError               wait, or ask the owner of the lease or process
        │   ├── DeviceBusyError             device_busy              409
        │   └── DeviceLeasedError           device_leased            409
        ├── QueueFullError              queue_full               429   try again after `retry_after_s`
        ├── UnavailableError            not_ready                503   … or worker_failed, store_unavailable: try again
        └── RunFailedError              run_failed               500   … or run_cancelled: a run gave no result

Independent of HTTP libraries: `_client` turns a reply into these, `meshwright.wire.problem` these into a reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self


class MeshwrightError(Exception):
    """Any error that meshwright raises on purpose: `detail` says what is wrong, `hint` what works ("" if unknown)."""

    def __init__(self, detail: str, *, hint: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.detail}\n  hint: {self.hint}" if self.hint else self.detail


class AgentConnectionError(MeshwrightError):
    """No agent answered at `host`: refused, reset, no route, no such socket."""

    def __init__(self, message: str, *, host: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.host = host


class AgentTimeoutError(AgentConnectionError):
    """The agent at `host` did not answer within the time limit."""


class FleetIncompleteError(MeshwrightError):
    """Hosts of a fleet did not answer, and all of them (or at least one) are needed.

    `hosts` names each of them by its address, with the reason.
    """

    def __init__(self, message: str, *, hint: str = "", hosts: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.hosts: dict[str, str] = dict(hosts or {})


class PlanMismatchError(MeshwrightError, ValueError):
    """The devices or the ranks of this job do not match the plan.

    `missing` and `surplus` name devices: those that the plan has and the job has not, and the reverse.
    """

    def __init__(
        self, message: str, *, hint: str = "", missing: Sequence[str] = (), surplus: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.missing: tuple[str, ...] = tuple(missing)
        self.surplus: tuple[str, ...] = tuple(surplus)


class NotCompiledError(MeshwrightError):
    """No compiler was started: the text says why, in a sentence, with an alternative that works.

    Attributes:
        log: the last lines of what failed before.
    """

    log: tuple[str, ...] = ()


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
        super().__init__(detail, hint=hint)
        if code is not None:
            self.code = code
        self.errors: tuple[dict[str, Any], ...] = tuple(dict(error) for error in errors)
        self.log: tuple[str, ...] = tuple(log)
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.host = host
        known = CODES.get(self.code)
        self.title: str = known.title if known else "Error"
        self.status: int = status or (known.status if known else 500)

    @classmethod
    def of(
        cls, field: str, detail: str, hint: str = "", message: str | None = None, *, code: str | None = None
    ) -> Self:
        """Returns the error of one field of a request.

        Args:
            field: its name in the request, such as "training.global_batch_size".
            detail, hint: as in the class.
            message: the problem of the field; None: the whole detail.
            code: another code of the class than its usual one.
        """
        errors = [{"field": field, "message": detail if message is None else message}]
        return cls(detail, hint=hint, errors=errors, code=code)

    def __str__(self) -> str:
        lines = [self.detail]
        lines += [f"  {error.get('field', '?')}: {error.get('message', '')}" for error in self.errors]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        lines += [f"  log: {line}" for line in self.log[-5:]]
        where = " ".join(part for part in (f"code {self.code}", self.host, self.request_id) if part)
        return "\n".join([*lines, f"  ({where})"]) if self.host else "\n".join(lines)


class RequestError(ProblemError):
    """The request must change before it can succeed."""


class InvalidRequestError(RequestError):
    """A field is unknown, missing or out of range; the body is too large (413) or not JSON (415)."""

    code = "invalid_request"


class InvalidMeshError(RequestError, ValueError):
    """The mesh is not valid: its syntax, names or sizes."""

    code = "invalid_mesh"


class PlanInfeasibleError(RequestError, ValueError):
    """The mesh is well formed but does not fit the devices, leaves some unused, or does not divide the model."""

    code = "plan_infeasible"


class UnknownHardwareError(RequestError, ValueError):
    """A hardware name that no table knows."""

    code = "unknown_hardware"


class UnauthorizedError(ProblemError):
    """No token, or none that this agent knows."""

    code = "unauthorized"


class ForbiddenError(ProblemError):
    """The caller's scope is too small, or the request names another host (421) or comes from a page of another site."""

    code = "forbidden"


class NotFoundError(ProblemError):
    """No route, run, plan, lease or component has this name, or the route does not take this method (405)."""

    code = "not_found"


class ConflictError(ProblemError):
    """Another process, lease or run blocks the request."""


class DeviceBusyError(ConflictError):
    """Another process holds the device."""

    code = "device_busy"


class DeviceLeasedError(ConflictError):
    """Another lease reserves the device."""

    code = "device_leased"


class QueueFullError(ProblemError):
    """Too many runs, or requests for plans, are waiting."""

    code = "queue_full"


class UnavailableError(ProblemError):
    """The agent is up but cannot answer this now: it starts or ends, or a worker or its store does not work."""

    code = "not_ready"


class RunFailedError(ProblemError):
    """The run that was waited for failed, or was cancelled."""

    code = "run_failed"


class Code(NamedTuple):
    """What a code means: the class that is raised for it, its HTTP status, and its title."""

    error: type[ProblemError]
    status: int
    title: str


CODES: Final[dict[str, Code]] = {
    "invalid_request": Code(InvalidRequestError, 422, "The request is not valid"),
    "invalid_mesh": Code(InvalidMeshError, 422, "The mesh is not valid"),
    "plan_infeasible": Code(PlanInfeasibleError, 422, "No plan is possible on these devices"),
    "devices_unused": Code(PlanInfeasibleError, 422, "The mesh leaves devices unused"),
    "does_not_divide": Code(PlanInfeasibleError, 422, "The mesh does not divide the model"),
    "bench_too_large": Code(InvalidRequestError, 422, "The bench does not fit in memory"),
    "unknown_hardware": Code(UnknownHardwareError, 422, "The hardware is not known"),
    "unauthorized": Code(UnauthorizedError, 401, "A token is needed"),
    "forbidden": Code(ForbiddenError, 403, "This caller may not do that"),
    "not_found": Code(NotFoundError, 404, "No such thing"),
    "device_busy": Code(DeviceBusyError, 409, "The device is held by another process"),
    "device_leased": Code(DeviceLeasedError, 409, "The device is leased"),
    "queue_full": Code(QueueFullError, 429, "The queue is full"),
    "not_ready": Code(UnavailableError, 503, "The agent is not ready yet"),
    "worker_failed": Code(UnavailableError, 503, "A worker failed"),
    "store_unavailable": Code(UnavailableError, 503, "The agent's store does not answer"),
    "run_failed": Code(RunFailedError, 500, "The run failed"),
    "run_cancelled": Code(RunFailedError, 409, "The run was cancelled"),
    "internal": Code(ProblemError, 500, "Internal error"),
}
"""Every problem code, for agent and client."""

_BY_STATUS: Final[dict[int, type[ProblemError]]] = {
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
    if code in CODES:
        return CODES[code].error
    return _BY_STATUS.get(status, RequestError if 400 <= status < 500 else ProblemError)

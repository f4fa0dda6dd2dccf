"""What a reply, or a missing one, means: whether and when to send again, which error it is, or the requested value.

The retry schedule is the usual one: 0.5·2ⁿ s, at most 8 s, with jitter; `Retry-After` is obeyed up to 120 s. Source:
the schedules of openai-python, anthropic-sdk-python, stripe-python; RFC 9110 §10.2.3. If an agent answered before and
seems to restart, the client waits longer for it.
"""

from __future__ import annotations

import json
import math
import random
import ssl
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from meshwright import wire
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    MeshwrightError,
    RunFailedError,
    SettingsError,
    class_for,
)
from meshwright.wire.problem import Problem

M = TypeVar("M", bound=BaseModel)

INITIAL_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 8.0
MAX_RETRY_AFTER_S: Final = 120.0
JITTER_RATIO: Final = 0.25
RESTART_S: Final = 15.0
"""The time to wait for an agent that restarts: systemd pauses for 2 s after a crash, a busy host for more."""
RESTART_STEP_S: Final = 1.0
MIN_ANSWER_S: Final = 1.0
"""However near the deadline is, a request that is sent is given so long."""
ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError)
"""Of an exchange. httpx does not wrap a TLS alert where anyio reads it. Source: tested with httpx 0.28.1."""

FailureKind = Literal["refused", "timeout", "lost", "untrusted", "expired", "handshake"]
"""No listener, or no such host · no answer in time · any other broken exchange · TLS: the agent's certificate is not
trusted · it is not valid at this time · the agent rejects the client's certificate, or does not use TLS."""

RUN_HINT: Final = "the agent may have made the run all the same: see GET /runs before you ask again"
_ROUTELESS: Final = frozenset({404, 405})
"""Without a problem document another server's answer, which tells nothing of what the agent has."""
_REPEATABLE: Final = frozenset({408, 429})
_FUTILE: Final = frozenset({"untrusted", "expired"})
"""Failures that a repetition does not mend."""
_HINTS: Final[dict[FailureKind, str]] = {
    "refused": "start one with `meshwright-agent serve`, or name its address in MESHWRIGHT_URL",
    "timeout": "give `Client` a longer `timeout`, or the call, if it has one, a longer `timeout_s`; or see /health",
    "lost": "the connection broke: look at the agent's log, and at what stands between",
    "untrusted": "name the file of the authority that signed the agent's certificate in MESHWRIGHT_CA_FILE, and ask by "
    "a name that stands in the certificate",
    "expired": "the agent's certificate, or its authority's, is not valid at this time: renew it, or check the clock "
    "of this host",
    "handshake": "show a certificate that the agent takes (MESHWRIGHT_CLIENT_CERT_FILE, MESHWRIGHT_CLIENT_KEY_FILE); "
    "an agent without TLS is asked by http://",
}
_REFUSAL_HINTS: Final = {
    401: "set MESHWRIGHT_TOKEN, or MESHWRIGHT_TOKEN_FILE, to a token of this agent; `meshwright-agent token new` on "
    "its host makes one",
    403: "use a token with a larger scope: read asks, operate benches, leases and releases, admin acknowledges",
    421: "ask by the host's own name or address, or add this one to the agent's MESHWRIGHT_ALLOWED_HOSTS",
    429: "ask less often; `max_retries` says how often a client tries again by itself",
}
"""The hints for answers without their own."""
_NOT_NOW: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, which is also of an authority's certificate.

Source: OpenSSL's X509_STORE_CTX_get_error(3).
"""
_TLS_ENDINGS: Final = frozenset({"UNEXPECTED_EOF_WHILE_READING", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"})
"""OpenSSL's reasons that mean a connection that ended, as it may on any transport."""

Outcome = httpx.Response | Exception
"""The reply to a request, or one of `ERRORS`."""


def build_deadline(timeout_s: float | None) -> float | None:
    """Returns the time, on the monotonic clock, that is so many seconds from now; None: no limit.

    Raises:
        SettingsError: the limit is nan.
    """
    if timeout_s is not None and math.isnan(timeout_s):
        raise SettingsError("a time limit is nan; it must be a number of seconds, such as 30, or None")
    return None if timeout_s is None else time.monotonic() + timeout_s


def count_left(deadline: float | None) -> float:
    """Returns the seconds until a deadline, at least 0; infinite without one."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def delay_retry(retries: int) -> float:
    """Returns the seconds before retry number `retries` (from 0), at random up to a quarter less."""
    return min(MAX_DELAY_S, INITIAL_DELAY_S * 2.0 ** min(retries, 16)) * (1 - JITTER_RATIO * random.random())


class Attempts:
    """Decides after each failed attempt of one request whether to send it again, and when.

    Args:
        max_retries: the limit; more are allowed only for an agent that restarts.
        makes_run: the agent starts a run for each request, so a request with a lost answer is not sent again.
        was_reached: an agent that answered before is waited for when it cannot be reached …
        was_ready: … or, where it answered this request before, when it is not ready.
    """

    def __init__(self, max_retries: int, *, makes_run: bool, was_reached: bool, was_ready: bool) -> None:
        self.is_lost = False
        """An answer was lost, so the agent may have carried out the request."""
        self._max_retries, self._makes_run = max_retries, makes_run
        self._was_reached, self._was_ready, self._was_repeated = was_reached, was_ready, False
        self._retries, self._waited_s = 0, 0.0

    def find_delay(self, outcome: Outcome) -> float | None:
        """Returns the seconds to wait before the next attempt; None: there is none."""
        self.is_lost = self.is_lost or is_lost(outcome)
        if self.is_lost and self._makes_run:
            return None
        is_broken = not isinstance(outcome, httpx.Response) and name_failure(outcome) == "lost"
        if self._was_reached and not self._was_repeated and is_broken:
            self._was_repeated = True  # most likely a kept-alive connection that the agent has closed
            return 0.0
        delay_s = self._choose_delay(outcome)
        self._retries, self._waited_s = self._retries + 1, self._waited_s + (delay_s or 0.0)
        return delay_s

    def _choose_delay(self, outcome: Outcome) -> float | None:
        is_restart = self._max_retries > 0 and self._waited_s < RESTART_S and self._is_restart(outcome)
        if self._retries >= self._max_retries and not is_restart:
            return None
        delay_s = min(delay_retry(self._retries), RESTART_STEP_S if is_restart else math.inf)
        if not isinstance(outcome, httpx.Response):
            return None if name_failure(outcome) in _FUTILE else delay_s
        if outcome.status_code < 500 and outcome.status_code not in _REPEATABLE:
            return None
        asked_s = parse_retry_after(outcome.headers.get("retry-after"), now=datetime.now(UTC))
        return delay_s if asked_s is None else asked_s if asked_s <= MAX_RETRY_AFTER_S else None

    def _is_restart(self, outcome: Outcome) -> bool:
        """Returns whether the outcome is typical of an agent that stops, is stopped, or has just started."""
        if not isinstance(outcome, httpx.Response):
            return self._was_reached and name_failure(outcome) in ("refused", "lost")
        problem = _parse_problem(outcome) if self._was_ready and outcome.status_code == 503 else None
        return problem is not None and problem.code == "not_ready"


def is_lost(outcome: Outcome) -> bool:
    """Returns whether the agent may have carried out the request, although its answer was lost."""
    if isinstance(outcome, httpx.Response):
        return outcome.status_code >= 500 and _parse_problem(outcome) is None  # of a proxy in between
    return name_failure(outcome) in ("timeout", "lost") and not isinstance(outcome, httpx.PoolTimeout)


def name_failure(error: BaseException) -> FailureKind:
    """Returns the kind of a failed exchange."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    match cause:
        case ssl.SSLCertVerificationError():
            return "expired" if getattr(cause, "verify_code", None) in _NOT_NOW else "untrusted"
        case ssl.SSLError(reason=reason) if isinstance(error, httpx.ConnectError) or reason not in _TLS_ENDINGS:
            return "handshake"
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.UnsupportedProtocol():
            return "refused"
        case httpx.TimeoutException():
            return "timeout"
    return "lost"


def parse_retry_after(value: str | None, *, now: datetime) -> float | None:
    """Returns the seconds of a Retry-After header (a number, or a date), or None."""
    if value is None:
        return None
    try:
        delay_s = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        delay_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return max(0.0, delay_s) if math.isfinite(delay_s) else None


def build_error(outcome: Outcome, asked: str, host: str, *, makes_run: bool = False) -> MeshwrightError:
    """Returns the error for a failure, or for a reply that is not an answer to the request `asked`."""
    said, lease_id = RUN_HINT if makes_run else "", asked.removeprefix("PUT /leases/")
    if lease_id != asked and "/" not in lease_id:
        said = f"the agent may hold lease {lease_id} all the same: end it (`end_lease`, DELETE /leases/{lease_id}), "
        said += "or ask again with this id"
    said = said if is_lost(outcome) else ""
    if not isinstance(outcome, httpx.Response):
        return _build_connection_error(outcome, asked, host, said)
    status, request_id = outcome.status_code, outcome.headers.get("x-request-id", "")
    problem = _parse_problem(outcome)
    if problem is None:
        text = outcome.content[:200].decode("utf-8", "replace").strip()
        hint = said or "is there a proxy in between, or something else than a meshwright agent at this address?"
        detail = f"{asked}: {host} answered {status} without a problem document: {text or '(empty)'}"
        if status in _ROUTELESS:
            return AgentConnectionError(detail, host=host, hint=hint)
        return class_for("", status)(
            detail, hint=_REFUSAL_HINTS.get(status, hint), request_id=request_id, host=host, status=status, code=""
        )
    prefix, path = urlsplit(host).path if host.startswith("http") else "", asked.partition(" ")[2]
    if prefix and problem.detail == f"there is no route {prefix}{path}":
        hint = f"leave {prefix} out of the address, or let the proxy there remove it"
        return AgentConnectionError(f"{asked}: there is no agent below the path of {host}", host=host, hint=hint)
    retry_after_s = parse_retry_after(outcome.headers.get("retry-after"), now=datetime.now(UTC))
    return _build_problem_error(problem, host, status, request_id, retry_after_s)


def _build_problem_error(
    problem: Problem, host: str, status: int, request_id: str = "", retry_after_s: float | None = None
) -> MeshwrightError:
    return class_for(problem.code, status)(
        problem.detail or problem.title,
        hint=problem.hint or _REFUSAL_HINTS.get(status, ""),
        errors=[error.model_dump() for error in problem.errors],
        log=problem.log,
        retry_after_s=retry_after_s,
        request_id=problem.request_id or request_id,
        host=host,
        status=status,
        code=problem.code,
    )


def _build_connection_error(error: Exception, asked: str, host: str, said: str) -> AgentConnectionError:
    kind, message = name_failure(error), str(error) or type(error).__name__
    hint = said or _HINTS[kind]
    if not said and kind == "lost" and host.startswith("https:"):  # in TLS 1.3 the client's handshake is complete
        refused = "where the agent asks for a client certificate, it may have refused this client's: look that"
        mended = "MESHWRIGHT_CLIENT_CERT_FILE is set, has not expired, and is signed by an authority of the agent's"
        hint = f"{refused} {mended}; else {hint}"
    elif kind == "handshake" and "WRONG_VERSION_NUMBER" in message:  # it answered, and not in TLS
        hint = f"the agent speaks no TLS at this address: ask by http:{host.partition(':')[2]}"
    elif hint == _HINTS["lost"] and isinstance(error, httpx.RemoteProtocolError) and host.startswith("http:"):
        hint = f"does this agent speak TLS? then ask by https:{host.partition(':')[2]}; else {hint}"
    if kind == "timeout":
        return AgentTimeoutError(f"{asked}: {host} did not answer in time: {message}", host=host, hint=hint)
    return AgentConnectionError(f"{asked}: no answer from {host}: {message}", host=host, hint=hint)


def _parse_problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def read_reply(model: type[M], response: httpx.Response, host: str) -> M:
    """Returns the reply as its model.

    Raises:
        AgentConnectionError: the answering server is not an agent, or its reply cannot be read.
    """
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        asked = f"{response.request.method} {response.request.url.raw_path.decode()}"
        detail = f"{asked}: {host} answered no {model.__name__} that can be read: {where}: {first['msg']}"
        raise AgentConnectionError(detail, host=host, hint="is the address that of a meshwright agent?") from error


def read_result(model: type[M], run: wire.runs.Run, host: str) -> M:
    """Returns the result of a finished run.

    Raises:
        RunFailedError: the run was cancelled.
        ProblemError: the run failed: the class of its problem, or RunFailedError where it has none.
    """
    if run.state == "succeeded":
        try:
            return model.model_validate_json(json.dumps(run.result or {}))
        except ValidationError as error:
            raise RunFailedError(f"{run.id} succeeded, but its result cannot be read: {error}", host=host) from error
    if run.error is not None:
        raise _build_problem_error(run.error, host, run.error.status)
    if run.state == "cancelled":
        raise RunFailedError(f"{run.id} was cancelled", hint="submit it again", host=host, code="run_cancelled")
    raise RunFailedError(f"{run.id} failed and does not say why", hint="look at the agent's log", host=host)

"""Evaluates an outcome: whether and when to retry, which error it is, or the requested value.

The retry schedule is the usual one: 0.5·2ⁿ s, at most 8 s, with jitter; `Retry-After` is obeyed up to 120 s. Source:
the schedules of openai-python, anthropic-sdk-python, stripe-python; RFC 9110 §10.2.3. If an agent answered before and
seems to restart, the client waits longer for it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from meshwright._calls.messages import Answer, Failure, Outcome, Request
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    MeshwrightError,
    class_for,
)
from meshwright.wire.problem import Problem, translate_validation

INITIAL_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 8.0
MAX_RETRY_AFTER_S: Final = 120.0
JITTER_RATIO: Final = 0.25
RESTART_S: Final = 15.0
"""The time to wait for an agent that restarts: systemd pauses for 2 s after a crash, a busy host for more."""
RESTART_STEP_S: Final = 1.0
_GONE: Final = frozenset({"refused", "lost", "stale"})
_LOST: Final = frozenset({"timeout", "stale", "lost"})
_GATEWAY: Final = frozenset({502, 504})
"""Statuses of proxies between client and agent."""
_STARTING: Final = frozenset({"not_ready"})
_UNAVAILABLE: Final = 503
_REPEATABLE: Final = frozenset({408, 429})
_LIKE_REFUSED: Final = frozenset({"lost", "stale"})
"""Failures that also occur if an agent rejects a client's certificate: in TLS 1.3 the client's handshake is already
complete."""
_REFUSED: Final = (
    "look that MESHWRIGHT_CLIENT_CERT_FILE is set, has not expired, and is signed by an authority of the agent's"
)
_FUTILE: Final = frozenset({"untrusted", "expired", "closed"})
"""Failures that a repetition does not mend."""
_HINTS: Final = {
    "refused": "start one with `meshwright-agent serve`, or name its address in MESHWRIGHT_URL",
    "timeout": "give the call a longer `timeout`, or look at the agent's /health",
    "stale": "the agent went away while it was asked: look at its log",
    "lost": "the connection broke: look at the agent's log, and at what stands between",
    "closed": "make a new client, or close this one later",
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

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class RetryPolicy:
    """The number and the delays of retries of an exchange. `jitter` returns a number in [0, 1)."""

    max_retries: int = 2
    jitter: Callable[[], float] = random.random

    def delay_s(self, retries: int) -> float:
        """Returns the seconds before retry number `retries` (from 0), at random up to a quarter less."""
        return min(MAX_DELAY_S, INITIAL_DELAY_S * 2.0 ** min(retries, 16)) * (1 - JITTER_RATIO * self.jitter())


def decide_retry(outcome: Outcome, retries: int, policy: RetryPolicy, waited_s: float | None = None) -> float | None:
    """Returns the seconds to wait before a retry, or None: do not retry.

    Args:
        outcome: of the last attempt.
        retries: the number of retries so far.
        policy: the limit of retries; more are allowed only for an agent that restarts.
        waited_s: seconds waited for an agent that answered before; None: it never answered, or the outcome is of
            another kind.
    """
    is_restart = waited_s is not None and waited_s < RESTART_S and policy.max_retries > 0 and _is_away(outcome)
    if retries >= policy.max_retries and not is_restart:
        return None
    delay_s = min(policy.delay_s(retries), RESTART_STEP_S) if is_restart else policy.delay_s(retries)
    if isinstance(outcome, Failure):
        return None if outcome.kind in _FUTILE else delay_s
    if outcome.status < 500 and outcome.status not in _REPEATABLE:
        return None
    asked_s = parse_retry_after(outcome.headers.get("retry-after"), now=datetime.now(UTC))
    if asked_s is None:
        return delay_s
    return asked_s if asked_s <= MAX_RETRY_AFTER_S else None


def is_lost_answer(outcome: Outcome) -> bool:
    """Returns whether the agent may have carried out the request, although its answer was lost."""
    if isinstance(outcome, Failure):
        return outcome.kind in _LOST
    return outcome.status in _GATEWAY


def _is_away(outcome: Outcome) -> bool:
    """Returns whether the outcome is typical of an agent that stops, is stopped, or has just started."""
    if isinstance(outcome, Failure):
        return outcome.kind in _GONE
    problem = _parse_problem(outcome) if outcome.status == _UNAVAILABLE else None
    return problem is not None and problem.code in _STARTING


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


def build_error(outcome: Outcome, request: Request, host: str, *, hint: str = "") -> MeshwrightError:
    """Returns the error for a failure, or for a reply that is not an answer to `request`.

    Args:
        outcome, request, host: the outcome, its request, and the answering host.
        hint: of a failure, in the place of the usual one.
    """
    if isinstance(outcome, Failure):
        return _build_connection_error(outcome, request, host, hint)
    problem = _parse_problem(outcome)
    if problem is None:
        return _build_foreign_error(outcome, request, host)
    retry_after = parse_retry_after(outcome.headers.get("retry-after"), now=datetime.now(UTC))
    return build_problem_error(
        problem, host=host, status=outcome.status, retry_after_s=retry_after, headers=outcome.headers
    )


def build_problem_error(
    problem: Problem,
    *,
    host: str,
    status: int | None = None,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> MeshwrightError:
    """Returns the exception of a problem document; `headers` are those that it came with, if any."""
    return class_for(problem.code, status or problem.status)(
        problem.detail or problem.title,
        hint=problem.hint or _REFUSAL_HINTS.get(status or problem.status, ""),
        errors=[error.model_dump() for error in problem.errors],
        log=problem.log,
        retry_after_s=retry_after_s,
        request_id=problem.request_id or (headers or {}).get("x-request-id", ""),
        host=host,
        status=status or problem.status,
        code=problem.code,
    )


def read_reply(model: type[M], answer: Answer, request: Request, host: str) -> M:
    """Returns the reply as its model.

    Raises:
        AgentConnectionError: the answering server is not an agent, or its reply cannot be read.
    """
    try:
        return model.model_validate_json(answer.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise AgentConnectionError(
            f"{request}: {host} answered no {model.__name__} that can be read: {where}: {first['msg']}",
            host=host,
            hint="is the address that of a meshwright agent?",
        ) from error


def build_request_model(model: type[M], fields: Mapping[str, Any]) -> M:
    """Returns the request with these fields; fields that are None are left out.

    Raises:
        InvalidRequestError: has one entry per wrong field, in the agent's format.
    """
    try:
        return model(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise translate_validation(error.errors()) from error


def _build_connection_error(failure: Failure, request: Request, host: str, said: str) -> AgentConnectionError:
    hint = said or _HINTS[failure.kind]
    if not said and failure.kind in _LIKE_REFUSED and host.startswith("https:"):
        hint = (
            f"where the agent asks for a client certificate, it may have refused this client's: {_REFUSED}; else {hint}"
        )
    if failure.kind == "timeout":
        return AgentTimeoutError(f"{request}: {host} did not answer in time: {failure.message}", host=host, hint=hint)
    return AgentConnectionError(f"{request}: no answer from {host}: {failure.message}", host=host, hint=hint)


def _build_foreign_error(answer: Answer, request: Request, host: str) -> MeshwrightError:
    text = answer.body[:200].decode("utf-8", "replace").strip()
    return class_for("", answer.status)(
        f"{request}: {host} answered {answer.status} without a problem document: {text or '(empty)'}",
        hint=_REFUSAL_HINTS.get(
            answer.status, "is there a proxy in between, or something else than a meshwright agent at this address?"
        ),
        request_id=answer.headers.get("x-request-id", ""),
        host=host,
        status=answer.status,
        code="",
    )


def _parse_problem(answer: Answer) -> Problem | None:
    try:
        return Problem.model_validate_json(answer.body)
    except ValidationError:
        return None

"""Requests the state of one host of a fleet, shared by both fleets: a flow of steps, like the client's flows.

Rule: any failure becomes the host's state; only bugs are raised. The deadline limits the retries.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from meshwright._calls import calls
from meshwright._calls.flows import Deadline, Flow, Link, exchange
from meshwright._fleet.state import FleetHost, HostState
from meshwright.errors import (
    AgentConnectionError,
    MeshwrightError,
    NotReadyError,
    ProblemError,
)

DEFAULT_TIMEOUT_S: Final = 5.0


def check_timeout(timeout_s: float) -> float:
    """Returns a time limit as it is.

    Raises:
        ValueError: the value is not a finite number above 0.
    """
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(
            f"timeout_s is {timeout_s}; it limits the time for all hosts; it is a finite number of seconds above 0, "
            f"such as {DEFAULT_TIMEOUT_S:g}"
        )
    return timeout_s


def look(url: str, link: Link, deadline: Deadline, note: Callable[[FleetHost], None]) -> Flow[None]:
    """Records the devices of one host, then their health; or the reason why it does not answer.

    A host that is not ready (it starts, shuts down, or its worker cannot start) counts as not answering. If the time
    ends before all answers are in, the recorded part is used.
    """
    started_s = link.clock()
    try:
        devices = yield from exchange(calls.devices(), link, deadline)
    except MeshwrightError as error:
        note(FleetHost(url, _evaluate(error), detail=_explain(error), duration_s=link.clock() - started_s))
        return
    with contextlib.suppress(MeshwrightError):
        ready = yield from exchange(calls.ready(), link, deadline)
        if not ready:
            note(FleetHost(url, "not_ready", devices.host.name, ready.line, link.clock() - started_s))
            return
    host = FleetHost(url, "ok", devices.host.name, duration_s=link.clock() - started_s, devices=devices)
    note(host)
    with contextlib.suppress(MeshwrightError):  # a plan reports it: health_unknown
        health = yield from exchange(calls.health(), link, deadline)
        note(replace(host, health=health, duration_s=link.clock() - started_s))


def build_late(url: str, timeout_s: float) -> FleetHost:
    """Returns the host that had not answered when the time was over."""
    return FleetHost(url, "unreachable", detail=f"no answer within {timeout_s:g} s", duration_s=timeout_s)


def _evaluate(error: MeshwrightError) -> HostState:
    if isinstance(error, NotReadyError):
        return "not_ready"
    unread = isinstance(error.__cause__, ValidationError)  # something answered, but its reply cannot be read
    return "unreachable" if isinstance(error, AgentConnectionError) and not unread else "error"


def _explain(error: MeshwrightError) -> str:
    """Returns the problem and its solution in one line. Without any answer, only the first line, since a fleet has many
    hosts."""
    if _evaluate(error) == "unreachable":
        return str(error).partition("\n")[0]
    detail = error.detail if isinstance(error, ProblemError) else str(error).partition("\n")[0]
    hint = error.hint if isinstance(error, ProblemError | AgentConnectionError) else ""
    return f"{detail}; {hint}" if hint else detail

"""The life of a child process as a table: (state, event) → (state, actions). All rules stand here, no I/O.

    stopped ──wanted──► starting ──hello──► ready ◄──reply/dispatched──► busy
       ▲                    │                 │                            │
       │ gone               └─ lost, timeout ─┴─ lost, timeout, released ──┘
       │                                      ▼
       └────────────────────────────────── stopping ──crashed──► backoff ──timeout──► stopped
                                              └──crashed_out──► failed ──reset──► stopped

`stopping` is the only way out for a process: however it came to its end, its group is killed and reaped
before anything else happens, so there are never two owners of one device. A state has at most one timer,
which ends with it; `timeout` means what the state says. Knows no process, no clock and no caller:
`supervisor` has the hands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.wire.devices import WorkerState

State = WorkerState

Event = Literal[
    "wanted",  # somebody waits for a ready child
    "hello",  # the child introduced itself, and is who it should be
    "dispatched",  # a waiting call is handed to the child
    "reply",  # the child has answered the call
    "cancelled",  # the call under way is no longer wanted
    "released",  # the child shall go
    "timeout",  # the state's timer ran out: start, call, grace after a cancel, idleness, pause
    "lost",  # the child died, or broke the protocol
    "gone",  # the process has ended as it should
    "crashed",  # the process has ended as it should not
    "crashed_out",  # … once too often
    "reset",  # an operator says: forget the crashes
]

Action = Literal[
    "spawn",  # start a process
    "offer",  # hand the next waiting call to the child
    "send_call",
    "send_cancel",
    "stop",  # close the socket, SIGTERM, SIGKILL: with time between
    "kill",  # SIGKILL
    "time_start",
    "time_call",
    "time_grace",
    "time_idle",
    "time_pause",
    "resume",  # if somebody waits, start again
    "refuse",  # tell everybody who waits that there will be no child
    "forget",  # forget the crashes
]

LIVE: Final[frozenset[State]] = frozenset({"starting", "ready", "busy"})


@dataclass(frozen=True)
class Step:
    """Where an event leads, and what is to be done on the way, in order."""

    state: State
    actions: tuple[Action, ...] = ()


TABLE: Final[Mapping[State, Mapping[Event, Step]]] = {
    "stopped": {
        "wanted": Step("starting", ("time_start", "spawn")),
        "released": Step("stopped"),
        "reset": Step("stopped", ("forget",)),
    },
    "starting": {
        "wanted": Step("starting"),
        "hello": Step("ready", ("time_idle", "offer")),
        "released": Step("stopping", ("stop",)),
        "timeout": Step("stopping", ("kill",)),
        "lost": Step("stopping", ("kill",)),
        "reset": Step("starting", ("forget",)),
    },
    "ready": {
        "wanted": Step("ready", ("offer",)),
        "dispatched": Step("busy", ("time_call", "send_call")),
        "released": Step("stopping", ("stop",)),
        "timeout": Step("stopping", ("stop",)),
        "lost": Step("stopping", ("kill",)),
        "reset": Step("ready", ("forget",)),
    },
    "busy": {
        "wanted": Step("busy"),
        "reply": Step("ready", ("time_idle", "offer")),
        "cancelled": Step("busy", ("time_grace", "send_cancel")),
        "released": Step("stopping", ("stop",)),
        "timeout": Step("stopping", ("kill",)),
        "lost": Step("stopping", ("kill",)),
        "reset": Step("busy", ("forget",)),
    },
    "stopping": {
        "wanted": Step("stopping"),
        "cancelled": Step("stopping"),
        "released": Step("stopping"),
        "gone": Step("stopped", ("resume",)),
        "crashed": Step("backoff", ("time_pause",)),
        "crashed_out": Step("failed", ("refuse",)),
        "reset": Step("stopping", ("forget",)),
    },
    "backoff": {
        "wanted": Step("backoff"),
        "released": Step("backoff"),
        "timeout": Step("stopped", ("resume",)),
        "reset": Step("stopped", ("forget", "resume")),
    },
    "failed": {
        "wanted": Step("failed", ("refuse",)),
        "released": Step("failed"),
        "reset": Step("stopped", ("forget", "resume")),
    },
}
"""Every pair that can happen. A pair that is not here is a bug of the supervisor, and `step` says so."""


class ImpossibleEventError(AssertionError):
    """An event that this state cannot see: a bug of ours."""


def step(state: State, event: Event) -> Step:
    """Returns where `event` leads from `state`.

    Raises:
        ImpossibleEventError: the table has no such pair.
    """
    try:
        return TABLE[state][event]
    except KeyError:
        raise ImpossibleEventError(f"{event} in state {state}; possible are {', '.join(TABLE[state])}") from None


@dataclass(frozen=True)
class CrashRule:
    """How long to pause after a crash, and when to give up."""

    budget: int
    window_s: float
    initial_s: float
    max_s: float


@dataclass(frozen=True)
class CrashHistory:
    """When the child crashed (monotonic seconds): what the pause and the giving up depend on."""

    at_s: tuple[float, ...] = ()

    def add(self, now_s: float, rule: CrashRule) -> CrashHistory:
        """Returns the history with one crash more, and without those that the window has left behind."""
        return CrashHistory((*(at for at in self.at_s if now_s - at < rule.window_s), now_s))

    def is_spent(self, rule: CrashRule) -> bool:
        """True when the budget is used up."""
        return len(self.at_s) >= rule.budget

    def pause_s(self, rule: CrashRule) -> float:
        """Returns the pause before the next start: doubled with each crash, up to the rule's limit."""
        doublings = min(len(self.at_s) - 1, 60)
        return min(rule.initial_s * 2.0**doublings, rule.max_s) if self.at_s else 0.0

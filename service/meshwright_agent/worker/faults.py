"""Faults: what can go wrong with a child, and the error that its callers get for it.

Rule: an error names what was asked, which process, how it ended, and what to do. Pure: knows no process, only
its obituary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.errors import ProblemError, WorkerCrashedError, WorkerFailedError, WorkerTimeoutError

FaultKind = Literal["refused", "lost", "start_timeout", "call_timeout"]

_DOCTOR: Final = "the log has its last lines; `meshwright-agent doctor` says what is wrong with this host's JAX"
_AGAIN: Final = "ask again: a new one is started; if it happens again, the log says where the worker was"


@dataclass(frozen=True)
class Fault:
    """Why a process is ended, when nobody asked for it.

    Attributes:
        kind: it said that it cannot work · it died or broke the protocol · no hello, or no answer, in time.
        words: what it said or did; for a timeout, empty.
        log: lines that are not in its output (a refusal's traceback).
    """

    kind: FaultKind
    words: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Obituary:
    """What is known of a dead process.

    Attributes:
        who: name, generation and pid, in words.
        ending: how it ended, in words.
        op: what it was working on, if anything.
        worked_s: for how long; without `op`, since it was started.
        limit_s: how long it might have taken.
        log: its last lines.
        status: its exit status, negative for a signal; None where it never ran or never ended.
    """

    who: str
    ending: str
    op: str | None
    worked_s: float
    limit_s: float
    log: tuple[str, ...]
    status: int | None = None


def build_fault_error(fault: Fault, dead: Obituary, *, retry_after_s: float | None = None) -> ProblemError:
    """Returns the error for those who waited for `dead`."""
    log = (*dead.log, *fault.log)
    asked = f"{dead.op} was asked of {dead.who}" if dead.op else f"{dead.who} was started"
    match fault.kind, dead.op:
        case "refused", _:
            return WorkerFailedError(f"{asked}; it cannot work: {fault.words}", hint=_DOCTOR, log=log)
        case "lost", None:
            detail = f"{asked}; after {dead.worked_s:.1f} s it {fault.words} and {dead.ending}"
            return WorkerFailedError(detail, hint=_DOCTOR, log=log, retry_after_s=retry_after_s)
        case "lost", _:
            detail = f"{asked}; after {dead.worked_s:.1f} s it {fault.words} and {dead.ending}"
            return WorkerCrashedError(detail, hint=_AGAIN, log=log, retry_after_s=retry_after_s)
        case "start_timeout", _:
            detail = f"{asked}; it was not ready within {dead.limit_s:g} s and was killed"
            return WorkerTimeoutError(detail, hint=_DOCTOR, log=log, retry_after_s=retry_after_s)
        case _:
            detail = f"{asked}; it did not answer within {dead.limit_s:g} s and was killed"
            return WorkerTimeoutError(detail, hint=_AGAIN, log=log, retry_after_s=retry_after_s)


def build_haunted_error(name: str, pids: Sequence[int], log: tuple[str, ...]) -> ProblemError:
    """Returns the error for those who want a child while these of before do not end."""
    named = ", ".join(map(str, pids))
    return WorkerFailedError(
        f"an earlier {name} worker (process {named}) does not end, not even by SIGKILL, and may hold the devices; no "
        "second one is started beside it",
        hint=f"the kernel holds it: cat /proc/{pids[0]}/stack on the host; drain it, and reboot if nothing else helps",
        log=log,
    )


def build_spent_error(
    name: str, last_error: str | None, log: tuple[str, ...], *, count: int, window_s: float
) -> ProblemError:
    """Returns the error for those who want a child that has crashed too often."""
    return WorkerFailedError(
        f"the {name} worker crashed {count} times within {window_s:g} s and stays down; last: {last_error}",
        hint=f"{_DOCTOR}; restart the agent when it is mended",
        log=log,
    )

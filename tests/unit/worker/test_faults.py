"""The errors for what goes wrong with a child: the class, and the four parts of the text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import ProblemError, WorkerCrashedError, WorkerFailedError, WorkerTimeoutError
from meshwright_agent.worker.faults import Fault, Obituary, build_fault_error, build_spent_error

WHO = "the device worker (generation 2, pid 7)"
DEAD = Obituary(WHO, "was killed by SIGSEGV", "bench", 3.21, 20.0, ("a", "b"))
UNBORN = replace(DEAD, op=None)
LOST = "after 3.2 s it closed its socket and was killed by SIGSEGV"
LATE = "within 20 s and was killed"


@pytest.mark.parametrize(
    ("fault", "dead", "kind", "detail"),
    [
        (Fault("lost", "closed its socket"), DEAD, WorkerCrashedError, f"bench was asked of {WHO}; {LOST}"),
        (Fault("lost", "closed its socket"), UNBORN, WorkerFailedError, f"{WHO} was started; {LOST}"),
        (
            Fault("refused", "no devices"),
            UNBORN,
            WorkerFailedError,
            f"{WHO} was started; it cannot work: no devices",
        ),
        (Fault("start_timeout"), UNBORN, WorkerTimeoutError, f"{WHO} was started; it was not ready {LATE}"),
        (
            Fault("call_timeout"),
            DEAD,
            WorkerTimeoutError,
            f"bench was asked of {WHO}; it did not answer {LATE}",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_each_fault_has_its_class_and_says_what_was_asked_and_what_happened(
    fault: Fault, dead: Obituary, kind: type[ProblemError], detail: str
) -> None:
    error = build_fault_error(fault, dead, retry_after_s=0.5)
    assert type(error) is kind
    assert error.detail == detail
    assert error.hint
    assert error.log == ("a", "b")


def test_the_traceback_of_a_refusal_follows_the_output() -> None:
    error = build_fault_error(Fault("refused", "x", log=("Traceback", "x")), UNBORN)
    assert error.log == ("a", "b", "Traceback", "x")


def test_a_spent_budget_tells_the_last_error_and_what_to_do() -> None:
    error = build_spent_error("device", "it died", ("a",), count=5, window_s=300.0)
    assert error.detail == "the device worker crashed 5 times within 300 s and stays down; last: it died"
    assert "doctor" in error.hint
    assert error.log == ("a",)

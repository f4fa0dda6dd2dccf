"""What is kept of processes that ended: a crash is told from what was asked for; one that does not end stays named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from meshwright.errors import WorkerFailedError
from meshwright_agent.worker.deaths import Deaths
from meshwright_agent.worker.faults import Fault
from meshwright_agent.worker.jobs import CallCancelled
from meshwright_agent.worker.process import ChildSpec, Ending
from meshwright_agent.worker.tenure import Tenure
from tests.fakes.children import FakeChild
from tests.fakes.stored import ManualClock

SPEC = ChildSpec(
    "fake", "no.module", dict, has_devices=True, crash_budget=2, crash_window_s=60.0, backoff_initial_s=7.0
)
KILLED = Ending(status=-9, killed=True)
UNKILLABLE = Ending(status=None, killed=True)


def end(generation: int, why: Fault | str, ending: Ending = KILLED) -> Tenure:
    """Returns a tenure that is finished."""
    child = FakeChild(generation, SPEC.name, lambda _: None, lambda _: None, ending)
    return Tenure(SPEC, generation, 0.0, child, {}, why, ending)


def live(scenario: Callable[[Deaths], Awaitable[None]]) -> None:
    async def run() -> None:
        deaths = Deaths(SPEC, ManualClock())
        try:
            await scenario(deaths)
        finally:
            deaths.close()

    asyncio.run(run())


def test_an_end_that_was_asked_for_is_no_crash_and_leaves_no_error() -> None:
    async def scenario(deaths: Deaths) -> None:
        error = deaths.record(end(1, "released"), None)
        assert isinstance(error, CallCancelled)
        assert error.reason == "released"
        assert (deaths.crash_count, deaths.last_error, deaths.pause_s) == (0, None, 0.0)
        assert deaths.last_log == ("log of generation 1",)
        assert deaths.obituary is not None
        assert deaths.obituary.status == -9

    live(scenario)


def test_crashes_lengthen_the_pause_and_spend_the_budget_until_they_are_forgotten() -> None:
    async def scenario(deaths: Deaths) -> None:
        first = deaths.record(end(1, Fault("lost", "died")), None)
        assert isinstance(first, WorkerFailedError)
        assert (first.retry_after_s, deaths.is_spent) == (7.0, False)
        deaths.record(end(2, Fault("lost", "died")), None)
        assert (deaths.pause_s, deaths.is_spent) == (14.0, True)
        assert "crashed 2 times within 60 s" in str(deaths.build_spent())
        deaths.forget()
        assert (deaths.pause_s, deaths.is_spent, deaths.last_error) == (0.0, False, None)
        assert deaths.crash_count == 2  # a counter of /metrics never falls

    live(scenario)


def test_one_that_does_not_end_is_a_crash_though_its_end_was_asked_for_and_is_named_until_it_is_gone() -> None:
    async def scenario(deaths: Deaths) -> None:
        undead = end(1, "released", UNKILLABLE)
        assert isinstance(deaths.record(undead, None), CallCancelled)
        assert "pid 1001" in str(deaths.last_error)
        assert (deaths.crash_count, deaths.abandoned_pids, deaths.is_haunted) == (1, (1001,), True)
        assert "process 1001" in str(deaths.build_haunted())
        deaths.forget()
        assert deaths.is_haunted  # no word ends a process
        assert isinstance(undead.child, FakeChild)
        undead.child.reaped.set()
        for _ in range(3):
            await asyncio.sleep(0)  # lets the watch over it run
        assert (deaths.abandoned_pids, deaths.is_haunted) == ((), False)

    live(scenario)

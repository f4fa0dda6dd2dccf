"""A preflight of agents that say what their runs came to."""

from __future__ import annotations

import pytest

from meshwright import Fleet
from meshwright.errors import DeviceBusyError, ProblemError, RunFailedError
from meshwright.preflight import check_hosts
from meshwright.testing import FakeAgent
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Run
from tests.fakes.machines import NOW


@pytest.mark.parametrize(("error", "verdict"), [
    (DeviceBusyError("device 0 is used by process 7"), "unknown"), (RunFailedError("its devices hang"), "fault"),
])  # fmt: skip
def test_a_run_that_failed_is_its_hosts_fault_and_a_device_in_use_is_not(error: ProblemError, verdict: str) -> None:
    agent, problem = FakeAgent(), build_problem(error)
    devices = agent.client().devices()
    here = devices.host.model_copy(update={"basis": "passive"})
    agent.answer("GET", "/devices", devices.model_copy(update={"host": here}))
    run = Run(id="r", kind="preflight", state="failed", created_at=NOW, request={}, error=problem)
    agent.answer("POST", "/preflight", run)
    with Fleet(["http://a:8790"], connect=lambda _: agent.client()) as fleet:
        report = check_hosts(fleet)
    assert (report.verdict, [each.text for each in report.hosts[0].findings]) == (verdict, [error.detail])

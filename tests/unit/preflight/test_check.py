"""A preflight of agents that say what their runs came to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meshwright import Fleet
from meshwright.errors import DeviceBusyError, ProblemError, RunFailedError
from meshwright.preflight import check_hosts
from meshwright.preflight.check import compare_hosts
from meshwright.testing import FakeAgent
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Run
from tests.fakes.machines import NOW


@pytest.mark.parametrize(("what", "values", "texts"), [
    ("jax", ("0.10.2", None, None), {}),  # not imported yet since the agent started
    ("jax", ("0.10.2", "0.12.0", "0.10.2"), {1: ("fault", "jax: it has 0.12.0, 2 others 0.10.2")}),
    ("agent", ("2.0", "2.0", "1.9"), {2: ("unchecked", "agent: it has 1.9, 2 others 2.0")}),
])  # fmt: skip
def test_hosts_are_compared_by_what_is_known(
    what: str, values: tuple[str | None, ...], texts: dict[int, tuple[str, str]]
) -> None:
    agents = [FakeAgent(host=f"host-{number}") for number in range(3)]
    for agent, value in zip(agents, values, strict=True):
        devices = agent.client().devices()
        here = devices.host.model_copy(update={"basis": "passive", "observed_at": datetime.now(UTC)})
        software = devices.software.model_copy(update={what: value})
        agent.answer("GET", "/devices", devices.model_copy(update={"host": here, "software": software}))
    by_url = {f"http://h{number}:8790": agent for number, agent in enumerate(agents)}
    with Fleet(list(by_url), connect=lambda url: by_url[url].client()) as fleet:
        found = dict(compare_hosts(fleet.devices(), None, ""))
    assert {place: (each.state, each.text) for place, each in found.items()} == texts


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

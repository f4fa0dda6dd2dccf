"""The agent's joints, without a child: health reaches plans, what a bench says reaches scrapes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import UnavailableError
from meshwright.testing import FakeAgent
from meshwright.wire.bench import BenchRecord
from meshwright.wire.mesh import PlanRequest, Plans
from meshwright_agent.agent import Agent
from meshwright_agent.answers.benches import MAX_SCRAPED
from meshwright_agent.children.planner import parse_here
from meshwright_agent.health.events import Finding, Standing
from meshwright_agent.host.snapshot import JaxReport
from meshwright_agent.settings import Settings
from tests.fakes.codes import has_code
from tests.fakes.stored import build_record_json
from tests.unit.store.opening import build_closed_store


def build_agent(folder: Path, count: int = 8) -> Agent:
    agent = Agent(Settings(cpu_devices=count, state_dir=folder), build_closed_store(folder), environ={})
    devices: list[dict[str, Any]] = [{"id": index, "kind": "cpu", "platform": "cpu"} for index in range(count)]
    view = {"platform": "cpu", "jax": "0.0", "jaxlib": "0.0", "process_index": 0, "devices": devices}
    agent.host.update(jax=JaxReport(view, agent.clock.now()))
    return agent


def plan(agent: Agent, **request: Any) -> Plans:
    answer = asyncio.run(agent.plans.answer(PlanRequest(**request)))
    return Plans.model_validate_json(answer.text)


def warnings_of(agent: Agent, **request: Any) -> dict[str, str]:
    plans = plan(agent, **request)
    return {notice.code: notice.message for notice in (*plans.plans[0].warnings, *plans.warnings)}


def test_a_planner_is_told_a_large_host_with_the_health_of_each_device(tmp_path: Path) -> None:
    agent = build_agent(tmp_path, 100)
    agent.health.report("device:70", Finding("unhealthy", "gave wrong results"), at=agent.clock.now())
    here = parse_here(json.loads(json.dumps(agent.host.dump_here(agent.host.here()))))
    listed = ([device.to_reference() for device in each.devices] for each in (here.topology, agent.host.topology()))
    assert next(listed) == next(listed)
    assert {place for place, state in here.health.items() if state == "unhealthy"} == {70}


def test_a_device_that_is_degraded_is_planned_with_a_warning(tmp_path: Path) -> None:
    agent = build_agent(tmp_path)
    assert "devices_degraded" not in warnings_of(agent, mesh="x:8")
    agent.health.report("device:3", Finding("degraded", "gave a wrong result"), at=agent.clock.now())
    assert "3" in warnings_of(agent, mesh="x:8")["devices_degraded"]


def test_no_plan_is_made_before_anything_was_seen(tmp_path: Path) -> None:
    agent = Agent(Settings(cpu_devices=8, state_dir=tmp_path), build_closed_store(tmp_path), environ={})
    with pytest.raises(UnavailableError, check=has_code("not_ready")):
        plan(agent, mesh="x:8")


@pytest.mark.parametrize(
    ("simulated", "variables"), [("v5e:2x2", {}), ("h100:8", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.75"})]
)
def test_a_job_is_told_what_its_platform_reads_and_what_was_asked_for(
    tmp_path: Path, simulated: str, variables: dict[str, str]
) -> None:
    settings = Settings(simulate=simulated, state_dir=tmp_path)
    agent = Agent(settings, build_closed_store(tmp_path), environ={"JAX_ENABLE_X64": "1"})
    assert agent.environment("balanced", None).variables == variables
    fake = FakeAgent(simulated)
    with fake.client() as client:
        assert client.environment().variables == variables


def test_a_scrape_sees_the_newest_record_of_each_case_at_once(tmp_path: Path) -> None:
    agent = build_agent(tmp_path)
    for wrong_elements in (0, 5):
        agent.benches.remember(BenchRecord.model_validate(build_record_json(wrong_elements=wrong_elements)))
    assert [record.wrong_elements for record in agent.benches.newest_records()] == [5]


def test_a_scrape_sees_so_many_records_and_no_more(tmp_path: Path) -> None:
    """10,000 are stored at most; in memory, with every size that was ever asked, they had no bound."""
    agent = build_agent(tmp_path)
    record = BenchRecord.model_validate(build_record_json())
    for number in range(MAX_SCRAPED + 5):
        agent.benches.remember(record.model_copy(update={"size_bytes": number}))
    agent.benches.remember(record.model_copy(update={"size_bytes": 5}))
    newest = agent.benches.newest_records()
    assert (len(newest), newest[0].size_bytes, newest[-1].size_bytes) == (MAX_SCRAPED, 6, 5)
    assert not any(each.samples_s for each in newest)


def test_states_of_what_is_not_here_any_more_are_forgotten_when_all_had_time_for_a_look(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, probe_interval_s=0.005, probe_timeout_s=0.005, start_timeout_s=0.01)
    agent = Agent(settings, build_closed_store(tmp_path), environ={})
    for name in ("store", "device:9"):
        agent.history.memory.states[name] = Standing("healthy", agent.started_at)
    asyncio.run(agent._forget_gone())
    assert list(agent.history.memory.states) == ["store"]

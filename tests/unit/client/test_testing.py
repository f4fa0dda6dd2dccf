"""The fake agent: its hosts can be planned on, its refusals and its leases are those of an agent."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import (
    DeviceLeasedError,
    InvalidMeshError,
    InvalidRequestError,
    NotFoundError,
    PlanInfeasibleError,
)
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.testing import FakeAgent
from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from meshwright.wire.health import HealthEvents
from meshwright.wire.leases import VerdictRequest
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.preflight import PreflightRequest
from tests.fakes.stored import build_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("target", ["cpu:1", "cpu:8", "h100:8", "gb200:4", "v5e:2x2", "v5p"])
def test_every_fake_host_is_a_topology_that_can_be_planned_on_and_survives_json(target: str) -> None:
    devices = FakeAgent(target).devices
    assert Devices.model_validate_json(devices.model_dump_json()) == devices
    assert plan_mesh(PlanRequest(mesh="dp:-1"), Topology.of(devices)).mesh_shape == {"dp": len(devices.devices)}
    names = [device.uuid for name in ("a", "b") for device in FakeAgent(target, host=name).devices.devices]
    assert len(set(names)) == len(names) or set(names) == {None}


def test_hardware_that_is_none_or_of_several_hosts_is_refused() -> None:
    with pytest.raises(PlanInfeasibleError, match="h100:2"):
        FakeAgent("h100:3")
    with pytest.raises(ValueError, match="a FakeAgent is one host, such as h100:8"):
        FakeAgent("2*h100:8")


# ---- health


@pytest.mark.parametrize("target", ["cpu:8", "h100:8"])
def test_an_unhealthy_device_is_left_out_of_plans_and_of_leases_by_count(target: str) -> None:
    fake = FakeAgent(target)
    name = fake.change_health("device:1", "unhealthy", "XID 79").name
    assert name == ("device:1" if target == "cpu:8" else f"device:{fake.devices.devices[1].uuid}")
    with fake.client() as client:
        assert client.health().state == "unhealthy"
        plan = client.plan("dp:7")
        assert [device.local_index for device in plan.devices] == [0, 2, 3, 4, 5, 6, 7]
        assert [notice.code for notice in plan.warnings] == ["devices_left_out"]
        lease = client.lease({"count": 7}, purpose="job")
        assert [device.local_index for device in lease.devices] == [0, 2, 3, 4, 5, 6, 7]


# ---- replies of a test's own


def test_a_route_can_be_given_another_answer_or_an_error() -> None:
    fake = FakeAgent()
    fake.answer("GET", "/health", {"state": "degraded", "components": []})
    fake.answer("GET", "/metrics", "x 1\n")
    fake.answer("GET", "/readyz", httpx.Response(503, text="starting\n"))
    fake.answer("POST", "/mesh/plan", InvalidMeshError("not today"))
    fake.answer("GET", "/mesh/plan/{fingerprint}", lambda request: NotFoundError(request.url.path))
    with fake.client() as client:
        assert client.health().state == "degraded"
        assert client.metrics() == "x 1\n"
        assert [client.ready().ready for _ in range(2)] == [False, False]
        with pytest.raises(InvalidMeshError, match="not today"):
            client.plan("dp:8")
        with pytest.raises(NotFoundError, match="/mesh/plan/mw1-7"):
            client.get_plan("mw1-7")


def test_a_function_may_return_what_answer_takes() -> None:
    fake = FakeAgent()
    fake.answer("GET", "/health", lambda request: {"state": "degraded", "components": []})
    with fake.client() as client:
        assert client.health().state == "degraded"
        fake.answer("GET", "/health", lambda request: {"state": "splendid"})
        with pytest.raises(ValueError):
            client.health()


@pytest.mark.parametrize("name", ["device:GPU-typo", "device:99", "thermal:99", "device:"])
def test_a_component_of_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is of no device here; name one of device:0, device:1"):
        FakeAgent("cpu:2").change_health(name, "unhealthy")


def test_following_events_pauses_between_streams_that_are_empty() -> None:
    fake = FakeAgent()

    def stop(request: httpx.Request) -> Any:
        return NotFoundError("enough") if len(fake.pauses_s) == 5 else HealthEvents(events=(), last_seq=0)

    fake.answer("GET", "/events", stop)
    began_s = time.monotonic()
    with fake.client() as client, pytest.raises(NotFoundError):
        list(client.follow_events())
    assert time.monotonic() - began_s >= 0.05


@pytest.mark.parametrize(
    ("path", "reply"), [("/nowhere", {}), ("/health", {"state": "splendid"}), ("/metrics", {"x": 1})]
)
def test_an_answer_that_no_agent_gives_is_refused_when_it_is_set(path: str, reply: Any) -> None:
    with pytest.raises(ValueError):
        FakeAgent().answer("GET", path, reply)


def test_a_run_that_is_answered_can_be_read_listed_and_cancelled() -> None:
    fake = FakeAgent()
    with fake.client() as client:
        assert client.bench(cases=["matmul"]).skipped[0].reason == "FakeAgent measures nothing"
        fake.answer("POST", "/placement/bench", build_run(7, state="running"))
        run = client.submit_bench()
        assert client.run(run.id) == run
        assert [each.id for each in client.runs(state="running").runs] == [run.id]
        assert client.cancel_run(run.id).state == client.run(run.id).state == "cancelled"
        assert [event.state for event in client.run_events(run.id, after=1)] == ["cancelled"]


def test_a_compile_says_that_there_is_no_compiler() -> None:
    step: dict[str, Any] = {"model": "gpt2", "training": {}, "compile": True}
    with FakeAgent("h100:8").client() as client:
        plan = client.plan("fsdp:8", model="gpt2", training={"global_batch_size": 8}, compile=True)
        assert plan.verification is not None
        assert plan.verification.status == "not_compiled"
        fitted = client.batch_size(**step, mesh="fsdp:8").compiled
        assert fitted is not None
        assert fitted.per_replica_batch_size is None


def test_what_an_agent_refuses_is_refused_and_its_own_plan_comes_before_one_of_a_target() -> None:
    request = PreflightRequest(lease="job", hosts=("a",), process_id=0, coordinator="a:1")
    with FakeAgent("h100:4").client() as client:
        made = [client.plan("dp:4"), client.plan("dp:4", target="h100:4")]
        assert [client.get_plan(plan.fingerprint).target for plan in made] == [None, None]
        client.lease({"exclude": [3]}, purpose="x", lease_id="job")
        assert client.lease({"exclude": [3]}, purpose="x", lease_id="job").id == "job"
        with pytest.raises(DeviceLeasedError, match="holds other devices"):
            client.lease({"exclude": [0]}, purpose="x", lease_id="job")
        for call in (lambda: client.bench(devices=[9]), lambda: client.start_preflight(request)):
            with pytest.raises(InvalidRequestError):
                call()
        with pytest.raises(NotFoundError, match="lease 'nope' has ended, or never was"):
            client.bench(lease="nope")


# ---- leases


NAMED = st.lists(st.integers(0, 3), min_size=1, max_size=4)
DEVICES = st.one_of(st.just("all"), NAMED, st.fixed_dictionaries({"count": st.integers(1, 4)}))


@given(st.lists(st.tuples(DEVICES, st.floats(1, 100), st.floats(0, 60)), max_size=12))
def test_a_device_never_has_two_leases_and_a_lease_ends_with_its_time(asked: list[Any]) -> None:
    now, ends = [NOW], dict[str, datetime]()
    fake = FakeAgent("h100:4", clock=lambda: now[0])
    with fake.client() as client:
        for number, (devices, ttl_s, wait_s) in enumerate(asked):
            with contextlib.suppress(DeviceLeasedError):
                lease = client.lease(devices, purpose="job", ttl_s=ttl_s, lease_id=f"job-{number}")
                ends[lease.id] = now[0] + timedelta(seconds=ttl_s)
            leases = client.leases().leases
            assert {lease.id for lease in leases} == {name for name, end in ends.items() if end > now[0]}
            indices = [device.local_index for lease in leases for device in lease.devices]
            assert sorted(indices) == sorted(set(indices))
            assert {device.local_index for device in client.devices().devices if device.lease} == set(indices)
            assert all(lease.expires_in_s > 0 for lease in leases)
            now[0] += timedelta(seconds=wait_s)


def test_a_prolog_hears_the_verdict_of_a_preflight() -> None:
    with FakeAgent("h100:8").client() as client:
        client.lease("all", purpose="job", lease_id="slurm-7")
        with pytest.raises(NotFoundError, match="no preflight"):
            client.get_verdict("slurm-7")
        client.put_verdict("slurm-7", VerdictRequest(state="fault", reason="slow"))
        assert client.get_verdict("slurm-7").state == "fault"

"""The fake agent is a truthful fake: its hosts are topologies, its answers those of the models, its faults real."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import BY_CODE, DeviceLeasedError, ForbiddenError, InvalidMeshError
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.testing import FakeAgent, build_devices
from meshwright.testing.hardware import MODELS
from meshwright.testing.leases import LeaseBook
from meshwright.testing.runs import build_result
from meshwright.topology.model import Topology
from meshwright.wire.bench import BenchCase, BenchRequest
from meshwright.wire.devices import Devices
from meshwright.wire.leases import LeaseRequest
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.problem import Problem

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 16))
def test_every_fake_host_is_a_topology_that_can_be_planned_on_and_survives_json(kind: str, count: int) -> None:
    devices = build_devices(f"{kind}:{count}", at=NOW)
    assert Devices.model_validate_json(devices.model_dump_json()) == devices
    plan = plan_mesh(PlanRequest(mesh="dp:-1"), Topology.of(devices))
    assert plan.mesh_shape == {"dp": count}
    uuids = [device.uuid for device in devices.devices if device.uuid]
    assert len(set(uuids)) == len(uuids)


@pytest.mark.parametrize("name", ["h100", "h100:0", "h100:257", "b9000:8", "h100:x", ""])
def test_a_host_that_cannot_be_faked_is_refused_with_one_that_can(name: str) -> None:
    with pytest.raises(ValueError, match="cpu:8"):
        build_devices(name)


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/nowhere", None, "not_found"),
        ("PUT", "/devices", None, "not_found"),
        ("POST", "/mesh/plan", {"mesh": "dp:2", "color": "red"}, "invalid_request"),
        ("POST", "/mesh/plan", {"mesh": 7}, "invalid_mesh"),
        ("POST", "/placement/bench", {"samples": 1}, "invalid_request"),
        ("GET", "/runs/none", None, "not_found"),
        ("GET", "/mesh/plan/none", None, "not_found"),
        ("GET", "/environment?memory_strategy=greedy", None, "invalid_request"),
        ("PUT", "/leases/a", {"purpose": ""}, "invalid_request"),
        ("PUT", "/leases/a", {"purpose": "x", "devices": [99]}, "invalid_request"),
        ("GET", "/leases/none", None, "not_found"),
        ("DELETE", "/leases/none", None, "not_found"),
        ("PUT", "/leases/.a", {"purpose": "x"}, "invalid_request"),
        ("POST", "/health/acknowledge", {"component": "none", "reason": "x"}, "not_found"),
    ],
)
def test_bad_requests_are_problems_as_from_a_real_agent(method: str, path: str, body: Any, code: str) -> None:
    with FakeAgent().http_client() as http:
        response = http.request(method, path, json=body)
    assert response.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(response.content)
    assert (problem.code, problem.status) == (code, response.status_code)
    assert response.status_code in {BY_CODE[code].default_status, 405}


def test_a_transport_serves_a_client_of_ones_own_in_both_ways() -> None:
    fake = FakeAgent()

    async def ask() -> int:
        async with httpx.AsyncClient(transport=fake.transport(), base_url="http://mine") as http:
            return (await http.get("/healthz")).status_code

    assert asyncio.run(ask()) == 200
    with httpx.Client(transport=fake.transport(), base_url="http://mine") as http:
        assert http.get("/healthz").status_code == 200


def test_a_route_can_be_given_another_answer_or_an_error() -> None:
    fake = FakeAgent()
    fake.answer("GET", "/health", {"state": "degraded", "components": []})
    fake.answer("GET", "/metrics", "x 1\n")
    fake.answer("POST", "/mesh/plan", InvalidMeshError("not today"))
    with fake.client() as client:
        assert client.health().state == "degraded"
        assert client.metrics() == "x 1\n"
        with pytest.raises(InvalidMeshError, match="not today"):
            client.plan("dp:8")


@pytest.mark.parametrize(
    ("path", "reply"), [("/nowhere", {}), ("/health", {"state": "splendid"}), ("/metrics", {"x": 1})]
)
def test_an_answer_that_no_agent_gives_is_refused_when_it_is_set(path: str, reply: object) -> None:
    with pytest.raises(ValueError):
        FakeAgent().answer("GET", path, reply)


def _lease(**fields: Any) -> LeaseRequest:
    return LeaseRequest.model_validate({"purpose": "job", **fields})


def _build_leases(now: list[datetime]) -> LeaseBook:
    return LeaseBook(lambda: now[0], lambda: (), lambda why: ())


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just("all"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
            st.booleans(),
            st.floats(1, 100),
            st.floats(0, 60),
        ),
        max_size=12,
    )
)
def test_a_device_never_has_two_leases_and_a_lease_that_stays_gives_way_to_nobody(asked: list[Any]) -> None:
    now, here = [NOW], build_devices("h100:4", at=NOW)
    book = _build_leases(now)
    for number, (devices, preemptible, ttl_s, wait_s) in enumerate(asked):
        before = {lease.id: lease for lease in book.list().leases}
        with contextlib.suppress(DeviceLeasedError):
            book.put(f"lease-{number}", _lease(devices=devices, preemptible=preemptible, ttl_s=ttl_s), here)
        after = book.list().leases
        indices = [device.local_index for lease in after for device in lease.devices]
        assert len(indices) == len(set(indices))
        gone = set(before) - {lease.id for lease in after}
        assert all(before[lease_id].preemptible for lease_id in gone)
        assert not gone or not preemptible
        now[0] += timedelta(seconds=wait_s)
        assert all(lease.expires_in_s > 0 for lease in book.list().leases)


def test_an_id_makes_one_lease_which_its_owner_renews_and_which_may_be_made_again_when_it_has_ended() -> None:
    book, here = _build_leases([NOW]), build_devices("h100:4", at=NOW)
    first, is_new = book.put("a", _lease(), here, "ann")
    assert (is_new, first.id, book.put("a", _lease(purpose="more"), here, "ann")[0].purpose) == (True, "a", "more")
    with pytest.raises(DeviceLeasedError):
        book.put("a", _lease(devices=[0]), here, "ann")
    for ask in (lambda: book.put("a", _lease(), here, "bob"), lambda: book.end("a", "bob")):
        with pytest.raises(ForbiddenError):
            ask()
    book.end("a", "ann")
    assert book.put("a", _lease(devices=[1]), here, "bob")[1]


@given(st.sets(st.sampled_from(get_args(BenchCase)), min_size=1), st.integers(1, 8))
def test_made_up_records_keep_the_definitions_of_bandwidth(cases: set[BenchCase], count: int) -> None:
    result = build_result(BenchRequest(cases=tuple(sorted(cases))), build_devices(f"cpu:{count}", at=NOW), NOW)
    assert {record.case for record in result.records} == cases
    for record in result.records:
        assert record.algbw_bytes_per_s == record.size_bytes / record.median_s
        if record.busbw_factor is not None:
            assert record.busbw_bytes_per_s == record.algbw_bytes_per_s * record.busbw_factor

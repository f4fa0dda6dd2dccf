"""Fleet on fake agents, and on sockets that keep still."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import httpx
import pytest

from meshwright import Fleet, FleetIncompleteError, FleetState
from meshwright.errors import (
    AgentConnectionError,
    InvalidMeshError,
    InvalidRequestError,
    PlanInfeasibleError,
    ProblemError,
    SettingsError,
    UnauthorizedError,
    UnavailableError,
)
from meshwright.preflight import check_hosts
from meshwright.testing import FakeAgent
from tests.contract.client.fleets import build_fakes
from tests.contract.client.sockets import Heard, answer, serve
from tests.fakes.hosts import build_devices

HOST_0, HOST_1, HOST_2 = (f"http://n{i}:8790" for i in range(3))


def ask(fakes: Mapping[str, FakeAgent], question: Callable[[Fleet], Any]) -> Any:
    """What `question(fleet)` answers."""
    with Fleet(list(fakes), connect=lambda url: fakes[url].client(max_retries=1)) as fleet:
        return question(fleet)


def look(fakes: dict[str, FakeAgent], **options: Any) -> FleetState:
    state: FleetState = ask(fakes, lambda fleet: fleet.devices(**options))
    return state


@pytest.mark.parametrize(("harm", "state", "words"), [
    (lambda fake: fake.fail_next(httpx.ConnectError("refused"), times=2), "unreachable", "no answer from"),
    (lambda fake: fake.fail_next(httpx.ReadTimeout("timeout"), times=2), "unreachable", "did not answer in time"),
    (lambda fake: fake.fail_next(httpx.RemoteProtocolError("lost"), times=2), "unreachable", "lost"),
    (lambda fake: fake.fail_next(UnavailableError("asked for", hint="wait"), times=2), "not_ready", "; wait"),
    (lambda fake: fake.fail_next(UnavailableError("asked for"), times=2), "not_ready", "asked for"),
    (lambda fake: fake.fail_next(UnavailableError("asked for", code="worker_failed"), times=2), "error", "asked for"),
    (lambda fake: fake.fail_next(ProblemError("asked for", code="internal"), times=2), "error", "asked for"),
    (lambda fake: fake.fail_next(UnauthorizedError("asked for")), "error", "asked for"),
    (lambda fake: fake.fail_next(UnavailableError("shuts down"), path="/readyz"), "not_ready", "shuts down"),
    (lambda fake: fake.fail_next(httpx.Response(200, html="<html>")), "error",
     "is the address that of a meshwright agent?"),
])  # fmt: skip
def test_a_host_that_does_not_answer_well_has_a_state_and_a_reason(harm: Any, state: str, words: str) -> None:
    fakes = build_fakes("n0", "n1", "n2")
    harm(fakes[HOST_1])
    found = look(fakes)
    assert [host.state for host in found.hosts] == ["ok", state, "ok"]
    (failed,) = found.failed
    assert failed.url == HOST_1
    assert words in failed.detail
    assert "\n" not in failed.detail
    assert found.topology.hosts == ("n0", "n2")
    (notice,) = found.notices
    assert (notice.code, notice.hint) == ("hosts_missing", "start their agents, and plan again")
    assert notice.message.startswith("1 of 3 hosts are not in the plan: ")
    assert failed.detail in notice.message


def test_health_that_nobody_tells_is_unknown_and_said() -> None:
    fakes = build_fakes("n0", "n1")
    fakes[HOST_1].fail_next(ProblemError("asked for", code="internal"), times=2, path="/health")
    state = look(fakes)
    assert [host.worst for host in state.hosts] == ["healthy", "unknown"]
    assert state.health == {**dict.fromkeys(range(4), "healthy"), **dict.fromkeys(range(4, 8), "unknown")}
    (notice,) = state.notices
    assert (notice.code, notice.message.split(" ")[0]) == ("health_unknown", "n1")


@pytest.mark.parametrize("what", ["cpu:4", "h100:4"])
def test_an_ill_device_of_any_host_is_left_out(what: str) -> None:
    fakes = build_fakes("n10", "n2", what=what)
    fakes["http://n2:8790"].change_health("device:1", "unhealthy", "a test")
    plan = ask(fakes, lambda fleet: fleet.plan("dp:7"))
    assert [ref.local_index for ref in plan.devices if ref.host == "n2"] == [0, 2, 3]
    assert "devices_left_out" in {notice.code for notice in plan.warnings}


@pytest.mark.parametrize(("question", "error"), [
    (lambda fleet: (fleet.close(), fleet.devices()), AgentConnectionError),
    (lambda fleet: fleet.plan("dp:2,dp:2"), InvalidMeshError),
    (lambda fleet: fleet.plan("dp:2", devices=1.5), InvalidRequestError),
    (lambda fleet: fleet.plan("dp:2", target="h100:8"), InvalidRequestError),
    (lambda fleet: fleet.plan("dp:64"), PlanInfeasibleError), (lambda fleet: fleet.plan("dp:2"), PlanInfeasibleError),
])  # fmt: skip
def test_refusals_are_those_of_the_client(question: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(build_fakes("n0", "n1"), question)


def test_an_option_that_is_mistyped_is_unknown() -> None:
    with pytest.raises(InvalidRequestError, match="alow_unused: unknown field"):
        ask(build_fakes("n0"), lambda fleet: fleet.plan("dp:2", alow_unused=True))


def test_all_hosts_can_be_required() -> None:
    fakes = build_fakes("n0", "n1", "n2")
    fakes[HOST_2].fail_next(httpx.RemoteProtocolError("lost"), times=9)
    for question in (lambda fleet: fleet.devices(require_all=True), lambda fleet: fleet.plan("dp:8", require_all=True)):
        with pytest.raises(FleetIncompleteError, match=f"1 of 3 hosts of the fleet did not answer: {HOST_2}") as caught:
            ask(fakes, question)
        assert list(caught.value.hosts) == [HOST_2]
        assert "hint: " in str(caught.value)


def test_without_any_host_there_is_no_topology_but_still_a_state() -> None:
    fakes = build_fakes("n0", "n1")
    for fake in fakes.values():
        fake.fail_next(httpx.ConnectError("refused"), times=9)
    state = look(fakes)
    assert [host.state for host in state.hosts] == ["unreachable"] * 2
    for question in (lambda: state.topology, lambda: state.notices, lambda: state.health):
        with pytest.raises(FleetIncompleteError, match="2 of 2 hosts"):
            question()


def test_addresses_come_from_the_variable_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    connect: Any = lambda url: None  # noqa: E731
    monkeypatch.setenv("MESHWRIGHT_FLEET", "a,b:9000")
    assert Fleet(connect=connect).urls == ("http://a:8790", "http://b:9000")
    assert Fleet("c", connect=connect).urls == ("http://c:8790",)
    monkeypatch.delenv("MESHWRIGHT_FLEET")
    with pytest.raises(SettingsError, match="MESHWRIGHT_FLEET is empty or not set"):
        Fleet()


# ---- over real sockets ----


@contextlib.contextmanager
def listen_only() -> Iterator[str]:
    """A host that takes connections and says nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def act_as(name: str, *, hangs_at: str = "") -> Any:
    """Serves `/devices` and `/health` of a host; hangs where told, until the connection is closed."""
    replies = {
        "/devices": build_devices("cpu:2", host=name).model_dump_json().encode(),
        "/readyz": b"ready",
        "/health": b'{"state": "healthy", "components": []}',
    }

    def act(heard: Heard, out: BinaryIO) -> bool:
        path = heard.line.split(" ")[1]
        if path == hangs_at:
            released.wait(30)
            return False
        out.write(answer(replies[path]))
        return True

    released = threading.Event()
    act.released = released  # type: ignore[attr-defined]
    return act


def ask_urls(urls: list[str], **options: Any) -> FleetState:
    with Fleet(urls, token="secret") as fleet:
        return fleet.devices(**options)


def test_a_host_that_says_nothing_costs_the_deadline_once_and_not_the_others() -> None:
    with listen_only() as silent, serve(act_as("n0")) as server, listen_only() as silent_too:
        started = time.monotonic()
        state = ask_urls([silent, server.url, silent_too], timeout_s=1.5)
        assert time.monotonic() - started < 3.0  # once, not twice
    assert [host.state for host in state.hosts] == ["unreachable", "ok", "unreachable"]
    assert {host.detail for host in state.failed} == {"no answer within 1.5 s"}
    assert {heard.headers["authorization"] for heard in server.heard} == {"Bearer secret"}
    assert len({heard.connection for heard in server.heard}) == 1, "one connection serves all questions"


def test_devices_that_were_told_in_time_count_though_health_was_not() -> None:
    act = act_as("n0", hangs_at="/health")
    with serve(act) as server:
        state = ask_urls([server.url], timeout_s=1.5)
        act.released.set()
    assert [host.state for host in state.hosts] == ["ok"]
    assert [notice.code for notice in state.notices] == ["health_unknown"]


def test_a_refusal_on_a_part_of_a_fleet_names_the_hosts_that_are_missing() -> None:
    fakes = build_fakes("n0", "n1")
    fakes[HOST_1].fail_next(httpx.RemoteProtocolError("lost"), times=9)
    with Fleet(list(fakes), connect=lambda url: fakes[url].client()) as fleet:
        with pytest.raises(PlanInfeasibleError) as caught:
            fleet.plan("dp:8", compile=False, exports=())  # type: ignore[typeddict-unknown-key]
        assert "1 of 2 hosts of the fleet did not answer" in caught.value.hint


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 9.0])
def test_a_preflight_ends_in_a_finite_time(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="finite time of 10 s or more"):
        check_hosts(Fleet("a", connect=lambda url: FakeAgent().client()), timeout_s=timeout_s)

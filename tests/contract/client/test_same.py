"""Client and AsyncClient do the same: every method on a real agent, held leases, streams, and wrong settings."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from pydantic_core import to_jsonable_python

from meshwright import AsyncClient, Client, Fleet
from meshwright.errors import AgentConnectionError, AgentTimeoutError, ProblemError, SettingsError, UnauthorizedError
from meshwright.testing import FakeAgent
from meshwright.wire.health import HealthEvent, HealthEvents
from meshwright.wire.leases import VerdictRequest
from meshwright.wire.preflight import PreflightRequest
from tests.agents import RunningAgent, start_agent, wait_for
from tests.contract.client.both import Kind, ask, ask_url, both
from tests.contract.client.test_leases import SHORT_S, hold
from tests.fakes.stored import EPOCH, build_event, build_run
from tests.golden.replies import normalise

STEP: dict[str, Any] = {"model": "gpt2", "training": {"global_batch_size": 8, "seq_len": 1024}}
PREFLIGHT = PreflightRequest(lease="job-7", hosts=("a",), process_id=0, coordinator="10.0.0.1:8476")
STREAM = {"content-type": "text/event-stream"}


@pytest.fixture(scope="module")
def simulated() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE="h100:8") as agent:
        yield agent


def read(kind: Kind, url: str, question: Callable[[Any], Any]) -> Any:
    """Returns the answer, or the error, as JSON without times; of metrics their names."""
    try:
        answer = ask_url(kind, url, question, timeout=60)
    except ProblemError as error:
        return [type(error).__name__, error.code, error.status, error.detail, error.hint, error.errors]
    if isinstance(answer, str):
        answer = sorted({re.split(r"[ {]", line)[0] for line in answer.splitlines()})
    return normalise(to_jsonable_python(answer), {})


@pytest.mark.parametrize(("question", "said"), [
    (lambda c: c.alive(), "true"),
    (lambda c: c.ready(), "ready: simulated h100:8"),
    (lambda c: c.health(), '"name": "driver"'),
    (lambda c: c.acknowledge("store", "mended"), '"name": "store"'),
    (lambda c: c.acknowledge("device:99", "mended"), '["NotFoundError", "not_found", 404'),
    (lambda c: c.events("store", after=0, limit=1, since=EPOCH), '"component": "store"'),
    (lambda c: c.events(limit=0), "set limit to 1 or more"),
    (lambda c: c.devices(), "NVIDIA H100 80GB HBM3"),
    (lambda c: c.devices_text(), '"GPU7"'),
    (lambda c: c.metrics(), "meshwright_"),
    (lambda c: c.environment("custom", 0.5), '"memory_fraction": 0.5'),
    (lambda c: c.environment("custom"), '["InvalidRequestError", "invalid_request", 422'),
    (lambda c: c.targets("v5p"), "v5p-12288"),
    (lambda c: c.targets("v5q"), "UnknownHardwareError"),
    (lambda c: c.plan({"dp": 2, "fsdp": -1}, audit=True, **STEP), '"mesh_shape": {"dp": 2, "fsdp": 4}'),
    (lambda c: c.plan("dp:3"), "PlanInfeasibleError"),
    (lambda c: c.get_plan("mw1-" + "0" * 32), "NotFoundError"),
    (lambda c: c.search(**STEP, top=1), '"plans"'),
    (lambda c: c.search("gpt2", targets=["h100:8"]), 'add \\"training\\"'),
    (lambda c: c.batch_size(**STEP, mesh={"fsdp": 8}, target="h100:8"), '"estimated"'),
    (lambda c: c.batch_size("h100", 8), '"below_minimum"'),
    (lambda c: c.bench(cases=["matmul"]), "simulates"),
    (lambda c: c.submit_bench(mesh={"dp": 8}), "simulates"),
    (lambda c: c.start_preflight(PREFLIGHT), "simulates"),
    (lambda c: c.latest_bench(), '"records": []'),
    (lambda c: c.runs(5, "succeeded"), '"runs": []'),
    (lambda c: c.run("run-0"), "NotFoundError"),
    (lambda c: c.run(""), "is no name: it is empty"),
    (lambda c: c.cancel_run("run-0"), "NotFoundError"),
    (lambda c: c.wait("run-0"), "NotFoundError"),
    (lambda c: c.lease([0], purpose="job 7", lease_id="job-7"), '"purpose": "job 7"'),
    (lambda c: c.lease([0], purpose="job 8"), "DeviceLeasedError"),
    (lambda c: c.leases(), '"id": "job-7"'),
    (lambda c: c.get_lease("job-7"), '"id": "job-7"'),
    (lambda c: c.renew_lease("job-7", 900), '"id": "job-7"'),
    (lambda c: c.get_verdict("job-7"), "NotFoundError"),
    (lambda c: c.put_verdict("job-7", VerdictRequest(state="ok", reason="well")), '"reason": "well"'),
    (lambda c: c.end_lease("job-8"), "NotFoundError"),
    (lambda c: c.release(), '"released": true'),
])  # fmt: skip
def test_both_get_the_same_answer_of_an_agent(simulated: RunningAgent, question: Any, said: str) -> None:
    answer = read("sync", simulated.url, question)
    assert said in json.dumps(answer)
    assert read("async", f"unix://{simulated.uds}", question) == answer


@both
def test_a_preflight_that_its_lease_does_not_allow_is_refused(agent: RunningAgent, kind: Kind) -> None:
    def refuse(**fields: Any) -> list[Any]:
        request = PREFLIGHT.model_copy(update=fields)
        found: list[Any] = read(kind, agent.url, lambda c: c.start_preflight(request))
        return found[:4]

    hosts, order = ("a", "b"), tuple(range(8))
    with Client(agent.url) as client:
        client.lease([0], purpose="job 7", lease_id="job-7")
        other = client.lease([1], purpose="job 8")
        assert (refuse()[:3], "(job 8)" in refuse()[3]) == (["DeviceLeasedError", "device_leased", 409], True)
        client.end_lease(other)
        detail = "lease job-7 does not cover device 1; a preflight opens all of a host"
        assert refuse() == ["InvalidRequestError", "invalid_request", 422, detail]
        client.end_lease("job-7")
        client.lease("all", purpose="job 7", lease_id="job-7")
        detail = "order has 8 devices, and the hosts have 16"
        assert refuse(hosts=hosts, axes={"x": 8}, order=order)[3] == detail
        client.end_lease("job-7")


def test_a_list_that_is_too_long_is_refused_by_its_length(agent: RunningAgent) -> None:
    body = {**PREFLIGHT.model_dump(exclude_none=True), "order": [0] * 16385}
    reply = httpx.post(f"{agent.url}/preflight", json=body)
    assert (reply.status_code, reply.json()["hint"]) == (422, "give order up to 16384 entries")


# ---- leases that are held


@both
def test_a_held_lease_is_renewed_and_lost_with_the_error_of_its_last_renewal(kind: Kind) -> None:
    fake = FakeAgent()

    def keep(held: Any) -> Any:
        wait_for(lambda: [each.method for each in fake.requests].count("PUT") > 4, limit_s=30)  # longer than its time
        held.check()
        fake.fail_next(UnauthorizedError("it was revoked"), times=99, path=f"/leases/{held.lease.id}")
        return wait_for(lambda: held.lost, limit_s=30)

    lost = hold(kind, fake, keep, ttl_s=4 * SHORT_S)
    assert (type(lost), lost.detail) == (UnauthorizedError, "it was revoked")
    methods = [request.method for request in fake.requests]
    assert methods[:3] == ["PUT", "GET", "PUT"]


@both
def test_a_lease_that_cannot_be_ended_is_told_with_its_own_end(kind: Kind) -> None:
    fake, refusal = FakeAgent(), UnauthorizedError("it was revoked")
    with pytest.warns(UserWarning, match=r"could not be ended, and ends by itself within \d+ s: .*it was revoked"):
        hold(kind, fake, lambda held: fake.fail_next(refusal, times=9, path=f"/leases/{held.lease.id}"))


def test_an_error_of_on_lost_is_told_to_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeAgent()

    def lose(held: Any) -> None:
        fake.client().end_lease(held.lease)
        wait_for(lambda: caplog.messages, limit_s=30)

    with caplog.at_level(logging.ERROR, "asyncio"):
        hold("async", fake, lose, ttl_s=SHORT_S, on_lost=lambda why: 1 / 0)
    assert re.search(r"on_lost of the lease lease-\w+ failed", caplog.messages[0])


# ---- streams, and clients that end


def take(kind: Kind, fake: FakeAgent, count: int, after: int | None) -> list[int]:
    """Returns the numbers of the first events of health."""

    async def follow() -> list[int]:
        async with fake.async_client() as client:
            events: Any = client.follow_events(after)
            found = [(await anext(events)).seq for _ in range(count)]
            await events.aclose()
            return found

    if kind == "async":
        return asyncio.run(follow())
    with fake.client() as client:
        return [event.seq for event in itertools.islice(client.follow_events(after), count)]


@both
def test_a_history_that_begins_anew_is_followed_over_streams_that_break(kind: Kind) -> None:
    events = [HealthEvent(seq=seq, at=EPOCH, component="store", kind="state", state="healthy") for seq in (1, 2, 3, 4)]
    texts = [f"data: noise\n\ndata: {event.model_dump_json()}\n\n" for event in events]
    streams = [httpx.Response(404), *(httpx.Response(200, headers=STREAM, content=text) for text in texts[2:])]
    histories = [HealthEvents(events=(), last_seq=2), HealthEvents(events=tuple(events[:2]), last_seq=2)]
    fake = FakeAgent()
    fake.answer("GET", "/events/stream", lambda request: streams.pop(0))
    fake.answer("GET", "/events", lambda request: histories.pop(0))
    assert take(kind, fake, 4, after=41) == [1, 2, 3, 4]
    resumed = [request.headers.get("last-event-id") for request in fake.requests]
    assert resumed == ["41", None, None, "2", "3"]


@both
def test_waiting_ends_in_time_beside_a_run_that_tells_of_itself(kind: Kind) -> None:
    fake, run, heard = FakeAgent(), build_run(state="running"), list[int]()
    event = build_event(run, 1, type="progress", progress={"done": 1, "total": 2})
    fake.answer("GET", "/runs/{run_id}", run)
    stream = httpx.Response(200, headers=STREAM, content=f"data: {event.model_dump_json()}\n\n")
    fake.answer("GET", "/runs/{run_id}/events", lambda request: stream)
    with pytest.raises(AgentTimeoutError, match="it was running"):
        ask(kind, fake, lambda c: c.wait(run.id, on_progress=lambda each: heard.append(each.done), timeout_s=0.2))
    assert heard == [1]


@both
def test_a_time_limit_of_nan_is_refused_before_anything_is_sent(kind: Kind) -> None:
    fake = FakeAgent()
    with pytest.raises(SettingsError, match="a time limit is nan"):
        ask(kind, fake, lambda c: c.bench(timeout_s=math.nan))
    assert fake.requests == []


@both
def test_a_client_that_was_closed_says_so(kind: Kind) -> None:
    async def close(client: AsyncClient) -> None:
        await client.close()
        await client.health()

    fake = FakeAgent()
    client = fake.client()
    client.close()
    late = {"sync": client.health, "async": lambda: asyncio.run(close(fake.async_client()))}[kind]
    with pytest.raises(AgentConnectionError, match="this client has been closed") as caught:
        late()
    assert caught.value.hint == "make a new client, or close this one later"


# ---- settings


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("variables", "said"), [
    ({"URL": "http://me:secret@a"}, "has a user or a password before an @"),
    ({"URL": "ftp://a"}, "is not http://, https:// or unix:///path; write http://127.0.0.1:8790"),
    ({"URL": "http://a:x"}, "is not a URL"), ({"URL": "http://10.0.0.256:8790"}, "is not a URL"),
    ({"URL": "http://a/?b=1"}, "has a query or a fragment"),
    ({"TOKEN": "two words"}, "a character that no header can carry"),
    ({"TOKEN_FILE": "{folder}/none"}, "MESHWRIGHT_TOKEN_FILE names .*, which cannot be read"),
    ({"CLIENT_KEY_FILE": "{folder}/text"}, "the key of no certificate"),
    ({"CA_FILE": "{folder}/text"}, "holds no certificates"),
    ({"CLIENT_CERT_FILE": "{folder}/cert"}, "name its key's file in MESHWRIGHT_CLIENT_KEY_FILE"),
    ({"CLIENT_CERT_FILE": "{folder}/cert", "CLIENT_KEY_FILE": "{folder}/text"}, "PEM files of certificate and key"),
    ({"CLIENT_CERT_FILE": "{folder}/cert", "CLIENT_KEY_FILE": "{folder}/key"}, "name the two that belong together"),
])  # fmt: skip
def test_settings_that_cannot_be_used_are_refused_by_their_variable(
    kind: Callable[[], Any], variables: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = trustme.CA()
    first, second = ca.issue_cert("a"), ca.issue_cert("b")
    (tmp_path / "text").write_text("no PEM")
    first.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    second.private_key_pem.write_to_path(tmp_path / "key")
    for name, value in {"URL": "https://a", **variables}.items():
        monkeypatch.setenv(f"MESHWRIGHT_{name}", value.format(folder=tmp_path))
    with pytest.raises(SettingsError, match=said) as caught:
        kind()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("given", "urls"), [
    ("@{folder}/fleet", ["http://a:8790", "http://[::1]:8790", "http://b:9000"]),
    ("dns:localhost:9000", ["http://127.0.0.1:9000"]),
    ("@{folder}/none", "the fleet's file cannot be read"),
    ("@{folder}/nested", "names another file, @fleet; write its addresses instead"),
    ("dns:no-such-host.invalid", "has no address"),
    ("node[1-4]", "scontrol show hostnames"),
    ("", "no address is given; name the agents"),
])  # fmt: skip
def test_a_fleet_is_named_by_files_and_names(given: str, urls: Any, tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("a, ::1  # two\nb:9000\n")
    (tmp_path / "nested").write_text("@fleet")
    if isinstance(urls, list):
        assert [url for url in Fleet(given.format(folder=tmp_path)).urls if url in urls] == urls
    else:
        with pytest.raises(SettingsError, match=re.escape(urls)):
            Fleet(given.format(folder=tmp_path))

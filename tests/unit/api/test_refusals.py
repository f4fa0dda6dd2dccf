"""What the real routes refuse before they ask the agent, and what they leave out of an ETag or bring up to date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.testing.hardware import build_devices
from meshwright.wire.devices import DeviceProcess, Devices, JaxView
from meshwright.wire.mesh import DeviceSelection
from meshwright.wire.runs import Run
from meshwright_agent.agent import Agent
from meshwright_agent.api.app import build_api
from meshwright_agent.api.devices import build_etag
from meshwright_agent.api.mesh import PlanQuery
from meshwright_agent.api.runs import age_records
from meshwright_agent.settings import Settings
from tests.unit.api.asgi import JSON, ask
from tests.unit.store.opening import build_closed_store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PATHS = {
    "/environment": "memory_strategy, memory_fraction, format",
    "/batch-size": "hardware, batch",
    "/placement/bench": "none",
    "/runs": "limit, state",
    "/runs/a": "none",
    "/runs/a/events": "after",
    "/health": "none",
    "/devices": "format",
    "/targets": "chip",
    "/mesh/plan": "mesh, devices, count",
    "/mesh/plan/mw1-0": "none",
}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return build_api(Agent(Settings(), build_closed_store()))


# ---- queries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "known"), PATHS.items())
def test_every_route_refuses_a_parameter_that_it_does_not_know(app: FastAPI, path: str, known: str) -> None:
    heard = ask(app, target=f"{path}?mesh=dp:2&colour=red")
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert "colour" in [entry["field"] for entry in heard.document["errors"]]
    assert known in heard.document["hint"]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/mesh/plan?mesh=dp:2&mesh=dp:4", "mesh"),
        ("/devices?format=text&format=json", "format"),
        ("/batch-size?hardware=h100&hardware=h100", "hardware"),
        ("/runs/a/events?after=1&after=2", "after"),
    ],
)
def test_a_parameter_that_stands_twice_is_refused_and_neither_is_taken(app: FastAPI, target: str, name: str) -> None:
    heard = ask(app, target=target)
    assert (heard.status, heard.document["errors"][0]["field"]) == (422, name)
    assert "stands 2 times" in heard.document["detail"]


@pytest.mark.parametrize(
    ("query", "field", "hint"),
    [
        ({"devices": "0,1", "count": 4}, "count", "leave out devices"),
        ({"devices": "0,1", "exclude": "3"}, "exclude", "leave out devices"),
        ({"batch": 8}, "batch", "leave out batch"),
        (
            {"batch": 8, "seq": 64, "remat": "full"},
            "batch",
            "add model=llama3-8b, or leave out batch and seq and remat",
        ),
        ({"seq": 64}, "seq", "model=llama3-8b"),
        ({"remat": "none"}, "remat", "model=llama3-8b"),
        ({"model": "llama3-8b", "seq": 64}, "batch", "batch=64"),
    ],
)
def test_a_plan_by_query_drops_nothing_that_it_was_told(query: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        PlanQuery(mesh="dp:2", **query).to_request()
    assert caught.value.errors[0]["field"] == field
    assert hint in caught.value.hint


def test_a_plan_by_query_asks_what_the_post_would() -> None:
    def devices(**query: Any) -> object:
        return PlanQuery(mesh="dp:2", **query).to_request().devices

    assert devices() is None
    assert devices(devices="0,GPU-1") == (0, "GPU-1")
    assert devices(devices="") == ()
    assert devices(count=2, exclude="3,7") == DeviceSelection(count=2, exclude=(3, 7))
    assert devices(exclude="3") == DeviceSelection(exclude=(3,))


def test_a_plan_by_query_names_its_hardware_its_split_and_its_weights_as_the_post_does() -> None:
    request = PlanQuery(mesh="dp:2,tp:4", target="2*v5e:2x2", dcn="dp:2", importance="tp:8, dp:0.5").to_request()
    assert (request.target, request.dcn, request.importance) == ("2*v5e:2x2", "dp:2", {"tp": 8.0, "dp": 0.5})
    plain = PlanQuery(mesh="dp:2").to_request()
    assert (plain.target, plain.dcn, plain.importance) == (None, None, None)


@pytest.mark.parametrize("text", ["", "tp", "tp:", "tp:x", "tp:-1", "tp:nan", "tp:inf", ":1", "tp:1,tp:2", "tp:1,"])
def test_weights_that_are_none_are_refused_and_none_is_dropped(app: FastAPI, text: str) -> None:
    heard = ask(app, target=f"/mesh/plan?mesh=tp:2&importance={text}")
    assert (heard.status, heard.document["errors"][0]["field"]) == (422, "importance")
    assert heard.document["hint"] == "write tp:8,dp:1"


# ---- bodies and headers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mesh/plan", "/batch-size", "/placement/bench"])
@pytest.mark.parametrize("body", [b'{"mesh": "d\xffp:2"}', b'{"hardware": "\xe9"}', b"\xff\xfe{}"])
def test_a_body_that_is_not_utf_8_is_refused_and_not_mended(app: FastAPI, path: str, body: bytes) -> None:
    heard = ask(app, "POST", path, headers=JSON, pieces=[body])
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert "not UTF-8" in heard.document["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/batch-size", r'{"model": "\ud800"}'),
        ("/batch-size", r'{"model": {"layers": "\ud800"}}'),
        ("/batch-size", r'{"model": "llama3-8b", "target": "\ud800"}'),
        ("/batch-size", r'{"model": "llama3-8b", "mesh": "\udc00:1"}'),
        ("/mesh/plan", r'{"mesh": "dp:1", "target": "\ud800"}'),
        ("/leases/a", r'{"devices": "all", "purpose": "\ud800"}'),
        ("/placement/bench", r'{"\ud800": 1}'),
    ],
)
def test_text_that_cannot_be_written_again_is_refused_as_the_body(app: FastAPI, path: str, body: str) -> None:
    heard = ask(app, "PUT" if "leases" in path else "POST", path, headers=JSON, pieces=[body.encode()])
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert "surrogate" in heard.document["detail"]


@pytest.mark.parametrize("body", [b'{"devices":[0]}', b"{", b'"x"', b"[]"])
def test_a_release_takes_no_choice_of_devices(app: FastAPI, body: bytes) -> None:
    heard = ask(app, "POST", "/devices/release", headers=JSON, pieces=[body])
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    "target",
    [
        "/mesh/plan?target=v5e:2x2&model=llama3-8b&mesh=tp:4&verify=compile&batch=1&seq=128",
        "/mesh/plan?mesh=tp:4&target=h100:8",
        "/mesh/plan?mesh=tp:4&model=llama3-8b&batch=1",
        "/batch-size?model=llama3-8b&target=h100:8",
    ],
)
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_a_page_of_another_site_spends_neither_planner_nor_compiler(
    app: FastAPI, target: str, headers: dict[str, str]
) -> None:
    heard = ask(app, target=target, headers=headers)
    assert (heard.status, heard.document["code"]) == (403, "forbidden")
    assert ask(app, target="/batch-size?hardware=h100", headers=headers).status == 200  # costs nothing


# ---- HEAD -----------------------------------------------------------------------------------------------------------

STREAMS = {"/events/stream", "/runs/{run_id}/events"}


def test_head_is_taken_wherever_get_is_but_for_streams(app: FastAPI) -> None:
    read = {path for path, methods in app.openapi()["paths"].items() if "get" in methods}
    assert read > STREAMS
    for path in read:
        target = path.replace("{", "").replace("}", "")
        allow = ask(app, "PATCH", target).headers["allow"].split(", ")
        assert ("HEAD" in allow) == (path not in STREAMS), path


@pytest.mark.parametrize("target", ["/targets", "/environment", "/targets?colour=red", "/batch-size?hardware=h100"])
def test_head_has_the_headers_of_get(app: FastAPI, target: str) -> None:
    heads, gets = ask(app, "HEAD", target), ask(app, "GET", target)
    assert (heads.status, heads.headers["content-type"]) == (gets.status, gets.headers["content-type"])
    assert heads.status in {200, 422}


def test_head_of_a_stream_is_refused(app: FastAPI) -> None:
    assert ask(app, "HEAD", "/events/stream").status == 405


# ---- what is documented ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("delete", "/runs/{run_id}", {"200", "202", "404", "422", "503"}),
        ("get", "/runs", {"200", "422", "503"}),
        ("get", "/runs/{run_id}", {"200", "404", "422", "503"}),
        ("get", "/runs/{run_id}/events", {"200", "404", "422", "503"}),
        ("get", "/placement/bench", {"200", "422", "503"}),
        ("post", "/placement/bench", {"202", "404", "409", "413", "415", "422", "429", "503"}),
        ("post", "/mesh/plan", {"200", "202", "404", "409", "413", "415", "422", "429", "503"}),
        ("get", "/mesh/plan", {"200", "202", "403", "409", "422", "429", "503"}),
        ("post", "/batch-size", {"200", "202", "404", "413", "415", "422", "429", "503"}),
        ("post", "/devices/release", {"200", "413", "415", "422", "503"}),
        ("get", "/health", {"200", "422"}),
        ("get", "/metrics", {"200"}),
    ],
)
def test_the_document_has_the_replies_that_there_are(app: FastAPI, method: str, path: str, statuses: set[str]) -> None:
    refused = {"401", "421"} if method == "get" else {"401", "403", "421"}
    assert set(app.openapi()["paths"][path][method]["responses"]) == statuses | refused


@pytest.mark.parametrize("target", ["/runs", "/runs/a", "/runs/a/events", "/placement/bench", "/mesh/plan/mw1-0"])
def test_without_a_store_the_documented_503_is_what_comes(app: FastAPI, target: str) -> None:
    heard = ask(app, target=target)
    assert (heard.status, heard.document["code"]) == (503, "store_unavailable")


# ---- ETags and ages -------------------------------------------------------------------------------------------------


def _change(devices: Devices, **fields: Any) -> Devices:
    first = devices.devices[0].model_copy(update=fields)
    return devices.model_copy(update={"devices": (first, *devices.devices[1:])})


@given(used=st.integers(0, 2**40), stats=st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))
def test_the_etag_stays_while_only_memory_in_use_and_ages_change(used: int, stats: dict[str, int]) -> None:
    here = build_devices("h100:8", at=NOW)
    first = here.devices[0]
    assert first.memory
    jax = JaxView(id=0, kind="gpu", platform="gpu", generation=1, basis="live", observed_at=NOW, age_s=0.0)
    job = DeviceProcess(pid=7, used_bytes=1)
    before = _change(here, processes=(job,), jax=jax)
    after = _change(
        build_devices("h100:8", at=NOW + timedelta(seconds=9)),
        memory=first.memory.model_copy(update={"used_bytes": used}),
        jax=jax.model_copy(update={"memory_stats": stats}),
        processes=(job.model_copy(update={"used_bytes": used}),),
    ).model_copy(update={"cpu": here.cpu.model_copy(update={"available_bytes": used}), "worker": here.worker})
    assert build_etag(after) == build_etag(before)


def test_the_etag_changes_with_who_holds_a_device_and_how_much_memory_it_has() -> None:
    here = build_devices("h100:8", at=NOW)
    memory = here.devices[0].memory
    assert memory
    others = [
        _change(here, processes=(DeviceProcess(pid=8),)),
        _change(here, memory=memory.model_copy(update={"capacity_bytes": 1})),
    ]
    assert len({build_etag(each) for each in (here, *others)}) == 3


@given(seconds=st.floats(-1e6, 1e9))
def test_the_records_of_a_run_are_as_old_as_they_are_when_it_is_read(seconds: float) -> None:
    record = {"case": "matmul", "observed_at": NOW.isoformat().replace("+00:00", "Z"), "age_s": 0.0}
    run = Run(
        id="run-1", kind="bench", state="succeeded", created_at=NOW, request={}, result={"records": [record], "n": 1}
    )
    aged = age_records(run, NOW + timedelta(seconds=seconds))
    assert aged.result is not None
    assert aged.result["records"][0]["age_s"] == pytest.approx(max(0.0, seconds), abs=1e-5)
    assert aged.result["n"] == 1
    assert run.result == {"records": [record], "n": 1}


@pytest.mark.parametrize("result", [None, {}, {"records": []}])
def test_a_run_without_records_stays_as_it_is(result: dict[str, Any] | None) -> None:
    run = Run(id="run-1", kind="bench", state="running", created_at=NOW, request={}, result=result)
    assert age_records(run, NOW) is run

"""From Python arguments to requests: what is sent, what is left out, what is refused before sending."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._calls import calls
from meshwright._calls.building import Call
from meshwright._calls.calls import Readiness
from meshwright._calls.endpoints import ENDPOINTS, RUN
from meshwright._calls.messages import Answer
from meshwright.errors import InvalidMeshError, InvalidRequestError, PlanInfeasibleError
from meshwright.spec import MeshSpec
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, PlanRequest, Plans, Rejected

DEFAULTS: dict[str, Any] = {
    "devices": None,
    "device_order": "planned",
    "axis_types": None,
    "allow_unused": False,
    "include_devices": True,
    "memory_strategy": "balanced",
}
PLAN = Plan(fingerprint="mw1-0", mesh_shape={"dp": 1}, axis_types={"dp": "auto"}, platform="cpu")


def _body(call: Call[Any]) -> dict[str, Any]:
    document = json.loads(call.request.body or b"null")
    assert isinstance(document, dict)
    return document


def test_what_nobody_asked_for_is_not_sent_so_that_an_older_agent_understands() -> None:
    assert _body(calls.plans("dp:2", **DEFAULTS)) == {"mesh": "dp:2"}
    assert _body(calls.batch_size(None, None)) == {}


@pytest.mark.parametrize(
    ("mesh", "sent"),
    [
        ("dp:2,tp:4", "dp:2,tp:4"),
        (MeshSpec.parse("dp:2,tp:-1"), "dp:2,tp:-1"),
        ({"tp": 4, "dp": 2}, {"tp": 4, "dp": 2}),
        ([("dp", 2), ("tp", 4)], [["dp", 2], ["tp", 4]]),
        ([["dp", 2]], [["dp", 2]]),
    ],
)
def test_a_mesh_may_be_written_in_every_way_and_keeps_its_order(mesh: Any, sent: Any) -> None:
    body = _body(calls.plans(mesh, **DEFAULTS))
    assert body["mesh"] == sent
    assert list(body["mesh"]) == list(sent)
    assert PlanRequest.model_validate(body)


@pytest.mark.parametrize(
    ("devices", "sent"),
    [
        ([0, "GPU-1"], [0, "GPU-1"]),
        (range(2), [0, 1]),
        ({"count": 4, "exclude": [1]}, {"count": 4, "exclude": [1]}),
    ],
)
def test_devices_may_be_any_sequence_or_a_selection(devices: Any, sent: Any) -> None:
    assert _body(calls.plans("dp:2", **{**DEFAULTS, "devices": devices}))["devices"] == sent


@pytest.mark.parametrize("arguments", [{"devices": [1.5]}, {"devices": {"counts": 4}}, {"device_order": "best"}])
def test_a_wrong_argument_is_refused_before_anything_is_sent(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        calls.plans("dp:2", **{**DEFAULTS, **arguments})


def test_a_bench_sends_its_mesh_as_text_and_only_what_was_set() -> None:
    call = calls.submit_bench(mesh={"dp": 2, "tp": 4}, cases=["matmul"], samples=5, max_s=None, suite="quick")
    assert _body(call) == {"mesh": "dp:2,tp:4", "cases": ["matmul"], "samples": 5}


def test_a_bench_that_no_agent_would_take_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidRequestError, match="samples"):
        calls.submit_bench(mesh=None, samples=1)
    with pytest.raises(InvalidMeshError):
        calls.submit_bench(mesh={"dp": 0})


def test_parameters_of_the_query_that_were_not_given_are_left_out() -> None:
    assert calls.runs(None, None).request.path == "/runs"
    assert calls.targets(None).request.path == "/targets"
    assert calls.targets("H100 SXM").request.path == "/targets?chip=H100+SXM"
    assert calls.runs(5, "failed").request.path == "/runs?limit=5&state=failed"
    assert calls.environment("custom", 0.5).request.path == "/environment?memory_strategy=custom&memory_fraction=0.5"


@given(st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=40))
def test_an_id_stays_one_part_of_the_path_whatever_stands_in_it(run_id: str) -> None:
    part = RUN.build_path({"run_id": run_id}, {}).removeprefix("/runs/")
    assert part
    assert not set(part) & set("/?# ")
    assert part not in {".", ".."}


@pytest.mark.parametrize("run_id", [".", ".."])
def test_an_id_of_dots_does_not_climb_out_of_its_path(run_id: str) -> None:
    assert calls.run(run_id).request.path == "/runs/" + "%2E" * len(run_id)


def test_an_empty_id_is_refused_and_does_not_ask_for_the_list() -> None:
    for run_id in ("", "\ud800"):
        with pytest.raises(InvalidRequestError, match="run_id"):
            calls.run(run_id)


def test_a_stream_is_resumed_after_the_last_event() -> None:
    assert "Last-Event-ID" not in calls.run_events("r", 0).request.headers
    assert calls.run_events("r", 7).request.headers["Last-Event-ID"] == "7"


def test_the_best_plan_takes_over_the_warnings_on_the_request() -> None:
    warned = Plans(plans=(PLAN, PLAN), warnings=(Notice(code="ignored_fields", message="x"),))
    assert [notice.code for notice in calls.take_best(warned, asked="it").warnings] == ["ignored_fields"]


def test_no_plan_at_all_is_infeasible_and_says_why_each_was_rejected() -> None:
    rejected = Rejected(mesh_shape={"dp": 3}, reason="memory", message="needs 90 GB")
    with pytest.raises(PlanInfeasibleError, match="needs 90 GB"):
        calls.take_best(Plans(plans=(), rejected=(rejected,)), asked="it")


def test_readiness_is_true_only_where_it_is() -> None:
    read = calls.ready().read
    assert read(Answer(200, {}, b"ready: 8 devices\n"), "h") == Readiness(True, "ready: 8 devices")
    assert not read(Answer(503, {}, b"starting\n"), "h")


def test_no_two_endpoints_are_the_same() -> None:
    assert len({(e.method, e.path, e.reply) for e in ENDPOINTS}) == len(ENDPOINTS)

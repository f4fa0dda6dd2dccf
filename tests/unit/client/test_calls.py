"""From Python arguments to requests: what is sent, what is left out, what is refused before sending."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._calls import calls
from meshwright._calls.building import Call
from meshwright._calls.endpoints import ENDPOINTS, RUN
from meshwright.errors import InvalidMeshError, InvalidRequestError, PlanInfeasibleError
from meshwright.spec import MeshSpec
from meshwright.wire.mesh import PlanRequest, Plans, Rejected

DEFAULTS: dict[str, Any] = {
    "devices": None,
    "device_order": "planned",
    "axis_types": None,
    "allow_unused": False,
    "include_devices": True,
    "memory_strategy": "balanced",
}


def _body(call: Call[Any]) -> dict[str, Any]:
    document = json.loads(call.request.body or b"null")
    assert isinstance(document, dict)
    return document


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
    body = _body(calls.plan(mesh, **DEFAULTS))
    assert body["mesh"] == sent
    assert list(body["mesh"]) == list(sent)
    assert PlanRequest.model_validate(body)


@pytest.mark.parametrize("arguments", [{"devices": [1.5]}, {"devices": {"counts": 4}}, {"device_order": "best"}])
def test_a_wrong_argument_is_refused_before_anything_is_sent(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        calls.plan("dp:2", **{**DEFAULTS, **arguments})


def test_a_bench_that_no_agent_would_take_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidRequestError, match="samples"):
        calls.submit_bench(mesh=None, samples=1)
    with pytest.raises(InvalidMeshError):
        calls.submit_bench(mesh={"dp": 0})


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


def test_no_plan_at_all_is_infeasible_and_says_why_each_was_rejected() -> None:
    rejected = Rejected(mesh_shape={"dp": 3}, reason="memory", message="needs 90 GB")
    with pytest.raises(PlanInfeasibleError, match="needs 90 GB"):
        calls.take_best(Plans(plans=(), rejected=(rejected,)), asked="it")


def test_no_two_endpoints_are_the_same() -> None:
    assert len({(e.method, e.path, e.reply) for e in ENDPOINTS}) == len(ENDPOINTS)

"""The planner's handler, called as the child's main loop calls it: JSON in, JSON out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, RequestError, UnavailableError
from meshwright.planning.request import Inventory, answer_request
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, PlanRequest, Plans
from meshwright_agent.answers.plans import PlanAnswer
from meshwright_agent.children.child import CallContext
from meshwright_agent.children.planner import OF_THE_MODEL, parse_here, plan, write_plans
from tests.fakes.codes import has_code
from tests.fakes.hosts import build_devices
from tests.fakes.measured import build_host

NOTICE = Notice(code="a", message="b")
DEVICES = build_devices("h100:8")


def ask(here: dict[str, Any] | None = None, **request: Any) -> PlanAnswer:
    """Returns the answer after both ways through JSON."""
    call = json.dumps({"request": json.dumps({"mesh": "dp:2,tp:-1", **request}), "here": here})
    return PlanAnswer.of(json.loads(json.dumps(plan(json.loads(call), CallContext(1, 1, lambda _: None)))))


def told(**parts: Any) -> dict[str, Any]:
    return {"devices": DEVICES.model_dump_json(), "health": {}, "notices": [], **parts}


@pytest.mark.parametrize("fields", [{}, {"include_devices": False}])
def test_what_comes_out_is_what_planning_here_answers(fields: dict[str, Any]) -> None:
    request = PlanRequest.model_validate({"mesh": "dp:2,tp:-1", "target": "2*v5e:4x4", **fields})
    assert ask(target="2*v5e:4x4", **fields).write() == answer_request(request).model_dump_json()


def test_a_plan_is_kept_with_its_devices_also_where_they_are_not_shown() -> None:
    answer = ask(target="v5e:4x4", include_devices=False)
    kept = Plan.model_validate_json(answer.kept[0])
    assert (len(kept.devices), answer.fingerprints) == (16, [kept.fingerprint])


MODEL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
STRANGE = "qwen3-next-80b-a3b"
"""Known, but of a kind that cannot be described."""


@pytest.mark.parametrize("model", [MODEL, STRANGE])
@pytest.mark.parametrize("include_devices", [True, False])
def test_what_is_said_of_a_model_is_shown_and_not_kept(model: object, include_devices: bool) -> None:
    fields: dict[str, Any] = {"target": "v5e:2x2", "include_devices": include_devices}
    answer, plain = ask(**fields, model=model), ask(**fields)
    assert answer.kept == plain.kept
    expected = answer_request(
        PlanRequest.model_validate({"mesh": "dp:2,tp:-1", "target": "v5e:2x2", "model": model})
    ).plans[0]
    (shown,) = Plans.model_validate_json(answer.write()).plans
    assert (shown.model, shown.warnings) == (expected.model, expected.warnings)
    assert (shown.model is None) == (model is STRANGE) == any(each.code in OF_THE_MODEL for each in shown.warnings)


def test_a_plan_that_is_shown_as_it_is_kept_is_written_once_since_a_frame_is_bounded() -> None:
    written = write_plans(PlanRequest.model_validate({"mesh": "dp:-1", "target": "v5e:2x2"}), None)
    assert (written["shown"], len(written["kept"])) == (None, 1)


def test_training_without_a_model_is_refused_since_a_plan_does_not_count_it() -> None:
    with pytest.raises(InvalidRequestError, match="model is not given") as caught:
        ask(target="v5e:2x2", training={"global_batch_size": 8})
    assert caught.value.errors[0]["field"] == "training"


def test_this_host_is_told_with_its_health_and_its_notices() -> None:
    states = dict.fromkeys(range(8), "healthy") | {5: "unhealthy"}
    shown = Plans.model_validate_json(
        ask(told(health=states, notices=[NOTICE.model_dump()]), mesh="x:-1").write()
    ).plans[0]
    assert shown.mesh_shape == {"x": 7}
    assert NOTICE in shown.warnings


@pytest.mark.parametrize(("rate", "cases", "codes"), [(4e14, ["matmul"], []), (1.3e15, [], ["measurement_left_out"])])
def test_what_was_measured_here_is_told_with_a_plan_and_not_kept_with_the_mesh(
    rate: float, cases: list[str], codes: list[str]
) -> None:
    rows = [row.model_dump(mode="json") for row in build_host(rate)]
    training = {"global_batch_size": 32}
    answer = ask(told(measured=rows), mesh="fsdp:8", model="llama3-8b", training=training, include_devices=False)
    (shown,) = Plans.model_validate_json(answer.write()).plans
    assert [figure.case for figure in shown.measured] == cases
    assert [notice.code for notice in shown.warnings if notice.code in OF_THE_MODEL] == codes
    kept = Plan.model_validate_json(answer.kept[0])
    assert kept.measured == ()
    assert not [notice for notice in kept.warnings if notice.code in OF_THE_MODEL]


def test_a_simulated_host_is_told_by_its_target() -> None:
    here = parse_here({"target": "2*h100:8", "health": {}, "notices": []})
    assert here == Inventory(build_target("2*h100:8"))
    assert parse_here(told()).topology == Topology.of(DEVICES)


def test_a_host_that_the_agent_does_not_know_yet_is_told_as_such() -> None:
    with pytest.raises(UnavailableError, match="still looking", check=has_code("not_ready")):
        ask({"problem": "the agent is still looking at its devices"})


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"target": "v5q:1"}, "plan_infeasible", "target"),
        ({"mesh": "dp:9", "target": "v5e:2x4"}, "plan_infeasible", "mesh"),
        ({"mesh": "dp:4", "target": "v5e:2x4"}, "devices_unused", "mesh"),
        ({"topology": []}, "plan_infeasible", "topology"),
    ],
)
def test_a_refusal_is_the_problem_that_it_would_be_in_the_agent(fields: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**fields)
    assert (caught.value.code, caught.value.errors[0]["field"]) == (code, field)
    assert caught.value.hint


def test_without_a_host_nothing_is_planned_on_it() -> None:
    with pytest.raises(InvalidRequestError, match="no host"):
        write_plans(PlanRequest(mesh="x:1"), None)

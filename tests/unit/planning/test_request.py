"""Which hardware a request means, and what its answer takes over from there."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.request import Inventory, answer_request, find_inventory
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.mesh import PlanRequest
from tests.fakes.asking import build_request
from tests.fakes.hosts import build_devices

NOTICE = Notice(code="simulated", message="nothing is here")
HERE = Inventory(Topology.of(build_devices("cpu:8")), health={3: "unhealthy"}, notices=(NOTICE,))


def ask(**fields: Any) -> PlanRequest:
    return PlanRequest.model_validate({"mesh": "dp:2,tp:-1", **fields})


def refuse(request: PlanRequest, kind: type[Exception] = InvalidRequestError) -> Any:
    with pytest.raises(kind) as caught:
        find_inventory(request.target, request.topology)
    return caught.value


# ---- which hardware -------------------------------------------------------------------------------------------------


def test_replies_of_agents_are_joined() -> None:
    reply = build_devices("h100:8")
    assert len(find_inventory(None, reply, HERE).topology.devices) == 8
    assert find_inventory(None, (reply,), HERE) == find_inventory(None, reply, HERE)
    doubled = refuse(ask(topology=[reply, reply]), PlanInfeasibleError)
    assert doubled.errors[0]["field"] == "topology"


def test_a_target_and_a_topology_together_are_refused() -> None:
    refused = refuse(ask(target="h100:8", topology=[]))
    assert refused.errors[0]["field"] == "target"
    assert "leave out the target, or leave out topology" in refused.hint


def test_a_lease_beside_a_target_is_refused_since_it_is_of_this_host() -> None:
    with pytest.raises(InvalidRequestError, match="h100:8 is other hardware") as caught:
        answer_request(ask(target="h100:8", lease="job-7"), HERE)
    assert caught.value.errors[0]["field"] == "lease"


# ---- the answer -----------------------------------------------------------------------------------------------------


def test_the_health_and_the_notices_of_this_host_are_of_plans_on_this_host_alone() -> None:
    here, there = (answer_request(ask(mesh="x:-1", target=each), HERE).plans[0] for each in (None, "cpu:8"))
    assert here.mesh_shape == {"x": 7}
    assert NOTICE in here.warnings
    assert there.mesh_shape == {"x": 8}
    assert NOTICE not in there.warnings


@pytest.mark.parametrize(("fields", "needed"),[
    ({"training": {"global_batch_size": 8}}, "model"), ({"exports": ["jax"]}, "training"),
    ({"audit": True, "model": "gpt2"}, "training"),
])  # fmt: skip
def test_a_field_about_a_step_that_is_not_given_is_refused(fields: dict[str, Any], needed: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{needed} is not given") as refused:
        answer_request(ask(**fields), HERE)
    assert refused.value.errors[0]["field"] == next(iter(fields))
    assert '"model": "llama3-8b"' in refused.value.hint


def test_a_search_leaves_out_an_export_that_cannot_be_written_and_a_plan_is_refused() -> None:
    fields: dict[str, Any] = {
        "model": "llama3-8b",
        "training": {"global_batch_size": 64, "seq_len": 1024},
        "exports": ["jax", "maxtext"],
    }
    [best] = answer_request(build_request(target="h100:8", axes={"pp": 8}, top=1, **fields)).plans
    assert list(best.exports) == ["maxtext"]
    [notice] = (each for each in best.warnings if each.code == "export_left_out")
    assert notice.message.startswith("export jax: pp:8 is a pipeline")
    assert notice.hint.startswith("leave out pp")
    with pytest.raises(InvalidRequestError, match="export jax: pp:8 is a pipeline"):
        answer_request(ask(mesh="pp:8", target="h100:8", **fields))

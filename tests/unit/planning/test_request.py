"""Which hardware a request means, and what its answer takes over from there."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.planning.request import answer_request, find_topology
from meshwright.testing.hardware import build_devices
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.mesh import PlanRequest

HERE = Topology.of(build_devices("cpu:8"))
NOTICE = Notice(code="simulated", message="nothing is here")


def ask(**fields: Any) -> PlanRequest:
    return PlanRequest.model_validate({"mesh": "dp:2,tp:-1", **fields})


def look() -> Topology:
    raise AssertionError("this host was looked at, and nobody had asked for it")


def refuse(request: PlanRequest, kind: type[Exception] = InvalidRequestError) -> Any:
    with pytest.raises(kind) as caught:
        find_topology(request)
    return caught.value


# ---- which hardware -------------------------------------------------------------------------------------------------


def test_replies_of_agents_are_joined_and_this_host_is_not_looked_at() -> None:
    reply = build_devices("h100:8").model_dump(mode="json")
    assert len(find_topology(ask(topology=reply), look).topology.devices) == 8
    assert find_topology(ask(topology=[reply]), look) == find_topology(ask(topology=reply), look)
    doubled = refuse(ask(topology=[reply, reply]), PlanInfeasibleError)
    assert doubled.errors[0]["field"] == "topology"


def test_a_target_and_a_topology_together_are_refused() -> None:
    refused = refuse(ask(target="h100:8", topology=[]))
    assert refused.errors[0]["field"] == "target"
    assert "leave out target, or leave out topology" in refused.hint


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"target": "?"}, InvalidRequestError, "target"),
        ({"target": "v5q:4x4"}, PlanInfeasibleError, "target"),
        ({"topology": []}, PlanInfeasibleError, "topology"),
    ],
)
def test_hardware_that_is_none_is_refused_with_its_field(
    fields: dict[str, Any], kind: type[Exception], field: str
) -> None:
    assert refuse(ask(**fields), kind).errors[0]["field"] == field


# ---- the answer -----------------------------------------------------------------------------------------------------


def test_the_health_and_the_notices_of_this_host_are_of_plans_on_this_host_alone() -> None:
    here = answer_request(ask(mesh="x:-1"), HERE, health={3: "unhealthy"}, notices=(NOTICE,)).plans[0]
    there = answer_request(ask(mesh="x:-1", target="cpu:8"), HERE, health={3: "unhealthy"}, notices=(NOTICE,)).plans[0]
    assert here.mesh_shape == {"x": 7}
    assert NOTICE in here.warnings
    assert there.mesh_shape == {"x": 8}
    assert NOTICE not in there.warnings

"""The split over granules as a request says it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, RequestError
from meshwright.planning.granules import read_dcn
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.spec import MeshSpec
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest

SPEC = MeshSpec.parse("dp:4,fsdp:6,tp:8")


@pytest.mark.parametrize(("asked", "granules", "split"), [
    ("dp:2", 2, (2, 1, 1)), ("dp:4", 4, (4, 1, 1)), ({"fsdp": 3}, 3, (1, 3, 1)), ("fsdp:3,dp:2", 6, (2, 3, 1)),
    ("dp:2,fsdp:-1", 6, (2, 3, 1)), ("dp:-1", 2, (2, 1, 1)), ({"tp": -1}, 8, (1, 1, 8)), ("dp:1", 1, (1, 1, 1)),
    ("dp:-1", 1, (1, 1, 1)),
])  # fmt: skip
def test_a_split_names_axes_in_any_order_others_stay_whole(asked: Any, granules: int, split: tuple[int, ...]) -> None:
    assert read_dcn(asked, SPEC, [192 // granules] * granules) == split


def refuse(kind: type[RequestError], asked: Any, granules: list[int], spec: MeshSpec = SPEC) -> RequestError:
    with pytest.raises(kind) as caught:
        read_dcn(asked, spec, granules)
    assert caught.value.errors[0]["field"] == "dcn"
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("asked", ["", "dp", "dp:0", "dp:2,dp:2", "dp:-1,tp:-1", "dp:-2", {}, {"dp": 0}, "dp:1.5"])
def test_what_is_no_split_is_refused_with_one_that_is(asked: Any) -> None:
    error = refuse(InvalidRequestError, asked, [96, 96])
    assert error.detail.startswith("dcn: ")
    assert '"dp:2"' in error.hint


@pytest.mark.parametrize(("asked", "granules"), [
    ("dp:4", 2), ("dp:2", 4), ("dp:2,tp:2", 2), ("dp:3", 3), ("dp:-1,fsdp:4", 4), ("dp:2,fsdp:-1", 3), ("tp:1", 2),
])  # fmt: skip
def test_a_split_that_does_not_fit_is_refused_with_one_that_does(asked: str, granules: int) -> None:
    error = refuse(PlanInfeasibleError, asked, [24] * granules)
    assert f"there are {granules} granules" in error.detail
    assert f"together they multiply to {granules}" in error.errors[0]["message"]
    offered = error.hint.removeprefix("use dcn ").removesuffix(", or leave it out")
    assert math.prod(read_dcn(offered, SPEC, [24] * granules)) == granules
    assert ":1" not in offered


@pytest.mark.parametrize("asked", ["dp:2,fsdp:-1", "tp:1"])
def test_a_split_that_does_not_fit_is_shown_as_it_was_asked(asked: str) -> None:
    error = refuse(PlanInfeasibleError, asked, [24] * 3)
    assert error.detail.startswith(f"dcn {asked} splits mesh dp:4,fsdp:6,tp:8; there are 3 granules")


# ---- in a plan ------------------------------------------------------------------------------------------------------


def plan(target: str, mesh: str, **more: Any) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh, **more), build_target(target))


@pytest.mark.parametrize(
    ("mesh", "more"), [("dp:2,tp:6", {}), ("dp:2,tp:4", {}), ("dp:2,tp:4", {"allow_unused": True})]
)
def test_devices_that_are_chosen_by_number_are_chosen_so_that_the_split_fits(mesh: str, more: dict[str, Any]) -> None:
    count = MeshSpec.parse(mesh).device_count
    made = plan("2*h100:8", mesh, dcn="dp:2", **(more or {"devices": {"count": count}}))
    assert [ref.granule for ref in made.devices].count(0) == count // 2
    assert [axis.dcn_size for axis in made.axes] == [2, 1]


@pytest.mark.parametrize(("target", "mesh", "crossing"),[
    ("2*v6e:16x16", "dp:2,fsdp:256", "dp"), ("2*v6e:16x16", "data:2,model:256", "data"),
    ("2*v6e:16x16", "fsdp:2,tp:256", "fsdp"), ("4*v5p:8x8x8", "pp:4,fsdp:512", "pp"), ("2*v5e:4x4", "dp:2,tp:16", "dp"),
])  # fmt: skip
def test_the_axis_of_least_traffic_crosses_however_large_others_are(target: str, mesh: str, crossing: str) -> None:
    plan = plan_mesh(PlanRequest(mesh=mesh), build_target(target))
    assert [axis.name for axis in plan.axes if axis.dcn_size > 1] == [crossing]

from __future__ import annotations

import ast
from typing import Any

import pytest

from meshwright.planning.job_code import LISTED_COUNT_MAX
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.topologies import build_cpu, build_dgx_h100, build_tpu


def make_plan(topology: Topology, mesh: str, **more: object) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh, **more), topology)  # type: ignore[arg-type]


def find_value(code: str, name: str) -> Any:
    """Returns what a name is set to."""
    assigned = (node for node in ast.parse(code).body if isinstance(node, ast.Assign))
    return next(node.value for node in assigned if ast.unparse(node.targets[0]) == name)


def test_a_job_on_a_part_of_the_gpus_sees_them_by_uuid_in_the_order_of_their_positions() -> None:
    dgx = build_dgx_h100()
    environment = make_plan(dgx, "dp:2", devices=[5, 2], device_order="given").environment
    assert environment["CUDA_VISIBLE_DEVICES"] == f"{dgx.devices[2].uuid},{dgx.devices[5].uuid}"
    assert environment["JAX_PLATFORMS"] == "cuda,cpu"
    assert "CUDA_VISIBLE_DEVICES" not in make_plan(dgx, "dp:8").environment
    assert make_plan(dgx, "dp:8").environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_code_for_a_tpu_names_chips_by_coordinates() -> None:
    v5e = build_tpu((2, 4))
    code = make_plan(v5e, "dp:2", devices=[7, 5], device_order="given").code
    assert "order = [((1, 3), 0), ((1, 2), 0)]" in code
    blind = Topology(tuple(device.model_copy(update={"coords": None}) for device in v5e.devices), (), v5e.granules)
    assert "order = [0, 1, 2, 3, 4, 5, 6, 7]" in make_plan(blind, "dp:8").code


@pytest.mark.parametrize("name", ["dp", "a'b", 'a"b', "a\\", "{x}", "#", "größe"])
def test_code_is_python_whatever_the_axes_are_called(name: str) -> None:
    for topology in (build_cpu(2), build_tpu((2, 1))):
        mesh = find_value(make_plan(topology, f"{name}:2").code, "mesh")
        assert ast.literal_eval(mesh.args[1]) == (name,)


# ---- several processes ----------------------------------------------------------------------------------------------


SLICES = [("v5p:4x4x8", "dp:8,tp:16"), ("v5p:8x8x16", "dp:64,tp:16"), ("tpu7x:2x2x1", "x:8")]


@pytest.mark.parametrize(("target", "mesh"), SLICES)
def test_code_for_one_slice_lists_its_chips_up_to_a_thousand(target: str, mesh: str) -> None:
    topology = build_target(target)
    plan = make_plan(topology, mesh)
    compile(plan.code, "plan.py", "exec")
    order = ast.literal_eval(find_value(plan.code, "order"))
    assert order == [(ref.coords, ref.core_on_chip) for ref in plan.devices]
    assert len(order) <= LISTED_COUNT_MAX


def test_a_variable_that_all_hosts_share_is_in_the_environment_and_one_that_differs_is_not() -> None:
    hosts = build_target("2*h100:4")
    alike = make_plan(hosts, "dp:4", devices=["host-0/1", "host-0/2", "host-1/1", "host-1/2"])
    assert alike.environment["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert not [notice for notice in alike.warnings if notice.code == "environment_differs"]
    differing = make_plan(hosts, "dp:4", devices=["host-0/0", "host-0/1", "host-1/1", "host-1/2"])
    assert "CUDA_VISIBLE_DEVICES" not in differing.environment
    (told,) = (notice for notice in differing.warnings if notice.code == "environment_differs")
    assert "host-0: 0,1; host-1: 1,2" in told.message
    assert make_plan(build_target("2*cpu:4"), "x:8").environment["JAX_NUM_CPU_DEVICES"] == "4"

"""Plans and meshes that this process can have nothing to do with."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from meshwright.mesh import build_mesh, create_mesh, mesh_fingerprint
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.jax_devices import build_tpus
from tests.fakes.topologies import build_cpu


def make_plan(mesh: str) -> Plan:
    plan: Plan = plan_mesh(PlanRequest(mesh=mesh), build_cpu(8))
    return plan


def test_a_mesh_made_without_a_plan_has_the_plans_fingerprint_when_it_is_the_planned_one() -> None:
    assert mesh_fingerprint(create_mesh((2, 4), ("dp", "tp"))) == make_plan("dp:2,tp:4").fingerprint
    turned = create_mesh((2, 4), ("dp", "tp"), devices=jax.devices()[::-1])
    assert mesh_fingerprint(turned) != make_plan("dp:2,tp:4").fingerprint


def test_devices_may_be_given_as_an_array() -> None:
    plan = make_plan("dp:2,tp:4")
    assert build_mesh(plan, np.array(jax.devices()).reshape(4, 2)) == build_mesh(plan)


def test_a_mesh_of_devices_that_are_not_running_has_no_fingerprint() -> None:
    with pytest.raises(ValueError, match="no device of this job"):
        mesh_fingerprint(create_mesh((8,), ("x",), devices=build_tpus(2, 4)))
    with pytest.raises(ValueError, match="the mesh has no device"):
        mesh_fingerprint(Mesh(np.empty((0,), dtype=object), ("x",)))


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 1e12, -1.0])
def test_a_time_limit_that_no_wait_can_have_is_refused(timeout_s: float) -> None:
    plan, mesh = make_plan("dp:8"), create_mesh((8,), ("dp",))
    for ask in (lambda: build_mesh(plan, timeout_s=timeout_s), lambda: mesh_fingerprint(mesh, timeout_s=timeout_s)):
        with pytest.raises(ValueError, match="seconds, such as 60"):
            ask()

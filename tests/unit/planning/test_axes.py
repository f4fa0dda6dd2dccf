"""What each axis of a plan runs over, on targets."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planning.device_order import score_layout
from meshwright.planning.mesh_plan import build_axes, plan_mesh
from meshwright.spec import MeshSpec
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanAxis, PlanRequest
from tests.fakes.topologies import build_tpu, change_device, drop_devices, weigh_positions


def plan_axes(target: str | Topology, mesh: str, **more: Any) -> dict[str, PlanAxis]:
    topology = build_target(target) if isinstance(target, str) else target
    made = plan_mesh(PlanRequest(mesh=mesh, include_devices=False, **more), topology)
    return {axis.name: axis for axis in made.axes}


# ---- on a torus -----------------------------------------------------------------------------------------------------


SAME = [("v5p:4x4x8", (8, 16)), ("v5e:8x8", (4, 16)), ("tpu7x:2x2x4", (4, 8)), ("v5e:16x16", (32, 8))]


@pytest.mark.parametrize(("target", "sizes"), SAME)
def test_one_line_tells_about_all_where_a_torus_is_cut(target: str, sizes: tuple[int, ...]) -> None:
    topology = build_target(target)
    mesh = MeshSpec(tuple(zip("ab", sizes, strict=True)))
    made = plan_mesh(PlanRequest(mesh=mesh.axes), topology)
    assert made.device_order == "torus"
    at = {(ref.granule, ref.position): index for index, ref in enumerate(topology.devices)}
    order = [at[ref.granule, ref.position] for ref in made.devices]
    every_line = build_axes(mesh, topology, score_layout(sizes, weigh_positions(sizes), topology, order))
    assert every_line == made.axes


def test_an_axis_whose_lines_differ_has_no_extent() -> None:
    topology = drop_devices(build_target("v5e:4x4"), {5})
    axes = plan_axes(topology, "dp:5,tp:3")
    assert (axes["tp"].group_shape, axes["tp"].link) == (None, "ici")
    assert axes["tp"].max_hops is not None


def test_chips_without_coordinates_have_neither_extent_nor_hops() -> None:
    blind = change_device(build_tpu((2, 2, 1), with_links=False), 3, coords=None)
    axis = plan_axes(blind, "tp:4")["tp"]
    assert (axis.group_shape, axis.max_hops, axis.links) == (None, None, None)
    assert axis.bandwidth_bytes_per_s is None


# ---- over granules --------------------------------------------------------------------------------------------------


def test_hosts_of_an_nvlink_domain_whose_links_have_no_rate_have_none() -> None:
    made = build_target("2*gb200:4")
    links = tuple(link.model_copy(update={"bandwidth_bytes_per_s": None}) for link in made.links)
    blind = Topology(made.devices, links, made.granules)
    axis = plan_axes(blind, "tp:8")["tp"]
    assert (axis.link, axis.bandwidth_bytes_per_s, axis.basis) == ("nvlink", None, None)

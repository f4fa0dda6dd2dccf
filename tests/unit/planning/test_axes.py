"""What each axis of a plan runs over, on targets."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planning.device_order import score_layout
from meshwright.planning.mesh_plan import build_axes, plan_mesh
from meshwright.spec import MeshSpec
from meshwright.topology.chips import find_chip
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanAxis, PlanRequest
from tests.fakes.topologies import build_tpu, change_device, drop_devices, weigh_positions


def plan_axes(target: str | Topology, mesh: str, **more: Any) -> dict[str, PlanAxis]:
    topology = build_target(target) if isinstance(target, str) else target
    made = plan_mesh(PlanRequest(mesh=mesh, include_devices=False, **more), topology)
    return {axis.name: axis for axis in made.axes}


# ---- on a torus -----------------------------------------------------------------------------------------------------

TORI = [
    ("v5p:4x4x8", "dp:8,tp:16", "dp", (1, 1, 8), 1, 2, 2.0),
    ("v5p:4x4x8", "dp:8,tp:16", "tp", (4, 4, 1), 1, 2, 4.0),
    ("v5p:4x4x4", "dp:2,fsdp:8,tp:4", "dp", (1, 1, 2), 1, 1, 1.0),
    ("v5p:4x4x4", "dp:2,fsdp:8,tp:4", "fsdp", (1, 4, 2), 1, 2, 3.0),
    ("v5p:4x4x28", "dp:56,tp:8", "dp", (1, 2, 28), 1, 2, 3.0),
    ("v5e:8x8", "dp:8,tp:8", "tp", (8, 1, 1), 1, 0, 1.0),
    ("v5e:16x16", "dp:16,tp:16", "tp", (16, 1, 1), 1, 2, 2.0),
    ("v5e:2x4", "dp:4,tp:2", "tp", (2, 1, 1), 1, 1, 1.0),
    ("tpu7x:2x2x2", "dp:2,tp:8", "dp", (1, 1, 1), 0, 1, 2.0),
    ("tpu7x:2x2x2", "dp:2,tp:8", "tp", (2, 2, 2), 1, 2, 3.0),
    ("v4:4x4x8", "dp:8,tp:16", "tp", (4, 4, 1), 1, 2, 4.0),
    ("v4:4x4x8_twisted", "dp:8,tp:16", "dp", (1, 1, 8), 1, 2, 2.0),
    ("v4:4x4x8_twisted", "dp:8,tp:16", "tp", (4, 4, 1), 1, 2, 2.0),
]
"""Target, mesh, axis; the extent of a group, longest step, rings, links. In a twisted torus the short sides are open:
going once round x ends elsewhere on z."""


@pytest.mark.parametrize(("target", "mesh", "name", "shape", "hops", "rings", "links"), TORI)
def test_an_axis_on_a_torus_tells_its_extent_its_steps_and_its_links(
    target: str, mesh: str, name: str, shape: tuple[int, ...], hops: int, rings: int, links: float
) -> None:
    axis = plan_axes(target, mesh)[name]
    assert (axis.link, axis.dcn_size, axis.basis) == ("ici", 1, "declared")
    assert (axis.group_shape, axis.max_hops, axis.rings) == (shape, hops, rings)
    assert axis.links == pytest.approx(links)
    chip = find_chip(target.partition(":")[0])
    assert chip is not None
    assert axis.bandwidth_bytes_per_s == chip.link_bytes_per_s


SAME = [("v5p:4x4x8", (8, 16)), ("v5e:8x8", (4, 16)), ("tpu7x:2x2x4", (4, 8)), ("v5e:16x16", (32, 8))]


@pytest.mark.parametrize(("target", "sizes"), SAME)
def test_one_line_tells_about_all_where_a_torus_is_cut(target: str, sizes: tuple[int, ...]) -> None:
    topology = build_target(target)
    mesh = MeshSpec(tuple(zip("ab", sizes, strict=True)))
    made = plan_mesh(PlanRequest(mesh=mesh.axes), topology)
    assert made.score is not None
    assert made.score.method == "torus"
    at = {(ref.granule, ref.position): index for index, ref in enumerate(topology.references)}
    order = [at[ref.granule, ref.position] for ref in made.devices]
    every_line = build_axes(mesh, topology, score_layout(sizes, weigh_positions(sizes), topology, order))
    assert every_line == made.axes


def test_an_axis_whose_lines_differ_has_no_extent() -> None:
    topology = drop_devices(build_target("v5e:4x4"), {5})
    axes = plan_axes(topology, "dp:5,tp:3")
    assert axes["tp"].group_shape is None
    assert axes["tp"].link == "ici"
    assert axes["tp"].max_hops is not None


def test_chips_without_coordinates_have_neither_extent_nor_hops() -> None:
    blind = change_device(build_tpu((2, 2, 1), with_links=False), 3, coords=None)
    axis = plan_axes(blind, "tp:4")["tp"]
    assert (axis.group_shape, axis.max_hops, axis.rings, axis.links) == (None, None, None, None)
    assert axis.bandwidth_bytes_per_s is None


# ---- over granules --------------------------------------------------------------------------------------------------


def test_an_axis_over_slices_tells_what_it_has_inside_of_them_and_the_network_between() -> None:
    axes = plan_axes("2*v5e:16x16", "dp:2,fsdp:16,tp:16")
    assert axes["dp"].model_dump(exclude_none=True, exclude={"name", "size"}) == {
        "link": "dcn",
        "dcn_size": 2,
        "group_shape": (1, 1, 1),
        "bandwidth_bytes_per_s": pytest.approx(3.1e9, rel=0.05),
        "basis": "declared",
    }
    assert [axes[name].group_shape for name in ("fsdp", "tp")] == [(1, 16, 1), (16, 1, 1)]
    assert {axes[name].dcn_size for name in ("fsdp", "tp")} == {1}
    assert {axes[name].rings for name in ("fsdp", "tp")} == {2}
    split = plan_axes("2*v5e:16x16", "dp:8,tp:64")
    assert (split["dp"].link, split["dp"].dcn_size) == ("dcn", 2)
    assert split["dp"].max_hops == 1, "of the part inside a slice"
    assert split["dp"].rings is None


HOSTS = [
    ("64*h100:8", "dp:64,tp:8", [("dcn", 64, 50e9), ("nvlink", 1, 450e9)]),
    ("64*h100:8", "dp:32,tp:16", [("dcn", 32, 50e9), ("dcn", 2, 50e9)]),
    ("2*h100:8", "x:16", [("dcn", 2, 50e9)]),
    ("h100:8", "tp:8", [("nvlink", 1, 450e9)]),
    ("gb200:72", "dp:18,tp:4", [("nvlink", 1, 900e9), ("nvlink", 1, 900e9)]),
    ("gb200:72", "tp:72", [("nvlink", 1, 900e9)]),
    ("36*gb200:4", "dp:2,tp:72", [("dcn", 2, 50e9), ("nvlink", 1, 900e9)]),
    ("36*gb200:4", "dp:4,tp:36", [("dcn", 2, 50e9), ("nvlink", 1, 900e9)]),
    ("2*mi300x:8", "dp:2,tp:8", [("dcn", 2, 50e9), ("xgmi", 1, 64e9)]),
    ("h100-pcie:4", "dp:2,tp:2", [("pcie", 1, None), ("nvlink", 1, 300e9)]),
    ("l4:8", "dp:2,tp:4", [("pcie", 1, None), ("pcie", 1, None)]),
    ("2*cpu:4", "dp:2,tp:4", [("dcn", 2, None), ("host", 1, None)]),
]


@pytest.mark.parametrize(("target", "mesh", "expected"), HOSTS)
def test_an_axis_over_hosts_tells_its_slowest_link(
    target: str, mesh: str, expected: list[tuple[str, int, float | None]]
) -> None:
    axes = plan_axes(target, mesh).values()
    assert [(axis.link, axis.dcn_size, axis.bandwidth_bytes_per_s) for axis in axes] == expected
    assert [axis.basis for axis in axes] == [None if rate is None else "declared" for _, _, rate in expected]
    assert all(axis.group_shape is axis.max_hops is axis.rings is axis.links is None for axis in axes)


def test_hosts_of_an_nvlink_domain_whose_links_have_no_rate_have_none() -> None:
    made = build_target("2*gb200:4")
    links = tuple(link.model_copy(update={"bandwidth_bytes_per_s": None}) for link in made.links)
    blind = Topology(made.devices, links, made.granules)
    axis = plan_axes(blind, "tp:8")["tp"]
    assert (axis.link, axis.bandwidth_bytes_per_s, axis.basis) == ("nvlink", None, None)

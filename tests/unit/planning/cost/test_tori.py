"""Axes on tori: whole dimensions, blocks and steps over them, as in the orders that the planner makes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import AXES, Cut, Spans, cut_torus, lay_on_torus, read_spans
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.planning.search.candidates import Hardware
from meshwright.spec import MeshSpec
from meshwright.targets import TargetSpec
from meshwright.topology.chips import find_chip
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest

CUBE = ((4, 4, 4), (True, True, True), 1)

PLANNED = (
    ("v5p:4x4x4", "fsdp:16,tp:4"),
    ("v5p:4x4x8", "fsdp:16,tp:8"),
    ("v5p:8x8x8", "fsdp:32,tp:16"),
    ("v5p:8x8x8", "dp:4,fsdp:32,tp:4"),
    ("2*v5p:4x8x8", "dp:2,fsdp:32,tp:8"),
    ("v5e:16x16", "fsdp:256"),
    ("v5e:16x16", "fsdp:64,tp:4"),
    ("v5e:8x16", "fsdp:32,tp:4"),
    ("v5e:4x4", "fsdp:4,tp:4"),
    ("2*v5e:16x16", "dp:2,fsdp:32,tp:8"),
    ("v6e:8x16", "fsdp:16,tp:8"),
    ("v6e:8x8", "fsdp:64"),
    ("tpu7x:4x4x4", "fsdp:128"),
    ("tpu7x:4x4x4", "fsdp:64,tp:2"),
    ("tpu7x:4x4x4", "fsdp:32,tp:4"),
    ("tpu7x:4x8x8", "fsdp:64,cp:8"),
)


def plan(target: str, mesh: str) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh), build_target(target)).plans[0]


def lay(target: str, layout: Layout) -> Spans:
    spec = TargetSpec.parse(target)
    chip, granule = find_chip(spec.chip), build_target(target).granules[0]
    assert chip is not None
    assert granule.shape is not None
    assert granule.wrap is not None
    parts = chip.jax_devices_per_chip
    link, across = (chip.link_bytes_per_s or 0) / parts, (chip.scaleout_bytes_per_s or 0) / parts
    return lay_on_torus(layout, chip.family, granule.shape, granule.wrap, link, across, parts)


def rate(spans: Spans, axis: str) -> float:
    return float(np.squeeze(spans[axis].inner.bytes_per_s))


@pytest.mark.parametrize(("target", "mesh"), PLANNED)
def test_axes_have_as_many_links_as_in_the_order_that_the_planner_makes(target: str, mesh: str) -> None:
    sizes = dict(MeshSpec.parse(mesh).axes)
    laid, read = lay(target, Layout(**sizes)), read_spans(plan(target, mesh))
    for axis in sizes:
        assert float(np.squeeze(laid[axis].inner.size)) == read[axis].inner.size
        assert float(np.squeeze(laid[axis].outer.size)) == read[axis].outer.size
        assert rate(laid, axis) == pytest.approx(rate(read, axis))


def test_an_axis_takes_a_whole_ring_where_its_size_is_one() -> None:
    tensor, *_ = cut_torus((4, 1, 1, 16, 1, 1), *CUBE)
    assert math.prod(tensor.dims) == max(tensor.dims) == 4
    assert sum(tensor.rings) == 1


def test_an_axis_smaller_than_a_ring_is_a_block_of_lines_and_the_next_steps_over_it() -> None:
    tensor, _, _, weights, _, _ = cut_torus((8, 1, 1, 32, 1, 1), (16, 16), (True, True), 1)
    assert tensor == Cut((4, 2, 1), (False, False, False), (1.0, 1.0, 0.5), 1)
    assert weights == Cut((4, 8, 1), (True, True, False), (4.0, 2.0, 0.5), 1)


def test_cores_of_a_chip_are_an_axis_of_their_own_where_they_make_its_size() -> None:
    tensor, *_ = cut_torus((2, 1, 1, 64, 1, 1), (4, 4, 4), (True, True, True), 2)
    assert tensor.dims == (1, 1, 1, 2)


def test_what_does_not_fit_a_slice_goes_over_several() -> None:
    *_, weights, data, _ = cut_torus((4, 1, 1, 16, 3, 1), *CUBE)
    assert (weights.slices, data.slices) == (1, 3)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 32]), min_size=6, max_size=6), st.sampled_from([1, 2]))
def test_every_axis_is_laid_out_whole_and_none_takes_what_another_has(sizes: list[int], cores: int) -> None:
    shape = (4, 8, 8)
    cuts = cut_torus(tuple(sizes), shape, (True, True, True), cores)
    assert [math.prod(cut.dims) * cut.slices for cut in cuts] == sizes
    taken = [math.prod(dims) for dims in zip(*(cut.dims for cut in cuts), strict=True)]
    assert all(whole % part == 0 for whole, part in zip((*shape, cores), taken, strict=True))


def test_candidates_are_laid_as_each_alone() -> None:
    sizes = [(1, 64), (4, 16), (8, 8), (64, 1)]
    arrays = Layout(tp=np.array([tp for tp, _ in sizes]), fsdp=np.array([fsdp for _, fsdp in sizes]))
    together = lay("v5p:4x4x4", arrays)
    for place, (tp, fsdp) in enumerate(sizes):
        alone = lay("v5p:4x4x4", Layout(tp=tp, fsdp=fsdp))
        for axis in AXES:
            moved = together[axis].time("all_gather", 1e9)
            assert np.broadcast_to(moved, 4)[place] == pytest.approx(
                float(np.squeeze(alone[axis].time("all_gather", 1e9)))
            )


HOSTS = (
    ("4*h100:8", "fsdp:4,tp:8"),
    ("4*h100:8", "fsdp:8,tp:4"),
    ("8*h100:8", "dp:2,fsdp:32"),
    ("8*h100:8", "fsdp:4,tp:16"),
    ("8*a100-80gb:8", "pp:2,fsdp:16,tp:2"),
    ("2*gb200:72", "fsdp:18,tp:8"),
    ("h100:8", "dp:2,tp:4"),
)


@pytest.mark.parametrize(("target", "mesh"), HOSTS)
def test_axes_over_hosts_go_as_far_as_in_the_order_that_the_planner_makes(target: str, mesh: str) -> None:
    sizes = dict(MeshSpec.parse(mesh).axes)
    topology = build_target(target)
    layout = Layout(**{axis: np.array([size]) for axis, size in sizes.items()})
    hardware = Hardware.of(topology, len(topology.devices))
    laid, read = hardware.lay(layout), read_spans(plan(target, mesh), domain=hardware.domain)
    for axis in AXES:
        for part in ("inner", "outer"):
            mine, planned = getattr(laid[axis], part), getattr(read[axis], part)
            assert float(np.squeeze(mine.size)) == planned.size, (axis, part)
            assert float(np.squeeze(mine.bytes_per_s)) == pytest.approx(float(planned.bytes_per_s)), (axis, part)
        assert bool(np.squeeze(laid[axis].is_partial)) == bool(read[axis].is_partial), axis


def test_an_order_that_leaves_the_host_costs_what_the_network_takes() -> None:
    near = PlanRequest(mesh="fsdp:8,tp:2")
    topology = build_target("2*h100:8")
    hosts = [device.host for device in topology.devices]
    names = [f"{hosts[(i % 2) * 8]}/{i // 2}" for i in range(16)]
    far = near.model_copy(update={"devices": tuple(names), "device_order": "given"})
    planned, given = (read_spans(plan_mesh(each, topology).plans[0]) for each in (near, far))
    moved = [float(np.squeeze(each["tp"].time("all_gather", 1e9))) for each in (planned, given)]
    assert moved[1] > 3 * moved[0]


def test_a_plan_for_no_known_chip_has_no_wires() -> None:
    with pytest.raises(ValueError, match="no known wires"):
        read_spans(plan("cpu:8", "dp:2,tp:4"))


def test_axes_are_found_by_the_names_that_the_plan_has() -> None:
    named = read_spans(plan("v5p:4x4x4", "data:16,model:4"), {"fsdp": "data", "tp": "model"})
    plain = read_spans(plan("v5p:4x4x4", "fsdp:16,tp:4"))
    assert rate(named, "tp") == rate(plain, "tp")
    assert named["fsdp"].inner.size == 16


def test_an_axis_that_a_plan_has_not_is_one_device() -> None:
    spans = read_spans(plan("v5e:4x4", "fsdp:16"))
    assert spans["tp"].inner.size == spans["tp"].outer.size == 1

"""Axes on tori: whole dimensions, blocks and steps over them, as in the orders that the planner makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.spans import Layout, Spans, lay_on_torus, read_spans
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.spec import MeshSpec
from meshwright.targets import TargetSpec
from meshwright.topology.chips import find_chip
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest

PLANNED = (
    ("v5p:4x4x4", "fsdp:16,tp:4"), ("v5p:4x4x8", "fsdp:16,tp:8"), ("v5p:8x8x8", "fsdp:32,tp:16"),
    ("v5p:8x8x8", "dp:4,fsdp:32,tp:4"), ("2*v5p:4x8x8", "dp:2,fsdp:32,tp:8"), ("v5e:16x16", "fsdp:256"),
    ("v5e:16x16", "fsdp:64,tp:4"), ("v5e:8x16", "fsdp:32,tp:4"), ("v5e:4x4", "fsdp:4,tp:4"),
    ("2*v5e:16x16", "dp:2,fsdp:32,tp:8"), ("v6e:8x16", "fsdp:16,tp:8"), ("v6e:8x8", "fsdp:64"),
    ("tpu7x:4x4x4", "fsdp:128"), ("tpu7x:4x4x4", "fsdp:64,tp:2"), ("tpu7x:4x4x4", "fsdp:32,tp:4"),
    ("tpu7x:4x8x8", "fsdp:64,cp:8"),
)  # fmt: skip


def read(plan: Plan) -> Spans:
    chip: Any = find_chip(plan.granules[0].device_kind or "")
    return read_spans(plan, chip)


def lay(target: str, layout: Layout) -> Spans:
    chip: Any = find_chip(TargetSpec.parse(target).chip)
    granule: Any = build_target(target).granules[0]
    return lay_on_torus(layout, chip, granule.shape, granule.wrap)


def rate(spans: Spans, axis: str) -> float:
    return float(np.squeeze(spans[axis].inner.bytes_per_s))


@pytest.mark.parametrize(("target", "mesh"), PLANNED)
def test_axes_have_as_many_links_as_in_the_order_that_the_planner_makes(target: str, mesh: str) -> None:
    sizes = dict(MeshSpec.parse(mesh).axes)
    laid = lay(target, Layout(**sizes))
    read_back = read(plan_mesh(PlanRequest(mesh=mesh), build_target(target)))
    for axis in (*sizes, "dense_weights"):
        assert float(np.squeeze(laid[axis].inner.size)) == read_back[axis].inner.size
        assert float(np.squeeze(laid[axis].outer.size)) == read_back[axis].outer.size
        assert rate(laid, axis) == pytest.approx(rate(read_back, axis))


def test_fewer_devices_than_a_slice_has_stand_in_a_box_of_it() -> None:
    links = [rate(lay("v5e:16x16", Layout(tp=size)), "tp") / 45e9 for size in (2, 4, 16)]
    assert links == [1, 2, 2], "a line, a square, a ring"
    assert float(np.squeeze(lay("v5p:4x4x4", Layout(tp=7))["tp"].inner.size)) == 7


def test_an_order_that_leaves_the_host_costs_what_the_network_takes() -> None:
    near = PlanRequest(mesh="fsdp:8,tp:2")
    topology = build_target("2*h100:8")
    hosts = [device.host for device in topology.devices]
    names = [f"{hosts[(i % 2) * 8]}/{i // 2}" for i in range(16)]
    far = near.model_copy(update={"devices": tuple(names), "device_order": "given"})
    planned, given = (read(plan_mesh(each, topology)) for each in (near, far))
    moved = [float(np.squeeze(each["tp"].time("all_gather", 1e9))) for each in (planned, given)]
    assert moved[1] > 3 * moved[0]

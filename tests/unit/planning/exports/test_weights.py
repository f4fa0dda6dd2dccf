"""Where exports say that weights lie: the tree, shapes and axes of the tensors that the compiled step is made of."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from meshwright.compiling.step.sharding import StepAxes, Tensor, build_spec, build_tensors
from meshwright.planning.exports.setting import Setting
from meshwright.planning.exports.weights import Weight, list_layer, list_outer
from meshwright.wire.mesh import Plan
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.unit.compiling.test_parameters_of_step import MESHES, fit_model
from tests.unit.planning.exports.asking import make_plan
from tests.unit.planning.models import models


@functools.cache
def make_any_plan() -> Plan:
    return make_plan(mesh="dp:8")[0]


@given(models(), st.sampled_from(MESHES), st.booleans())
def test_every_weight_lies_where_the_compiled_step_has_it(model: ModelSpec, mesh: dict[str, int], fits: bool) -> None:
    told = fit_model(model, mesh) if fits else model
    setting = Setting(make_any_plan(), told, TrainingSpec(global_batch=8), mesh)
    layers, outer = list_layer(setting), list_outer(setting)
    tensors = build_tensors(told, StepAxes.of(mesh), scanned=False)
    layer = tensors.pop("layers")[0]
    if fits:
        assert {name: read(weight) for name, weight in outer.items()} == {n: show(t) for n, t in tensors.items()}
        assert {name: read(weight) for name, weight in layers.items()} == {n: show(t) for n, t in layer.items()}
    assert {name: weight.shape for name, weight in {**outer, **layers}.items()} == {
        name: tensor.shape for name, tensor in {**tensors, **layer}.items()
    }


def read(weight: Weight) -> tuple[tuple[int, ...], PartitionSpec]:
    return weight.shape, build_spec(*weight.spec)


def show(tensor: Tensor) -> tuple[tuple[int, ...], PartitionSpec]:
    return tensor.shape, tensor.stored

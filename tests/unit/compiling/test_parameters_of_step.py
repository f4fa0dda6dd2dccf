"""The tensors of the step: as many elements as the model has parameters, and where each lies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from meshwright.compiling.step.sharding import ShardedTensor, build_tensors
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import check_axes, find_inexpressible
from meshwright.planning.models import Preset, read_presets
from meshwright.planning.parallelism import MeshAxes, check_divides
from meshwright.planning.tensors import count_parameters
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.unit.planning.models import PLAIN, models

COMPILED = [
    pytest.param(preset, id=preset.name)
    for preset in read_presets()
    if not preset.unsupported and not any(find_inexpressible(preset.model, 1))
]

MESHES: tuple[dict[str, int], ...] = (
    {"dp": 8}, {"fsdp": 4}, {"tp": 2}, {"fsdp": 2, "tp": 2}, {"fsdp": 2, "cp": 2}, {"fsdp": 2, "ep": 2, "tp": 2},
    {"dp": 2, "fsdp": 4, "cp": 2, "ep": 2, "tp": 4},
)  # fmt: skip
LENGTH = 8
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def count_elements(model: ModelSpec, *, scanned: bool, mesh: dict[str, int] | None = None) -> int:
    tensors = jax.tree.leaves(build_tensors(model, MeshAxes.of(mesh or {}), scanned=scanned))
    return sum(math.prod(tensor.shape) for tensor in tensors)


@pytest.mark.parametrize("preset", COMPILED)
@pytest.mark.parametrize("scanned", [True, False])
def test_every_compiled_preset_has_as_many_elements_as_parameters(preset: Preset, scanned: bool) -> None:
    found = count_elements(preset.model, scanned=scanned)
    assert found == count_parameters(preset.model)
    assert preset.row.get("published_parameters", str(found)) == str(found)


@given(models(), st.booleans())
def test_every_model_has_as_many_elements_as_parameters(model: ModelSpec, scanned: bool) -> None:
    assert count_elements(model, scanned=scanned) == count_parameters(model)


@given(models(), st.sampled_from(MESHES), st.booleans())
def test_where_a_mesh_divides_a_model_it_divides_tensors(model: ModelSpec, mesh: dict[str, int], scanned: bool) -> None:
    fitting = fit_model(model, mesh)
    check_divides(fitting, TrainingSpec(global_batch_size=math.prod(mesh.values()), seq_len=LENGTH), mesh)
    for tensor in jax.tree.leaves(build_tensors(fitting, MeshAxes.of(mesh), scanned=scanned)):
        check_places(tensor, mesh)


def fit_model(model: ModelSpec, mesh: dict[str, int]) -> ModelSpec:
    """Returns a model like this one that the mesh divides: its sizes times what they are divided by."""
    tensor, experts = mesh.get("tp", 1), mesh.get("ep", 1)
    cut = ("intermediate_size", "num_attention_heads", "vocab_size", "moe_intermediate_size")
    grown = {name: size * tensor for name in cut if (size := getattr(model, name))} | {
        "hidden_size": model.hidden_size * mesh.get("fsdp", 1), "num_key_value_heads": model.kv_heads * tensor,
        "num_experts": model.num_experts and model.num_experts * experts,
        "max_position_embeddings": model.max_position_embeddings and model.max_position_embeddings + LENGTH,
    }  # fmt: skip
    has_none = experts > 1 and not model.num_experts
    return ModelSpec.model_validate(model.model_dump() | grown | (EXPERTS | {"mlp_bias": False} if has_none else {}))


def check_places(tensor: ShardedTensor, mesh: dict[str, int]) -> None:
    """Asserts that both places divide the shape, name each axis once, and differ by what is gathered alone."""
    for spec in (tensor.stored, tensor.used):
        assert len(spec) <= len(tensor.shape)
        names = [name for axes in list_axes(spec) for name in axes]
        assert set(names) <= set(mesh)
        assert len(names) == len(set(names)), "an axis divides one dimension of a tensor"
        for size, axes in zip(tensor.shape, list_axes(spec), strict=False):
            assert size % math.prod(mesh[name] for name in axes) == 0
    assert "fsdp" not in [name for axes in list_axes(tensor.used) for name in axes]
    for kept, taken in zip(list_axes(tensor.stored), list_axes(tensor.used), strict=True):
        assert kept[: len(taken)] == taken, "what a matmul has, it has from what is stored, without a move"


def list_axes(spec: PartitionSpec) -> Iterator[tuple[str, ...]]:
    """Yields the axes of each dimension."""
    for axes in spec:
        yield () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def find(model: dict[str, Any], name: str, **mesh: int) -> ShardedTensor:
    """Returns one tensor of a layer, or one outside of them."""
    tensors = build_tensors(ModelSpec(**model), MeshAxes.of(mesh), scanned=False)
    tensor: ShardedTensor = tensors.get(name) or tensors["layers"][0][name]
    return tensor


@pytest.mark.parametrize(("model", "name", "mesh", "stored", "used"), [
    (PLAIN, "query", {"dp": 8}, (None, None), (None, None)),
    (PLAIN, "query", {"fsdp": 2, "tp": 4}, (("fsdp",), ("tp",)), (None, ("tp",))),
    (PLAIN, "output", {"fsdp": 2, "tp": 4}, (("tp",), ("fsdp",)), (("tp",), None)),
    (PLAIN, "up", {"fsdp": 2, "cp": 2, "tp": 2}, (("fsdp", "cp"), ("tp",)), (None, ("tp",))),
    (PLAIN, "up", {"cp": 8}, ("cp", None), (None, None)),
    (PLAIN, "embedding", {"fsdp": 2, "tp": 4}, (None, ("tp", "fsdp")), (None, ("tp",))),
    (PLAIN, "head", {"fsdp": 2, "tp": 4}, (("fsdp",), ("tp",)), (None, ("tp",))),
    (PLAIN, "mlp_norm", {"fsdp": 2, "tp": 4}, (None,), (None,)),
    ({**PLAIN, "num_key_value_heads": 2}, "key", {"tp": 4}, (None, ("tp",)), (None, ("tp",))),
    (PLAIN | EXPERTS, "up", {"fsdp": 2, "ep": 2, "tp": 2}, ("ep", "fsdp", "tp"), ("ep", None, "tp")),
    (PLAIN | EXPERTS, "down", {"fsdp": 2, "ep": 2, "tp": 2}, ("ep", "tp", "fsdp"), ("ep", "tp", None)),
    (PLAIN | EXPERTS, "router", {"fsdp": 2, "ep": 2}, (("fsdp", "ep"), None), (None, None)),
])  # fmt: skip
def test_a_tensor_lies_as_its_part_in_a_matmul_says(model: Any, name: str, mesh: Any, stored: Any, used: Any) -> None:
    tensor = find(model, name, **mesh)
    assert list(list_axes(tensor.stored)) == list(list_axes(PartitionSpec(*stored)))
    assert list(list_axes(tensor.used)) == list(list_axes(PartitionSpec(*used)))


def test_layers_are_stacked_or_listed_and_a_stack_is_never_divided() -> None:
    model = ModelSpec(**PLAIN)
    stacked = build_tensors(model, MeshAxes.of({"fsdp": 2}), scanned=True)["layers"]
    listed = build_tensors(model, MeshAxes.of({"fsdp": 2}), scanned=False)["layers"]
    assert len(listed) == model.num_hidden_layers
    assert {name: tensor.shape for name, tensor in stacked.items()} == {
        name: (model.num_hidden_layers, *tensor.shape) for name, tensor in listed[0].items()
    }
    assert all(tensor.stored[0] is None and tensor.used[0] is None for tensor in stacked.values())


# ---- axes -----------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(NotCompiledError, match=r"axis pp of 2 is a pipeline.*leave pp out.* num_hidden_layers ÷ 2"):
        check_axes({"pp": 2, "tp": 4})


def test_weights_lie_over_context_and_experts_where_they_divide() -> None:
    both = MeshAxes.of({"fsdp": 2, "ep": 2, "cp": 3})
    assert both.shard_weights(12) == ("fsdp", "cp", "ep")
    assert both.shard_weights(6) == ("fsdp", "cp")
    assert both.shard_weights(4) == ("fsdp", "ep")
    assert both.shard_weights(4, without=("ep",)) == ("fsdp",)
    assert both.shard_weights(5) == ()
    assert MeshAxes.of({"ep": 2, "cp": 3}).shard_weights(6) == ("cp", "ep")

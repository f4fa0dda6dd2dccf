from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright._verify.trace import ArgumentLeaf, count_split, describe_leaves, place_leaves

P = PartitionSpec
AXES = {"dp": 2, "tp": 4}


class State(NamedTuple):
    w: Any
    step: Any


def make_mesh(**axes: int) -> Mesh:
    count = int(np.prod(list(axes.values())))
    return Mesh(np.array(jax.devices()[:count]).reshape(tuple(axes.values())), tuple(axes))


def test_arrays_become_shapes_and_all_else_stays() -> None:
    tree = {"a": np.ones((2, 3), np.int8), "b": jnp.ones(4), "n": 3, "none": None, "word": "x"}
    described = describe_leaves(tree, None, AXES)
    assert described["a"] == ArgumentLeaf((2, 3), np.dtype("int8"), None)
    assert described["b"].shape == (4,)
    assert (described["n"], described["none"], described["word"]) == (3, None, "x")


def test_specs_are_a_prefix_and_win_over_a_leafs_own_sharding() -> None:
    own = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(make_mesh(dp=2, tp=4), P("tp")))
    tree = (State(own, own), own, {"x": own})
    described = describe_leaves(tree, (P("dp"), None, {"x": P()}), AXES)
    assert described[0] == State(*[ArgumentLeaf((8, 8), jnp.dtype("float32"), P("dp"))] * 2)
    assert described[1].spec == P("tp")
    assert described[2]["x"].spec == P()
    assert count_split(described) == (4, 3)


def test_placed_leaves_lie_on_the_mesh_and_whole_where_nothing_is_said() -> None:
    mesh = make_mesh(dp=2, tp=4)
    tree = describe_leaves((np.ones((4, 4)), np.ones(3), 2.0), (P("dp", "tp"), None, None), AXES)
    split, whole, scalar = place_leaves(tree, mesh)
    assert split.sharding == NamedSharding(mesh, P("dp", "tp"))
    assert whole.sharding.is_fully_replicated
    assert scalar == 2.0


def test_memory_kinds_and_weak_types_are_kept_and_a_spec_may_have_unreduced_axes() -> None:
    mesh = make_mesh(dp=2, tp=4)
    host = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P("dp"), memory_kind="pinned_host"))
    described = describe_leaves((host, jnp.asarray(0.5), np.float32(1)), None, AXES)
    placed = place_leaves(described, mesh)
    assert placed[0].sharding == host.sharding
    assert [leaf.weak_type for leaf in placed] == [False, True, False]
    assert count_split(describe_leaves((host,), P("dp", unreduced={"tp"}), AXES)) == (1, 1)


@pytest.mark.parametrize("specs", ["dp", NamedSharding(make_mesh(dp=2, tp=4), P("dp"))])
def test_what_is_no_spec_is_refused_by_the_leafs_path(specs: Any) -> None:
    with pytest.raises(TypeError, match=r"in_specs holds .* for leaf \[0\].*give PartitionSpecs, such as P\('dp'\)"):
        describe_leaves((np.ones(2),), specs, AXES)


def test_an_axis_that_the_plan_does_not_have_names_the_leaf() -> None:
    with pytest.raises(ValueError, match=r"leaf \[0\]\['w'\] is split over the axis 'ep'; the plan has dp, tp"):
        describe_leaves(({"w": np.ones(4)},), P(("dp", "ep")), AXES)


@pytest.mark.parametrize("axes", [{"dp": 4, "tp": 2}, {"data": 8}])
def test_a_mesh_that_is_not_the_plans_names_the_leaf(axes: dict[str, int]) -> None:
    leaf = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(make_mesh(**axes), P()))
    with pytest.raises(ValueError, match=r"leaf \.w is sharded on a mesh of .*the plan's mesh is \{'dp': 2, 'tp': 4\}"):
        describe_leaves(State(leaf, 0), None, AXES)


@pytest.mark.parametrize("specs", [(P("dp"),), {"w": P()}, (P(), P(), P())])
def test_specs_that_are_no_prefix_are_refused(specs: Any) -> None:
    with pytest.raises(ValueError, match="in_specs is no prefix of the arguments"):
        describe_leaves((np.ones(2), np.ones(2)), specs, AXES)

"""What was placed, gathered again, is what it was: over shapes, dtypes and pytrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.devices import JAXDeviceManager
from meshwright.mesh import create_mesh
from meshwright.placement import DevicePlacement, distribute_batch, place_on_device, prefetch_to_device

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
MESHES = [((8,), ("data",), "data"), ((2, 4), ("data", "model"), "data"), ((2, 4), ("a", "b"), ("a", "b"))]


@st.composite
def draw_leaf(draw: st.DrawFn, rows: int) -> Any:
    """An array [rows, …] of any dtype, whose values tell their places apart as far as the dtype can."""
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
    numbers = np.arange(int(np.prod(shape))).reshape(shape) + draw(st.integers(0, 100))
    return (numbers % 127).astype(jnp.dtype(draw(st.sampled_from(DTYPES))))


def draw_data(rows: int) -> st.SearchStrategy[Any]:
    """Pytrees of arrays with equally many rows."""
    return st.recursive(
        st.one_of(draw_leaf(rows), st.none()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["x", "y", "label"]), inner, max_size=3),
            st.tuples(inner, inner),
        ),
        max_leaves=4,
    )


DATA = st.integers(0, 3).flatmap(lambda blocks: draw_data(8 * blocks))


def assert_same(found: Any, data: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(data)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(data), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), other)


def gather(tree: Any) -> Any:
    """Puts arrays together from the pieces that lie on the devices, not as JAX shows them."""

    def join(array: jax.Array) -> np.ndarray[Any, Any]:
        whole = np.empty(array.shape, array.dtype)
        for shard in array.addressable_shards:
            whole[shard.index] = np.asarray(shard.data)
        return whole

    return jax.tree.map(join, tree)


@pytest.mark.parametrize(("sizes", "names", "axes"), MESHES)
@given(data=DATA)
@settings(max_examples=40)
def test_a_batch_that_was_split_and_gathered_is_the_batch(sizes: Any, names: Any, axes: Any, data: Any) -> None:
    mesh: Mesh = create_mesh(sizes, names)
    sharded = DevicePlacement().shard_batch_dim(data, mesh, mesh_axis=axes)
    assert_same(gather(sharded), data)
    assert_same(gather(distribute_batch(data, NamedSharding(mesh, PartitionSpec(axes)))), data)
    assert_same(sharded, data)


@given(data=DATA)
@settings(max_examples=40)
def test_what_was_replicated_is_whole_on_every_device(data: Any) -> None:
    copies = DevicePlacement().replicate_across_devices(data)
    for device in range(8):
        assert_same(jax.tree.map(lambda array, place=device: array.addressable_shards[place].data, copies), data)


@given(data=DATA)
@settings(max_examples=40)
def test_one_device_and_a_thread_in_between_change_nothing(data: Any) -> None:
    assert_same(place_on_device(data, jax.devices()[5]), data)
    (found,) = prefetch_to_device([data])
    assert_same(found, data)


@given(rows=st.integers(0, 20), count=st.integers(1, 8), data=st.data())
@settings(max_examples=60)
def test_rows_that_were_dealt_out_and_put_together_are_the_rows(rows: int, count: int, data: st.DataObject) -> None:
    batch = {"x": data.draw(draw_leaf(rows)), "more": data.draw(draw_data(rows))}
    shards = JAXDeviceManager().distribute_data(batch, jax.devices()[:count])
    assert [next(iter(shard["x"].devices())) for shard in shards] == jax.devices()[:count]
    sizes = [len(shard["x"]) for shard in shards]
    assert len(shards) == count
    assert max(sizes) - min(sizes) <= 1
    assert_same(jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *shards), batch)

"""Where leaves go, what they are there, and how a leaf that cannot go is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from meshwright.placement import DevicePlacement, distribute_batch, place_on_device
from tests.unit.placement.buffers import TARGETS, make_aligned, shares_memory


def make_mesh(kind: AxisType = AxisType.Auto, other: AxisType | None = None) -> Mesh:
    types = (kind, other or kind)
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"), axis_types=types)


def build_batch() -> dict[str, Any]:
    return {
        "x": np.arange(24.0, dtype=np.float32).reshape(8, 3), "nested": [jnp.arange(8), None, (np.int32(3), 2.5, True)],
        "keys": jax.random.split(jax.random.key(0), 8), "small": np.ones(8, jnp.bfloat16),
    }  # fmt: skip


def read(tree: Any) -> Any:
    """Everything of a pytree as NumPy arrays, keys as their data."""
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, read(got), read(expected))


# ---- one device ----


@pytest.mark.parametrize("place", [place_on_device, DevicePlacement().place_on_device])
def test_a_whole_pytree_comes_onto_one_device_with_its_structure_values_and_dtypes(place: Any) -> None:
    device = jax.devices()[3]
    placed = place(build_batch(), device)
    assert_same(placed, build_batch())
    assert all(leaf.devices() == {device} and leaf.committed for leaf in jax.tree.leaves(placed))
    dtypes = [jax.typeof(leaf).dtype for leaf in jax.tree.leaves(build_batch())]
    assert [leaf.dtype for leaf in jax.tree.leaves(placed)] == dtypes


@pytest.mark.parametrize("name", [5, "cpu"])
def test_jaxs_default_device_is_the_default_where_it_is_in_force(name: int | str) -> None:
    chosen = jax.devices()[name] if isinstance(name, int) else name
    expected = jax.devices()[name] if isinstance(name, int) else jax.devices()[0]
    with jax.default_device(chosen):
        assert DevicePlacement().default_device == expected
        assert place_on_device(1).devices() == {expected}


# ---- one sharding, or a tree of them ----


def test_a_tree_of_shardings_may_be_as_deep_as_the_data_or_stand_for_whole_parts_of_it() -> None:
    split, whole = (NamedSharding(make_mesh(), spec) for spec in (P("data"), P()))
    one = SingleDeviceSharding(jax.devices()[6])
    data = {"x": np.arange(8), "state": [np.arange(4), {"step": 3}, None]}
    prefix = distribute_batch(data, {"x": split, "state": whole})
    full = distribute_batch(data, {"x": split, "state": [one, {"step": whole}, None]})
    assert_same(prefix, data)
    assert_same(full, data)
    assert [leaf.sharding for leaf in jax.tree.leaves(prefix)] == [whole, whole, split]
    assert [leaf.sharding for leaf in jax.tree.leaves(full)] == [one, whole, split]


@pytest.mark.parametrize(("shardings", "kind", "words"), [
    (None, ValueError, "give one for all, or a tree like the data"),
    ({"x": "data"}, TypeError, "'data' is a str; data is placed on a jax.Device, or under a jax.sharding.Sharding"),
    (P("data"), TypeError, 'such as NamedSharding(mesh, PartitionSpec("data"))'),
    ({"y": SingleDeviceSharding(jax.devices()[0])}, ValueError, "PyTreeDef({'y': *}), the data has PyTreeDef({'x'"),
    ([SingleDeviceSharding(jax.devices()[0])], ValueError, "give one for all, or a tree like the data"),
])  # fmt: skip
def test_what_is_no_sharding_for_the_data_is_refused(shardings: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        distribute_batch({"x": np.arange(8)}, shardings)
    assert words in str(caught.value)


# ---- refusals ----

NO_ARRAYS: list[tuple[Any, str]] = [
    ({"x": [1, "a"]}, "leaf ['x'][1] is a str, which is no array"), ({"x": b"bytes"}, "leaf ['x'] is a bytes"),
    ([np.array(["a"])], "leaf [0] is a ndarray, which is no array: Dtype <U1"),
    ([np.array([None])], "leaf [0] is a ndarray"), ((np.datetime64("2020"),), "leaf [0] is a datetime64"),
    (object(), "leaf (the data itself) is a object"),
    ([np.ma.masked_array([1.0, 2.0], [True, False])], "leaf [0] is a MaskedArray"),
    ([np.zeros(2, ">f4")], "leaf [0] is a ndarray, which is no array: Dtype >f4"),
    ({"x": jax.ShapeDtypeStruct((8,), np.float32)}, "leaf ['x'] is a ShapeDtypeStruct, which is no array: it has a"),
]  # fmt: skip
WAYS = {"a object": "or convert it with numpy.asarray", "Masked": "use its .filled(0)", ">f4": 'its .astype("f4")'}


@pytest.mark.parametrize(("data", "words"), NO_ARRAYS, ids=[words for _, words in NO_ARRAYS])
def test_a_leaf_that_is_no_array_is_a_type_error_that_names_its_path(data: Any, words: str) -> None:
    placement, mesh = DevicePlacement(), make_mesh()
    for call in (
        lambda: placement.place_on_device(data),
        lambda: placement.distribute_batch(data, NamedSharding(mesh, P())),
        lambda: placement.replicate_across_devices(data),
        lambda: placement.shard_batch_dim(data, mesh),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert words in str(caught.value)
        assert str(caught.value).endswith(next((way for word, way in WAYS.items() if word in words), "leave it out"))


def test_a_number_that_no_dtype_holds_is_refused_by_its_path() -> None:
    with pytest.raises(ValueError, match=r"leaf \['step'\] is 1099511627776: .*`with jax.enable_x64"):
        place_on_device({"step": 2**40})
    with jax.enable_x64():
        assert place_on_device({"step": 2**40})["step"] == 2**40


@pytest.mark.parametrize(("shape", "spec", "words"), [
    ((6, 2), P("data"), "['x'] has the shape (6, 2); its dimension 0 is 6 and is split over mesh axis"),
    ((6, 2), P("data"), "over mesh axis 'data' of size 4, which does not divide it"), ((6, 2), P("data"), "use 4 or 8"),
    ((3, 2), P("data"), "use 4"),
    ((8, 5), P("data", "model"), "its dimension 1 is 5 and is split over mesh axis 'model' of size 2"),
    ((12,), P(("data", "model")), "over mesh axes 'data', 'model' of size 8, which does not divide it: use 8 or"),
    ((), P("data"), "P('data',) names dimension 0, which it has not: give this leaf PartitionSpec()"),
    ((8,), P(None, "data"), "names dimension 1, which it has not"),
    ((8, 8), P("data", P.UNCONSTRAINED), "leaf ['x']: "), ((8,), P(P.UNCONSTRAINED), "dimension 0 to a compiler"),
])  # fmt: skip
def test_a_shape_that_does_not_fit_is_refused_by_its_path(shape: tuple[int, ...], spec: P, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        distribute_batch({"x": np.zeros(shape)}, NamedSharding(make_mesh(), spec))
    assert words in str(caught.value).replace("PartitionSpec('", "P('")


def test_nothing_is_moved_before_all_leaves_were_checked() -> None:
    shape = (8, 4093)
    with pytest.raises(TypeError, match="leaf \\[1\\]"):
        place_on_device([np.zeros(shape), "no array"])
    assert [array for array in jax.live_arrays() if array.shape == shape] == []


@pytest.mark.parametrize(
    ("device", "words"), [("cpu", "a jax.Device"), (SingleDeviceSharding(jax.devices()[0]), "use distribute_batch")]
)
def test_what_is_no_device_is_refused(device: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        place_on_device(1, device)


def test_a_spec_that_says_which_axes_are_unreduced_is_read() -> None:
    sharding = NamedSharding(make_mesh(AxisType.Explicit), P("data", unreduced={"model"}))
    with pytest.raises(ValueError, match="has the shape \\(6,\\); its dimension 0 is 6"):
        distribute_batch(np.zeros(6, np.float32), sharding)


# ---- every device ----


@pytest.mark.parametrize(("indices", "words"), [((), "devices is empty"), ((1, 2, 1), "more than once")])
def test_devices_that_cannot_each_hold_a_copy_are_refused(indices: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DevicePlacement().replicate_across_devices(1, [jax.devices()[index] for index in indices])


# ---- a dimension over a mesh axis ----

SPLITS: list[tuple[tuple[int, ...], int, Any, P]] = [
    ((8, 3), 0, "data", P("data")), ((3, 8), 1, "data", P(None, "data")), ((3, 8), -1, "data", P(None, "data")),
    ((8, 3), -2, "data", P("data")), ((16, 3), 0, ("data", "model"), P(("data", "model"))),
    ((16, 3), 0, ["model", "data"], P(("model", "data"))), ((8, 3), 0, ("model",), P("model")),
    ((0, 3), 0, "data", P("data")), ((), 0, "data", P()), ((8,), 1, "data", P()), ((8,), -2, "data", P()),
]  # fmt: skip


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize(("shape", "batch_axis", "mesh_axis", "spec"), SPLITS)
def test_a_leaf_is_split_else_replicated(kind: AxisType, shape: Any, batch_axis: int, mesh_axis: Any, spec: P) -> None:
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    mesh = make_mesh(kind)
    [placed] = DevicePlacement().shard_batch_dim([value], mesh, batch_axis, mesh_axis)
    assert_same(placed, value)
    assert placed.sharding == NamedSharding(mesh, spec)


@pytest.mark.parametrize("types", [(AxisType.Manual, AxisType.Manual), (AxisType.Manual, AxisType.Explicit)], ids=str)
def test_manual_axes_become_auto_and_shard_map_takes_the_arrays(types: tuple[AxisType, AxisType]) -> None:
    mesh = make_mesh(*types)
    expected = tuple(AxisType.Auto if kind is AxisType.Manual else kind for kind in types)
    for placed in (
        DevicePlacement().shard_batch_dim(np.arange(8.0), mesh),
        distribute_batch(np.arange(8.0), NamedSharding(mesh, P("data"))),
    ):
        assert placed.sharding.mesh.axis_types == expected
        assert placed.sharding.mesh.devices.tolist() == mesh.devices.tolist()
        assert placed.sharding.spec == P("data")
    auto = make_mesh()
    double = jax.shard_map(lambda x: 2 * x, mesh=auto, in_specs=P("data"), out_specs=P("data"))
    placed = DevicePlacement().shard_batch_dim(np.arange(8.0), make_mesh(AxisType.Manual))
    assert_same(double(placed), 2 * np.arange(8.0))


@given(rows=st.integers(0, 40), columns=st.integers(1, 3), axes=st.sampled_from(["data", "model", ("data", "model")]))
def test_a_size_is_split_evenly_or_refused_with_the_nearest_sizes_that_work(rows: int, columns: int, axes: Any) -> None:
    mesh = make_mesh()
    count = int(np.prod([mesh.shape[axis] for axis in ([axes] if isinstance(axes, str) else axes)]))
    value = np.zeros((rows, columns))
    if rows % count == 0:
        placed = DevicePlacement().shard_batch_dim(value, mesh, mesh_axis=axes)
        assert {shard.data.shape for shard in placed.addressable_shards} == {(rows // count, columns)}
        return
    with pytest.raises(ValueError) as caught:
        DevicePlacement().shard_batch_dim({"a": [value]}, mesh, mesh_axis=axes)
    message = str(caught.value)
    assert f"leaf ['a'][0] has the shape {value.shape}" in message
    assert f"of size {count}" in message
    works = [int(word) for word in message.rpartition("use ")[2].split(" or ")]
    assert works == [near for near in (rows // count * count, (rows // count + 1) * count) if near]


@pytest.mark.parametrize("axes", ["batch", ("data", "x"), (), ("data", "data")])
def test_axes_that_the_mesh_does_not_have_or_that_are_named_twice_are_refused(axes: Any) -> None:
    with pytest.raises(ValueError, match="names one axis or more of the mesh, each once") as caught:
        DevicePlacement().shard_batch_dim(np.zeros((8, 2)), make_mesh(), mesh_axis=axes)
    with pytest.raises(TypeError, match="did you mean mesh_axis='dp'"):
        DevicePlacement().shard_batch_dim(np.zeros((8, 2)), make_mesh(), "dp")  # type: ignore[arg-type]
    assert all(words in str(caught.value) for words in (f"mesh_axis is {axes!r}", "'data' (4), 'model' (2)"))


# ---- memory ----


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_jax_would_share_an_aligned_arrays_memory_and_we_do_not(target: Any) -> None:
    """The first assertion is the reason for the copy: when it fails, JAX has changed and the copy can go."""
    host = make_aligned(1024)
    assert shares_memory(jax.device_put(host, target), host)
    place: Any = place_on_device if isinstance(target, jax.Device) else distribute_batch
    placed = place({"x": host}, target)["x"]
    assert not shares_memory(placed, host)
    host[:] = 7
    assert np.all(np.asarray(placed) == 0)


@jax.tree_util.register_dataclass
@dataclass
class Checked:
    """A user's node that accepts arrays only."""

    x: Any

    def __post_init__(self) -> None:
        assert hasattr(self.x, "ndim"), f"x is a {type(self.x).__name__}"


def test_nodes_of_a_users_own_class_hold_arrays_all_the_way() -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    data = {"a": Checked(np.ones((8, 2))), "b": [np.ones(8), None]}
    for placed in (
        DevicePlacement().shard_batch_dim(data, mesh),
        distribute_batch(data, {"a": sharding, "b": sharding}),
        distribute_batch(data, sharding),
    ):
        assert placed["a"].x.sharding.is_equivalent_to(sharding, 2)
        assert placed["b"][0].sharding.is_equivalent_to(sharding, 1)

"""`DeviceMeshManager` on 8 CPU devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from meshwright.mesh import DeviceMeshManager

SHAPES = [
    ({"data": 2, "model": 1}, (("data", 2), ("model", 1))), ([("data", 2), ("model", 4)], (("data", 2), ("model", 4))),
    ([["model", 4], ["data", 2]], (("model", 4), ("data", 2))), ({"data": -1}, (("data", 8),)),
    ({"data": 2, "model": -1}, (("data", 2), ("model", 4))), ({"data": np.int64(4)}, (("data", 4),)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_a_shape_takes_the_first_devices_in_device_order(shape: Any, axes: tuple[tuple[str, int], ...]) -> None:
    mesh = DeviceMeshManager().create_device_mesh(shape)
    assert tuple(mesh.shape.items()) == axes
    assert list(mesh.devices.flat) == jax.devices()[: mesh.devices.size]


def test_the_rest_is_of_all_devices_also_of_given_ones() -> None:
    manager = DeviceMeshManager(jax.devices()[2:6])
    assert manager.num_devices == 4
    assert manager.devices == jax.devices()[2:6]
    assert list(manager.create_device_mesh({"data": -1}).devices.flat) == jax.devices()[2:6]
    other = manager.create_device_mesh({"data": -1}, devices=jax.devices()[:2])
    assert list(other.devices.flat) == jax.devices()[:2]


def test_named_meshes_have_their_shapes() -> None:
    manager = DeviceMeshManager()
    assert dict(manager.create_data_parallel_mesh().shape) == {"data": 8}
    assert dict(manager.create_data_parallel_mesh(4, "batch").shape) == {"batch": 4}
    assert dict(manager.create_model_parallel_mesh().shape) == {"model": 8}
    assert dict(manager.create_model_parallel_mesh(2, axis_name="tp").shape) == {"tp": 2}
    hybrid = manager.create_hybrid_mesh(2, 4)
    assert tuple(hybrid.shape.items()) == (("data", 2), ("model", 4))
    assert dict(manager.create_hybrid_mesh().shape) == {"data": 1, "model": 1}
    assert dict(manager.create_hybrid_mesh(-1, 2, "dp", "tp").shape) == {"dp": 4, "tp": 2}
    assert manager.get_mesh_info(hybrid) == {"total_devices": 8, "axes": {"data": 2, "model": 4}}


@pytest.mark.parametrize(("shape", "error", "words"), [
    ({"data": 16}, ValueError, "Not enough devices: mesh data:16 needs 16, there are 8.*use data:8"),
    ({"data": 16, "model": -1}, ValueError, "Not enough devices: .* needs at least 16"),
    ({"data": 3, "model": -1}, ValueError, "make 3, which does not divide 8"),
    ([("data", 2), ("data", 4)], ValueError, "stands 2 times"), ({"data": 0}, ValueError, "has size 0"),
    ({"data": -3}, ValueError, "has size -3"), ({"data": -1, "model": -1}, ValueError, "at most one axis"),
    ({}, ValueError, "0 axes"), ([], ValueError, "0 axes"), ({"": 2}, ValueError, "a name is a word"),
    ({"data": 2.0}, TypeError, "a whole number for each axis; use"), ("data:1", TypeError, "mesh_shape is 'data:1'"),
])  # fmt: skip
def test_wrong_shapes_are_refused(shape: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        DeviceMeshManager().create_device_mesh(shape)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: DeviceMeshManager().create_data_parallel_mesh(9), "Not enough devices"),
    (lambda: DeviceMeshManager().create_model_parallel_mesh(0), "num_devices is 0"),
    (lambda: DeviceMeshManager().create_hybrid_mesh(4, 4), "Not enough devices"),
    (lambda: DeviceMeshManager([]), "devices is empty"),
    (lambda: DeviceMeshManager(jax.devices()[:1] * 2), "more than once"),
])  # fmt: skip
def test_wrong_counts_and_devices_are_refused(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()

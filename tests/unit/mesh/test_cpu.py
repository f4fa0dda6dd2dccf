"""Work on the CPU, and everything as before afterwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from meshwright._mesh.granules import NUM_SLICES
from meshwright.mesh import cpu_context, create_cpu_mesh, create_mesh, force_cpu


def test_a_cpu_mesh_is_of_this_process_and_heeds_no_number_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NUM_SLICES, "3")
    mesh = create_cpu_mesh((2, -1), ("a", "b"))
    assert dict(mesh.shape) == {"a": 2, "b": 4}
    assert list(mesh.devices.flat) == jax.local_devices(backend="cpu")
    assert create_cpu_mesh((2, -1), ("a", "b")) is mesh
    assert dict(create_cpu_mesh().shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    with pytest.raises(ValueError, match="needs 16"):
        create_cpu_mesh((16,), ("a",))


def test_inside_force_cpu_arrays_are_made_on_its_device_and_the_default_comes_back() -> None:
    other = jax.devices()[3]
    with jax.default_device(other):
        with force_cpu() as device:
            assert device == jax.local_devices(backend="cpu")[0]
            assert jnp.zeros(2).devices() == {device}
        assert jnp.zeros(2).devices() == {other}
        with pytest.raises(RuntimeError, match="mine"), force_cpu():
            raise RuntimeError("mine")
        assert jnp.zeros(2).devices() == {other}
    assert jnp.zeros(2).devices() == {jax.devices()[0]}


def test_inside_cpu_context_mesh_and_device_are_in_force_and_go_with_it() -> None:
    before = create_mesh((4, 2), ("x", "y"))
    with jax.set_mesh(before):
        with cpu_context() as mesh:
            assert mesh is create_cpu_mesh()
            assert jax.sharding.get_mesh() == mesh
            assert jax.config.jax_default_device == jax.local_devices(backend="cpu")[0]
            sharded = jax.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, PartitionSpec("fsdp")))(jnp.arange(16))
            assert len(sharded.addressable_shards) == 8
            assert sharded.addressable_shards[0].data.shape == (2,)
        assert jax.sharding.get_mesh() == before
        with pytest.raises(KeyError), cpu_context():
            raise KeyError
        assert jax.sharding.get_mesh() == before
    assert jax.config.jax_default_device is None

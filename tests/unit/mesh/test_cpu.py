"""Work on the CPU, and everything as before afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright._mesh_order import NUM_SLICES
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


@contextmanager
def use_seed() -> Iterator[Mesh]:
    """eFormer's way, as trainers that are ported have it."""
    mesh = create_cpu_mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with force_cpu(), mesh:
            yield mesh


@pytest.mark.parametrize("context", [use_seed, cpu_context])
def test_inside_cpu_context_only_what_has_a_sharding_lies_on_several_devices(context: Any) -> None:
    first = {jax.local_devices(backend="cpu")[0]}
    rows = PartitionSpec("fsdp")
    with context() as mesh:
        assert mesh is create_cpu_mesh()
        ones = jnp.ones((16, 16))
        assert ones.devices() == first
        assert jax.jit(jnp.matmul)(ones, ones).devices() == first
        assert jax.jit(lambda x: x @ x)(np.ones((16, 16), np.float32)).devices() == first
        assert jax.random.normal(jax.random.key(0), (16,)).devices() == first
        constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, rows))(jnp.arange(16))
        mapped = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=rows, out_specs=rows)(jnp.arange(16))
        placed = jax.device_put(np.arange(1, 17), NamedSharding(mesh, rows))
        for array in (constrained, mapped, placed):
            assert [shard.data.shape for shard in array.addressable_shards] == [(2,)] * 8
            assert array.tolist() == list(range(1, 17))


@pytest.mark.parametrize("raised", [None, KeyError])
def test_what_was_in_force_before_cpu_context_is_so_again_after_it(raised: type[Exception] | None) -> None:
    before, device = create_mesh((4, 2), ("x", "y")), jax.devices()[3]

    def find_force() -> tuple[Any, ...]:
        constrained = jax.lax.with_sharding_constraint(jnp.arange(16), PartitionSpec("x"))
        return (
            jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh(), jax.config.jax_default_device,
            constrained.sharding, jnp.ones(2).devices(),
        )  # fmt: skip

    with jax.default_device(device), jax.set_mesh(before):
        there = find_force()
        with pytest.raises(raised) if raised else nullcontext(), cpu_context():
            assert jnp.ones(2).devices() == {jax.local_devices(backend="cpu")[0]}
            with cpu_context():
                assert jnp.ones(2).devices() == {jax.local_devices(backend="cpu")[0]}
            if raised:
                raise raised
        assert find_force() == there
    with cpu_context():
        pass
    assert jax.config.jax_default_device is None
    assert jax.sharding.get_mesh().empty
    with pytest.raises(Exception, match="mesh"):
        jax.lax.with_sharding_constraint(jnp.arange(16), PartitionSpec("fsdp"))

"""The CPU devices of this process: a mesh of them, and contexts in which work goes there.

Rule: what was in force before a context is in force again after it, also after an exception. Only devices of this
process are used, so that nothing waits for other hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
from jax.sharding import Mesh

from meshwright._jax_devices import Device
from meshwright._mesh.create import DEFAULT_NAMED_SHARDING_STG, DEFAULT_SHARDING_STG, MeshRecipe, find_mesh
from meshwright._mesh.granules import Layout
from meshwright._mesh.shapes import build_spec, read_axis_types


def create_cpu_mesh(
    axis_dims: Sequence[int] = DEFAULT_SHARDING_STG, axis_names: Sequence[str] = DEFAULT_NAMED_SHARDING_STG
) -> Mesh:
    """Returns a mesh of this process's CPU devices, whatever accelerators there are.

    Raises:
        RuntimeError: JAX has no CPU backend, as with JAX_PLATFORMS=cuda.
        TypeError, ValueError: as `create_mesh`.
    """
    spec = build_spec(axis_dims, axis_names)
    return find_mesh(MeshRecipe(spec, read_axis_types(None, spec.names), Layout(), False, tuple(list_cpu_devices())))


def list_cpu_devices() -> list[Device]:
    """Returns this process's CPU devices.

    Raises:
        RuntimeError: JAX has no CPU backend in this process.
    """
    try:
        return list(jax.local_devices(backend="cpu"))
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(
            f"the CPU was asked for; JAX has no CPU backend ({str(error) or 'it could not start'}); JAX_PLATFORMS must "
            f"name it; "
            f"use JAX_PLATFORMS=cuda,cpu, or leave the variable unset"
        ) from error


@contextmanager
def force_cpu() -> Iterator[Device]:
    """Yields this process's first CPU device, which is JAX's default device inside.

    Raises:
        RuntimeError: JAX has no CPU backend in this process.
    """
    device = list_cpu_devices()[0]
    with jax.default_device(device):
        yield device


@contextmanager
def cpu_context() -> Iterator[Mesh]:
    """Yields a mesh of this process's CPU devices; inside, it is JAX's mesh and its CPU the default device.

    Raises:
        RuntimeError: JAX has no CPU backend in this process.
    """
    mesh = create_cpu_mesh()
    with force_cpu(), jax.set_mesh(mesh):
        yield mesh

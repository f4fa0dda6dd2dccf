"""Device meshes for a running job: built here from JAX's devices, or from the agent's plan.

This is the whole public face; the parts live in `meshwright._mesh`. Imports jax, so it is imported by name only.
"""

from __future__ import annotations

from meshwright._mesh.cpu import cpu_context, create_cpu_mesh, force_cpu
from meshwright._mesh.create import (
    DEFAULT_NAMED_SHARDING_STG,
    DEFAULT_SHARDING_STG,
    create_mesh,
    parse_mesh_from_string,
)
from meshwright._mesh.manager import DeviceMeshManager
from meshwright._mesh.planned import build_mesh, mesh_fingerprint
from meshwright._mesh.shapes import calculate_host_mesh_shape

__all__ = [
    "DEFAULT_NAMED_SHARDING_STG",
    "DEFAULT_SHARDING_STG",
    "DeviceMeshManager",
    "build_mesh",
    "calculate_host_mesh_shape",
    "cpu_context",
    "create_cpu_mesh",
    "create_mesh",
    "force_cpu",
    "mesh_fingerprint",
    "parse_mesh_from_string",
]

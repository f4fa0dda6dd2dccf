"""The child process: makes a mesh of a slice that is not here, compiles one all-reduce over one axis, reads the text.

Run as `python -m tests.compiler.job` in `SLICE_ENVIRONMENT`. Opens no device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.mesh import create_mesh
from tests.compiler.cases import Case
from tests.compiler.children import Answer, Job, Order, serve_jobs
from tests.compiler.collective import parse_collective
from tests.compiler.hops import measure_hops

ROWS: Final = 8192
COLUMNS: Final = 1024
"""16 MiB of bfloat16 a device: the compiler chooses the same from 4 MiB (v4, v5p, v5e) to 512 MiB, the most tried."""


def compile_job(job: Job) -> Answer:
    """Returns what the compiler does for the job."""
    try:
        mesh = build_mesh(job.case, job.order)
    except Exception as error:
        return Answer(failure=f"no order: {type(error).__name__}")
    found = parse_collective(compile_all_reduce(mesh, mesh.axis_names[job.axis]))
    coords = np.array([device.coords for device in mesh.devices.flat]).reshape(*mesh.devices.shape, 3)
    hops = measure_hops(coords, job.axis, mesh.devices.flat[0].device_kind)
    return Answer(found.strategy, found.colors, found.phases, hops)


@lru_cache(maxsize=4)
def build_mesh(case: Case, order: Order) -> Mesh:
    """Returns the case's mesh in our order or in JAX's."""
    devices = describe_devices(case)
    if order == "ours":
        return create_mesh(case.sizes, case.names, devices=devices)
    return Mesh(mesh_utils.create_device_mesh(case.sizes, devices, allow_split_physical_axes=True), case.names)


def describe_devices(case: Case) -> list[Any]:
    """Returns the devices of the slice, as the compiler describes them."""
    described = topologies.get_topology_desc(platform="tpu", topology_name=case.topology, **case.options)
    devices: list[Any] = described.devices
    return devices


def compile_all_reduce(mesh: Mesh, axis: str) -> str:
    """Returns the compiled program that sums an array over one axis of a mesh."""
    others = tuple(name for name in mesh.axis_names if name != axis)
    program = jax.shard_map(
        lambda part: jax.lax.psum(part, axis),
        mesh=mesh,
        in_specs=PartitionSpec(mesh.axis_names),
        out_specs=PartitionSpec(others or None),
    )
    whole = jax.ShapeDtypeStruct(
        (mesh.size * ROWS, COLUMNS), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    )
    return jax.jit(program).lower(whole).compile().as_text() or ""


if __name__ == "__main__":
    serve_jobs(compile_job)

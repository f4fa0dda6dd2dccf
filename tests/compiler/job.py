"""The child process: makes a mesh of a slice that is not here, compiles one all-reduce over each axis, reads the text.

Run as `python -m tests.compiler.job TOPOLOGY ORDER SIZE…` in `SLICE_ENVIRONMENT`; its last line is the answers as JSON.
Opens no device.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.mesh import create_mesh
from meshwright.topology.torus import find_wraps
from tests.compiler.cases import Answer, Case
from tests.compiler.collective import parse_collective

ROWS: Final = 8192
COLUMNS: Final = 1024
"""16 MiB of bfloat16 a device: the compiler chooses the same from 4 MiB (v4, v5p, v5e) to 512 MiB, the most tried."""


def answer_case(case: Case, order: str) -> list[Answer]:
    """Returns what the compiler does along each axis of a case."""
    try:
        mesh = build_mesh(case, order)
    except Exception as error:
        return [Answer(failure=f"no order: {type(error).__name__}")] * len(case.axes)
    return [compile_axis(mesh, axis) for axis in case.axes]


def compile_axis(mesh: Mesh, axis: int) -> Answer:
    """Returns what the compiler does along one axis; an exception is an answer."""
    try:
        found = parse_collective(compile_all_reduce(mesh, mesh.axis_names[axis]))
    except Exception as error:
        return Answer(failure=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}")
    return Answer(found.strategy, found.colors, found.phases, measure_hops(mesh, axis))


def build_mesh(case: Case, order: str) -> Mesh:
    """Returns the case's mesh in our order or in JAX's."""
    described = topologies.get_topology_desc(platform="tpu", topology_name=case.topology, **case.options)
    devices: list[Any] = described.devices
    if order == "ours":
        return create_mesh(case.sizes, case.names, devices=devices)
    return Mesh(mesh_utils.create_device_mesh(case.sizes, devices, allow_split_physical_axes=True), case.names)


def compile_all_reduce(mesh: Mesh, axis: str) -> str:
    """Returns the compiled program that sums an array over one axis of a mesh."""
    others = tuple(name for name in mesh.axis_names if name != axis)
    every = PartitionSpec(mesh.axis_names)
    program = jax.shard_map(
        lambda part: jax.lax.psum(part, axis), mesh=mesh, in_specs=every, out_specs=PartitionSpec(others or None)
    )
    whole = jax.ShapeDtypeStruct((mesh.size * ROWS, COLUMNS), jnp.bfloat16, sharding=NamedSharding(mesh, every))
    return jax.jit(program).lower(whole).compile().as_text() or ""


def measure_hops(mesh: Mesh, axis: int) -> int:
    """Returns the longest step between neighbors along an axis, found by walking over the whole mesh.

    The cores of a chip are 0 hops apart, and the way from the last back to the first is not counted.
    """
    coords = np.array([device.coords for device in mesh.devices.flat]).reshape(*mesh.devices.shape, 3)
    shape = coords.reshape(-1, 3).max(axis=0) + 1
    steps = np.abs(np.diff(coords, axis=axis))
    wraps = find_wraps(mesh.devices.flat[0].device_kind, shape.tolist())
    return int(np.where(wraps, np.minimum(steps, shape - steps), steps).sum(axis=-1).max(initial=0))


if __name__ == "__main__":
    topology, order, *sizes = sys.argv[1:]
    print("\n" + json.dumps([asdict(each) for each in answer_case(Case(topology, tuple(map(int, sizes))), order)]))

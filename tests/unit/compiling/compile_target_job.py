"""A child that opens compile targets and compiles small programs for them, with XLA's real compilers.

Run as `python compile_target_job.py`, in the environment of a compiler child, with one case a line as JSON on stdin; it
prints one line of JSON for each. {"target", "places"} makes a mesh and compiles an all-reduce over it; "capacity" asks
what a device has to give; "large" compiles what is too large.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from meshwright.compiling.devices import OpenTarget, build_mesh, open_target
from meshwright.compiling.report import parse_out_of_memory
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileMesh, CompileTarget


def answer(case: dict[str, Any]) -> dict[str, Any]:
    try:
        opened = open_target(CompileTarget.model_validate(case["target"]))
        kind, counts = opened.devices[0][0].device_kind, list(map(len, opened.devices))
        told = {"kind": kind, "clock_hz": opened.clock_hz, "counts": counts}
        if case.get("capacity"):
            return {**told, "capacity": ask_capacity(opened.devices[0][0])}
        if case.get("large"):
            return {**told, **compile_large(opened)}
        return {**told, **compile_mesh(opened, case)}
    except NotCompiledError as error:
        return {"not_compiled": str(error)}


def ask_capacity(device: Any) -> int | None:
    """Returns the bytes that the compiler has for a program that cannot fit: a petabyte."""
    whole = jax.ShapeDtypeStruct((2**50,), jnp.int8, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda array: array + 1).lower(whole).compile()
    except jax.errors.JaxRuntimeError as error:
        found = parse_out_of_memory(str(error))
        return found and found.available_bytes
    return None


def compile_mesh(opened: OpenTarget, case: dict[str, Any]) -> dict[str, Any]:
    places = case.get("places") or [(g, p) for g, members in enumerate(opened.devices) for p in range(len(members))]
    mesh = build_mesh(opened, CompileMesh(shape={"a": len(places)}, axis_types={}, places=tuple(places)))
    compiled = compile_all_reduce(mesh, opened)
    memory = compiled.memory_analysis()
    return {
        "devices": [tell(device) for device in mesh.devices.flat],
        "peak": memory.peak_memory_in_bytes,
        "all_reduces": compiled.as_text().count("all-reduce"),
    }


def tell(device: Any) -> list[int]:
    coords = getattr(device, "coords", None) or [0, 0, device.id]
    return [getattr(device, "slice_index", None) or 0, *coords, getattr(device, "core_on_chip", None) or 0]


def compile_all_reduce(mesh: Mesh, opened: OpenTarget) -> Any:
    every = PartitionSpec(mesh.axis_names)
    program = jax.shard_map(
        lambda part: jax.lax.psum(part @ part.T, mesh.axis_names), mesh=mesh, in_specs=every, out_specs=PartitionSpec()
    )
    whole = jax.ShapeDtypeStruct((mesh.size * 256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, every))
    return jax.jit(program).lower(whole).compile(compiler_options=opened.compiler_options or None)


def compile_large(opened: OpenTarget) -> dict[str, Any]:
    one = SingleDeviceSharding(opened.devices[0][0])
    parts = [jax.ShapeDtypeStruct((6 * 2**30,), jnp.int8, sharding=one)] * 4
    try:
        jax.jit(lambda *arrays: [array[:2] + 1 for array in arrays]).lower(*parts).compile()
    except jax.errors.JaxRuntimeError as error:
        found = parse_out_of_memory(str(error))
        figures = (found.needed_bytes, found.available_bytes) if found else (None, None)
        return dict(zip(("message", "needed", "available"), (str(error), *figures), strict=True))
    return {"message": None}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)

"""One process of a job that uses the library as a trainer does: steps come in as JSON, answers go out as JSON.

Run as `python library_job.py RANK COUNT PORT STEPS`. A step is {"do": a name in STEPS, …: its arguments}; each
process answers each step, with {"error": text, "type": name} where the library refuses. Devices are named by
their rank, the place in `jax.devices()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from one_rank import answer_and_leave, join

from meshwright.devices import JAXDeviceManager
from meshwright.mesh import (
    DeviceMeshManager,
    build_mesh,
    calculate_host_mesh_shape,
    cpu_context,
    create_mesh,
    force_cpu,
    mesh_fingerprint,
)
from meshwright.parallelism import build_device_mesh, data_parallel_coords, process_batch_shard
from meshwright.placement import DevicePlacement, distribute_batch, prefetch_to_device

Answer = dict[str, Any]


def name_mesh(mesh: Mesh) -> Answer:
    ranks = jax.devices()
    return {"shape": dict(mesh.shape), "ranks": [ranks.index(device) for device in mesh.devices.flat]}


def make_device_mesh(block: dict[str, Any], world_size: int | None = None) -> Answer:
    """The mesh of a block, this process's lines through it, and its part of a batch over dp."""
    mesh, lines = build_device_mesh(block, "cpu", world_size=world_size)
    if mesh is None:
        return {"mesh": None, "lines": lines}
    return {
        "mesh": name_mesh(mesh),
        "lines": {name: name_mesh(line) for name, line in lines.items()},
        "types": sorted({kind.name for each in (mesh, *lines.values()) for kind in each.axis_types}),
        "shard": process_batch_shard(mesh, [name for name in mesh.axis_names if name == "dp"]),
    }


def find_coords(conf: dict[str, Any], **given: int) -> Answer:
    return {"coords": data_parallel_coords(conf, **given)}


def feed(shape: list[int], names: list[str], axes: list[str], rows: int, order: list[int] | None = None) -> Answer:
    """Loads this process's part of a batch on a mesh of devices in some order, and looks at what all have."""
    ranks = jax.devices()
    chosen = [ranks[rank] for rank in order] if order else ranks
    grid = np.array(chosen, dtype=object).reshape(shape)
    mesh = Mesh(grid, tuple(names), axis_types=(AxisType.Auto,) * len(names))
    index, count = process_batch_shard(mesh, axes)
    return {"shard": (index, count), "jax": ask_jax(mesh, axes), **load(mesh, axes, rows, index, count)}


def load(mesh: Mesh, axes: list[str], rows: int, index: int, count: int) -> Answer:
    """The global batch that comes of each process's rows, whole and multiplied in the job, in this process's hands."""
    batch = build_batch(rows)
    own = batch[index * rows // count : (index + 1) * rows // count]
    sharding = NamedSharding(mesh, PartitionSpec(tuple(axes)))
    spread = jax.make_array_from_process_local_data(sharding, own)
    weights = np.arange(1, rows + 1, dtype=np.float32)
    everywhere = NamedSharding(mesh, PartitionSpec())
    whole, weighed = jax.jit(lambda x: (x, weights @ x), out_shardings=everywhere)(spread)
    return {
        "global": list(spread.shape),
        "rows": [int(row[0]) // batch.shape[1] for row in read(whole)],
        "right": bool(np.array_equal(read(whole), batch) and np.array_equal(read(weighed), weights @ batch)),
        **place(batch, own, spread, axes),
    }


def place(batch: np.ndarray[Any, Any], own: np.ndarray[Any, Any], expected: jax.Array, axes: list[str]) -> Answer:
    """The batch as placement makes it, of its parts and as a whole, and what it says of parts passed as the whole."""
    sharding, placement = expected.sharding, DevicePlacement()
    assert isinstance(sharding, NamedSharding)
    both = {"x": sharding, "step": sharding.update(spec=PartitionSpec())}
    placed = [
        *prefetch_to_device([own, own], sharding, process_local=True),
        distribute_batch({"x": own, "step": 7}, both, process_local=True)["x"],
    ]
    if axes:
        placed += [placement.shard_batch_dim([own, 7], sharding.mesh, mesh_axis=axes, process_local=True)[0]]
    whole = [distribute_batch(batch, sharding), *prefetch_to_device([batch] * 2, sharding)]
    try:
        next(prefetch_to_device([own], sharding))
        said = placement.shard_batch_dim(own, sharding.mesh, mesh_axis=axes) if axes else None
        refused = None if said is None else said.shape == own.shape
    except ValueError as error:
        refused = str(error)
    return {
        "parts": [is_same(array, expected) for array in placed],
        "whole": [is_same(array, jax.device_put(batch, sharding)) for array in whole],
        "refused": refused,
    }


def is_same(array: jax.Array, expected: jax.Array) -> bool:
    pairs = zip(array.addressable_shards, expected.addressable_shards, strict=True)
    return (
        array.sharding == expected.sharding
        and array.shape == expected.shape
        and all(one.index == other.index and np.array_equal(one.data, other.data) for one, other in pairs)
    )


def build_batch(rows: int) -> np.ndarray[Any, Any]:
    """Integers small enough that float32 sums are exact in any order; row r begins with 3 · r."""
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)


def read(replicated: jax.Array) -> np.ndarray[Any, Any]:
    return np.asarray(replicated.addressable_data(0))


def ask_jax(mesh: Mesh, axes: list[str]) -> Any:
    """JAX's own grouping of processes, which is private."""
    from jax._src.sharding_impls import get_process_index_and_count

    return get_process_index_and_count(NamedSharding(mesh, PartitionSpec(tuple(axes))), 0, 2)


def multiply_as_planned(plan: str, rows: int) -> Answer:
    """A product on the agent's mesh, whose left side each process loads by its batch shard alone."""
    mesh = build_mesh(plan)
    outer, inner = mesh.axis_names
    index, count = process_batch_shard(mesh, outer)
    left, right = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16) % 13, build_batch(16) % 11
    own = left[index * rows // count : (index + 1) * rows // count]
    a = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec(outer)), own)
    b = jax.make_array_from_callback(right.shape, NamedSharding(mesh, PartitionSpec(inner)), lambda place: right[place])
    product = jax.jit(lambda x, y: x @ y, out_shardings=NamedSharding(mesh, PartitionSpec()))(a, b)
    return {
        "fingerprint": mesh_fingerprint(mesh),
        "order": name_mesh(mesh)["ranks"],
        "ids": [device.id for device in mesh.devices.flat],
        "shard": (index, count),
        "right": bool(np.array_equal(read(product), left @ right)),
    }


def create(sizes: list[int], names: list[str], subset: list[int] | None = None, **more: Any) -> Answer:
    """A mesh over the processes of the job, twice, and a sum along each of its axes that every process checks."""
    ranks = jax.devices()
    devices = [ranks[rank] for rank in subset] if subset else None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mesh = create_mesh(sizes, names, devices=devices, **more)
    assert create_mesh(tuple(sizes), tuple(names), devices=devices, **more) is mesh
    numbers = np.arange(mesh.devices.size, dtype=np.float32).reshape(mesh.devices.shape)
    spread = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    array = jax.make_array_from_callback(numbers.shape, spread, lambda place: numbers[place])
    whole = NamedSharding(mesh, PartitionSpec())
    sums = [jax.jit(lambda x, axis=axis: x.sum(axis), out_shardings=whole)(array) for axis in range(numbers.ndim)]
    right = [bool(np.array_equal(read(found), numbers.sum(axis))) for axis, found in enumerate(sums)]
    return {**name_mesh(mesh), "right": right, "warnings": [str(warning.message) for warning in told]}


def manage(shape: dict[str, int]) -> Answer:
    return name_mesh(DeviceMeshManager().create_device_mesh(shape))


def build(plan: str) -> Answer:
    return name_mesh(build_mesh(plan))


def part_of_host(sizes: list[int]) -> Answer:
    return {"part": calculate_host_mesh_shape(sizes)}


def compute_on_cpu() -> Answer:
    """What falls back to the CPU stays in its process: the mesh has this process's devices only."""
    with cpu_context() as mesh, force_cpu() as device:
        total = float(jax.numpy.arange(8.0).sum())
        return {**name_mesh(mesh), "first": jax.devices().index(device), "total": total}


def place_inside() -> Answer:
    """JAX arrays of this process, on one device or over Explicit axes, placed under the mesh of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    here = Mesh(np.array(jax.local_devices()), ("x",), axis_types=(AxisType.Explicit,))
    split, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    whole, keys, rank = build_batch(16), jax.random.split(jax.random.key(0), 16), jax.process_index()
    rows = slice(8 * rank, 8 * rank + 8)
    one, own = jax.device_put(whole), jax.device_put(whole[rows])
    spread = [jax.device_put(each, NamedSharding(here, PartitionSpec("x"))) for each in (whole, own, keys)]
    expected, placement = jax.device_put(whole, split), DevicePlacement()
    with jax.set_mesh(mesh):
        placed = [distribute_batch(each, split) for each in (one, spread[0])]
        placed += [distribute_batch(each, split, process_local=True) for each in (own, spread[1])]
        placed += [*prefetch_to_device([one, spread[0]], split), placement.replicate_across_devices(one)]
        placed_keys = [distribute_batch(each, split) for each in (keys, spread[2])]
        dealt = [JAXDeviceManager().distribute_data(each) for each in (one, spread[0])]
        rates = [distribute_batch(each, everywhere) for each in (0.5, np.float32(0.5))]
        rates += [placement.replicate_across_devices(0.5)]
    data = [[jax.random.key_data(part.data) for part in each.addressable_shards] for each in placed_keys]
    return {
        "right": [is_same(each, expected) for each in placed[:-1]],
        "whole": bool(np.array_equal(read(placed[-1]), whole)),
        "keys": [bool(np.array_equal(np.concatenate(each), jax.random.key_data(keys[rows]))) for each in data],
        "dealt": [bool(np.array_equal(np.concatenate(each), whole)) for each in dealt],
        "weak": [bool(each.weak_type) for each in rates],
    }


STEPS: dict[str, Callable[..., Answer]] = {
    "create": create, "manage": manage, "build": build, "part_of_host": part_of_host, "on_cpu": compute_on_cpu,
    "device_mesh": make_device_mesh, "coords": find_coords, "feed": feed, "planned": multiply_as_planned,
    "inside": place_inside,
}  # fmt: skip


def run_step(step: dict[str, Any]) -> Answer:
    arguments = {name: value for name, value in step.items() if name != "do"}
    try:
        return STEPS[step["do"]](**arguments)
    except (ValueError, RuntimeError) as error:
        return {"error": str(error), "type": type(error).__name__}


def main() -> None:
    _, steps, out = join()
    answers = [run_step(step) for step in steps]
    seen = [[device.process_index, device.id] for device in jax.devices()]
    answer_and_leave({"seen": seen, "answers": answers}, out)


if __name__ == "__main__":
    main()

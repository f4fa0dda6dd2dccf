"""The parallelism block of a trainer's config: reads it, builds its mesh, and assigns parts of the data to ranks.

Rule: a rank is a device, and its number is its place in (process, id) order: mesh and sampler use the same rank, and
where each process has one device, the rank is the process. Ranks fill the mesh row-major over dp, tp, domain. So no
planner reorders devices here; `meshwright.mesh` does. Independent of models, data and samplers. This module imports jax
and is imported by name only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshwright._jax_devices import list_devices
from meshwright._parallelism import (
    BLOCK,
    cover_processes,
    find_block,
    name_processes,
    parse_block,
    parse_integer,
    shard_processes,
    show,
)

__all__ = [
    "build_device_mesh",
    "data_parallel_coords",
    "dp_world_size",
    "parse_parallelism_conf",
    "process_batch_shard",
]


# ---- the block and its ranks ----


def parse_parallelism_conf(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `{"data": str, "tensor": int, "domain": int}` from `conf["trainer"]["parallelism"]`.

    `data` is "fsdp2", "ddp" or "none" (the default); the degrees are ≥ 1 (default 1). A degree may be written as
    text ("2"). A float is refused, 2.0 too: it comes from a division whose next result is 2.5. True and False
    are refused, as is a key that is there with no value.

    Args:
        conf: the trainer's config, any mapping of mappings; other keys beside the block are ignored.

    Raises:
        ValueError: the block is missing, has an unknown key or a value that cannot be used; names
            `trainer.parallelism` and the key.
        TypeError: `conf` is not a mapping.
    """
    return parse_block(find_block(conf))


def dp_world_size(parallelism_conf: Mapping[str, Any], world_size: int) -> int:
    """Returns how many data-parallel replicas there are: `world_size / (tensor · domain)`.

    Args:
        parallelism_conf: the block, as `parse_parallelism_conf` returns it; a missing key counts as 1.
        world_size: how many ranks (devices) there are.

    Raises:
        ValueError: `world_size` is not divisible by the two degrees, or is below 1, or the block is wrong.
        TypeError: `world_size` is not an integer, or the block is not a mapping.
    """
    block = parse_block(parallelism_conf)
    count, each = parse_integer("world_size", world_size, 1), block["tensor"] * block["domain"]
    replicas, rest = divmod(count, each)
    if not rest:
        return int(replicas)
    fitting = " or ".join(str(fit * each) for fit in (replicas, replicas + 1) if fit)
    raise ValueError(
        f"world_size {count} is not divisible by tensor {block['tensor']} · domain {block['domain']} = {each} "
        f"({BLOCK}); a data-parallel replica is {each} whole ranks; use {fitting} ranks, or "
        f"degrees whose product divides {count}, such as {math.gcd(each, count)}"
    )


def data_parallel_coords(
    conf: Mapping[str, Any], *, rank: int | None = None, world_size: int | None = None
) -> tuple[int, int]:
    """Returns (dp_rank, dp_size): the part of the data that this rank reads, and the number of parts.

    Ranks that differ only in their tensor or domain coordinate get the same part. Pass it to a sampler in place of rank
    and world size.

    Args:
        conf: the trainer's config, as `parse_parallelism_conf` reads it.
        rank: a device's number, 0 … world_size - 1.
        world_size: the number of ranks. Without these two arguments, they come from JAX's distributed system, or are
            (0, 1) where it is not initialized: call `jax.distributed.initialize()` first.

    Raises:
        ValueError: the config is wrong, `world_size` is not divisible by tensor · domain, `rank` is not one of
            its ranks, or only one of the two is given.
        TypeError: `conf` is not a mapping, or `rank` or `world_size` is not an integer.
        RuntimeError: the two are not given, and a process has several devices: such a process holds several ranks, and
            its number is not a rank. Use `process_batch_shard` for whole processes.
    """
    block = parse_parallelism_conf(conf)
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank is {rank} and world_size is {world_size}; both are given or neither: "
            f"data_parallel_coords(conf, rank=0, world_size=8), or data_parallel_coords(conf)"
        )
    if rank is None or world_size is None:
        if not jax.distributed.is_initialized():
            return 0, 1
        rank, world_size = _find_rank()
    count = parse_integer("world_size", world_size, 1)
    replicas = dp_world_size(block, count)
    return _check_rank(rank, count) // (count // replicas), replicas


def _find_rank() -> tuple[int, int]:
    counts = Counter(device.process_index for device in jax.devices())
    crowded = next((process for process in sorted(counts) if counts[process] > 1), None)
    if crowded is None:
        return jax.process_index(), jax.process_count()
    raise RuntimeError(
        f"the rank of this process was asked for; process {crowded} has {counts[crowded]} devices, which are as "
        f"many ranks; a process has a rank of its own only where each has one device; use process_batch_shard(mesh, "
        f'"dp"), which answers for the whole process, or give rank and world_size of a device'
    )


def _check_rank(rank: int, world_size: int) -> int:
    place = parse_integer("rank", rank, 0)
    if place >= world_size:
        raise ValueError(f"rank is {place} and world_size {world_size}; ranks are 0 to {world_size - 1}, such as 0")
    return place


# ---- the mesh ----


def build_device_mesh(
    parallelism_conf: Mapping[str, Any], device: str = "cuda", *, world_size: int | None = None
) -> tuple[Mesh | None, dict[str, Mesh]]:
    """Returns the mesh [dp, tp, domain] of a parallelism block, and by axis name this process's line through it.

    The mesh has only the axes in use: dp if `data` is not "none" or its size is above 1, tp and domain above 1. Where
    there is no axis, or a single one of size 1, the result is (None, {}). Axis types are Auto. A line is the 1-D mesh
    along an axis through this process's first device; the whole mesh where it has one axis.

    Args:
        parallelism_conf: the block, as `parse_parallelism_conf` returns it.
        device: the backend: "cuda" or "gpu", "tpu", "cpu".
        world_size: the number of devices to use, the first ones in rank order; None means all of the backend's.

    Raises:
        RuntimeError: the backend is not available. The message names the available ones.
        ValueError: the block is wrong, does not divide the devices (`not divisible`), `world_size` is more than the
            number of devices, or so small that this process has no device on a mesh of several. Such a process cannot
            take part, and fails here rather than at its first computation.
        TypeError: the block is not a mapping, or `world_size` is not an integer.
    """
    block = parse_block(parallelism_conf)
    ranks = _take_ranks(list_devices(device), device, world_size)
    axes = _list_axes(block, len(ranks))
    if math.prod(axes.values()) == 1:
        return None, {}
    mesh = _assemble(np.array(ranks, dtype=object).reshape(tuple(axes.values())), tuple(axes))
    if not mesh.local_devices:
        raise _refuse_outsider(mesh)
    return mesh, _build_lines(mesh)


def _take_ranks(devices: Sequence[Any], backend: str, world_size: int | None) -> list[Any]:
    """Returns the devices of the ranks, in their order.

    JAX lists devices in this order on all tested platforms (CPU, GPU, and TPU slices of several hosts, whose ids have
    gaps). JAX does not guarantee this order, and `data_parallel_coords` uses the process as the rank.
    """
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    count = len(ordered) if world_size is None else parse_integer("world_size", world_size, 1)
    if count > len(ordered):
        raise ValueError(
            f"world_size is {count}; {backend} has {len(ordered)} devices, and a rank is a device; "
            f"use world_size={len(ordered)}, or None for all"
        )
    return ordered[:count]


def _list_axes(block: Mapping[str, Any], world_size: int) -> dict[str, int]:
    replicas = dp_world_size(block, world_size)
    sizes = {"dp": replicas, "tp": block["tensor"], "domain": block["domain"]}
    return {name: size for name, size in sizes.items() if size > 1 or (name == "dp" and block["data"] != "none")}


def _assemble(grid: np.ndarray[Any, Any], names: tuple[str, ...]) -> Mesh:
    # JAX's own default axis type differs between its versions, so it is always given.
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def _build_lines(mesh: Mesh) -> dict[str, Mesh]:
    first = list(mesh.devices.flat).index(mesh.local_devices[0])
    place = np.unravel_index(first, mesh.devices.shape)
    return {name: _assemble(_cut(mesh.devices, place, axis), (name,)) for axis, name in enumerate(mesh.axis_names)}


def _cut(grid: np.ndarray[Any, Any], place: Sequence[Any], axis: int) -> np.ndarray[Any, Any]:
    line: np.ndarray[Any, Any] = grid[tuple(slice(None) if at == axis else where for at, where in enumerate(place))]
    return line


def _refuse_outsider(mesh: Mesh) -> ValueError:
    process = mesh.devices.flat[0].client.process_index()
    inside = name_processes({device.process_index for device in mesh.devices.flat})
    return ValueError(
        f"process {process} has none of the {mesh.devices.size} devices of the mesh, which belong to {inside}; "
        f"each process that uses a mesh must have a device on it; make the mesh of all of jax.devices(), or let only "
        f"{inside} use it"
    )


# ---- the part of a whole process ----


def process_batch_shard(mesh: Mesh | None, data_axes: str | Sequence[str]) -> tuple[int, int]:
    """Returns (shard_index, shard_count): the part of each batch that this process loads, and the number of parts.

    Of a global batch of B rows, sharded by `PartitionSpec(data_axes)`, load the rows from shard_index · B / shard_count
    on, B / shard_count of them, and pass them to `jax.make_array_from_process_local_data`. Processes whose devices
    cover the same data coordinates (they differ in a tensor coordinate, say) get the same index.

    The array is then the global batch, where the coordinates of each process are adjacent. Where they are not (a device
    order along a torus, an inner axis named before an outer one), each row is in it once, at another place: JAX places
    a process's rows over its coordinates in ascending order. All arrays of a batch with the same sharding are reordered
    in the same way.

    Args:
        mesh: the mesh that the batch is sharded over; None, as `build_device_mesh` returns without parallelism:
            (0, 1).
        data_axes: its axis, or axes (outermost first), that the batch dimension is split over; empty: (0, 1).

    Raises:
        ValueError: an axis is not in the mesh or given twice, this process has no device on the mesh, or the
            layout is uneven: processes cover different numbers of coordinates, or share only some of them.
        TypeError: `mesh` is not a mesh, or `data_axes` is neither a name nor a sequence of names.
    """
    if mesh is None:
        return 0, 1
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}; it is a jax.sharding.Mesh, as build_device_mesh returns")
    axes = _check_axes(mesh, data_axes)
    if not mesh.local_devices:
        raise _refuse_outsider(mesh)
    shards = shard_processes(cover_processes(mesh, axes), math.prod(mesh.shape[name] for name in axes))
    return shards[mesh.local_devices[0].process_index]


def _check_axes(mesh: Mesh, data_axes: str | Sequence[str]) -> tuple[str, ...]:
    there = ", ".join(map(repr, mesh.axis_names))
    if not isinstance(data_axes, str | Sequence):
        raise TypeError(
            f"data_axes is {show(data_axes)}; the mesh has {there}; data_axes is one of these or a sequence of them, "
            f"such as {mesh.axis_names[0]!r}"
        )
    axes = (data_axes,) if isinstance(data_axes, str) else tuple(data_axes)
    wrong = [name for name in axes if name not in mesh.axis_names or axes.count(name) > 1]
    if not wrong:
        return axes
    fault = "stands twice in data_axes" if wrong[0] in mesh.axis_names else "is no axis of the mesh"
    raise ValueError(
        f"data axis {show(wrong[0])} {fault}; the mesh has {there}; each data axis is one of these, given once, "
        f"such as {mesh.axis_names[0]!r}"
    )

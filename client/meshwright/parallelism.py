"""The parallelism block of a trainer's config: reads it, builds its mesh, and assigns parts of the data to ranks.

A rank is a device, and its number is its place in (process, id) order: mesh and sampler use the same rank, and where
each process has one device, the rank is the process. Ranks fill the mesh row-major over dp, tp, domain. So no planner
reorders devices here; `meshwright.mesh` does. Independent of models, data and samplers.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshwright._jax_devices import Device, list_devices

__all__ = [
    "build_device_mesh",
    "data_parallel_coords",
    "dp_world_size",
    "parse_parallelism_conf",
    "process_batch_shard",
]

_BLOCK: Final = "trainer.parallelism"
_EXAMPLE: Final = '{"data": "fsdp2", "tensor": 2, "domain": 1}'
_WHOLE: Final = f'{{"trainer": {{"parallelism": {_EXAMPLE}}}}}'
_DEFAULTS: Final[Mapping[str, Any]] = {"data": "none", "tensor": 1, "domain": 1}
_DATA: Final = ("fsdp2", "ddp", "none")
_MAX_NAMED: Final = 8
"""How many keys, processes or runs of numbers a message names at most."""


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
    """
    block: Any = conf
    for part, key in (("the config", "trainer"), ("its trainer", "parallelism"), ("parallelism", "")):
        if not isinstance(block, Mapping):
            raise ValueError(f"{_BLOCK} cannot be read: {part} is {_show(block)}; a mapping is needed, as in {_WHOLE}")
        if key and key not in block:
            keys = ", ".join(map(_show, list(block)[:_MAX_NAMED])) or "nothing"
            raise ValueError(f"{_BLOCK} is missing: {part} holds {keys}; the block must be there, such as {_WHOLE}")
        block = block[key] if key else block
    return _parse_block(block)


def _parse_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the block with each value checked and each missing key filled in."""
    unknown = [key for key in block if key not in _DEFAULTS]
    if "trainer" in unknown:
        raise ValueError(
            f"this is the whole config (it has the key 'trainer'), and the block {_BLOCK} was asked for; "
            f"give what parse_parallelism_conf(conf) returns, such as {_EXAMPLE}"
        )
    if unknown:
        named = ", ".join(f"{_show(key)}{_suggest(key, _DEFAULTS)}" for key in unknown[:_MAX_NAMED])
        raise ValueError(f"{_BLOCK} has the unknown key {named}; its keys are {', '.join(_DEFAULTS)}, as in {_EXAMPLE}")
    data, tensor, domain = ({**_DEFAULTS, **block}[key] for key in _DEFAULTS)
    if not (isinstance(data, str) and data in _DATA):
        raise ValueError(
            f"{_BLOCK}.data is {_show(data)}{_suggest(data, _DATA)}; it is one of {', '.join(_DATA)}, "
            f'or left out, which means none; write data: "fsdp2"'
        )
    return {"data": data, "tensor": _parse_degree("tensor", tensor), "domain": _parse_degree("domain", domain)}


def _parse_degree(key: str, value: Any) -> int:
    text = value.strip() if isinstance(value, str) else ""
    try:
        degree = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else operator.index(value)
    except TypeError:
        degree = 0
    if degree < 1 or isinstance(value, bool):
        raise ValueError(
            f"{_BLOCK}.{key} is {_show(value)}; it is an integer ≥ 1, or left out, which means 1 "
            f"(what tensor and domain leave of the ranks is data parallel); write {key}: 2"
        )
    return degree


def _suggest(value: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(value)[:80].lower(), known, n=3)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def _show(value: object) -> str:
    """Returns the repr of a value, cut to the length of a message."""
    return repr(value)[:80]


def dp_world_size(parallelism_conf: Mapping[str, Any], world_size: int) -> int:
    """Returns how many data-parallel replicas there are: `world_size / (tensor · domain)`.

    Args:
        parallelism_conf: the block, as `parse_parallelism_conf` returns it; a missing key counts as 1.
        world_size: how many ranks (devices) there are.

    Raises:
        ValueError: `world_size` is not divisible by the two degrees, or is below 1, or the block is wrong.
    """
    block = _parse_block(parallelism_conf)
    count, each = operator.index(world_size), int(block["tensor"] * block["domain"])
    if count < 1:
        raise ValueError(f"world_size is {count}; it is an integer ≥ 1, such as 1")
    replicas, rest = divmod(count, each)
    if not rest:
        return replicas
    fitting = " or ".join(str(fit * each) for fit in (replicas, replicas + 1) if fit)
    raise ValueError(
        f"world_size {count} is not divisible by tensor {block['tensor']} · domain {block['domain']} = {each} "
        f"({_BLOCK}); a data-parallel replica is {each} whole ranks; use {fitting} ranks, or "
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
    replicas = dp_world_size(block, world_size)
    if not 0 <= operator.index(rank) < world_size:
        raise ValueError(f"rank is {rank} and world_size {world_size}; ranks are 0 to {world_size - 1}, such as 0")
    return rank // (world_size // replicas), replicas


def _find_rank() -> tuple[int, int]:
    [(process, count)] = Counter(device.process_index for device in jax.devices()).most_common(1)
    if count == 1:
        return jax.process_index(), jax.process_count()
    raise RuntimeError(
        f"the rank of this process was asked for; process {process} has {count} devices, which are as many ranks; a "
        f'process has a rank of its own only where each has one device; use process_batch_shard(mesh, "dp"), which '
        f"answers for the whole process, or give rank and world_size of a device"
    )


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
    """
    block = _parse_block(parallelism_conf)
    ranks = _sort_ranks(list_devices(device))
    count = len(ranks) if world_size is None else operator.index(world_size)
    if count > len(ranks):
        raise ValueError(
            f"world_size is {count}; {device} has {len(ranks)} devices, and a rank is a device; "
            f"use world_size={len(ranks)}, or None for all"
        )
    sizes = {"dp": dp_world_size(block, count), "tp": block["tensor"], "domain": block["domain"]}
    axes = {name: size for name, size in sizes.items() if size > 1 or (name == "dp" and block["data"] != "none")}
    if math.prod(axes.values()) == 1:
        return None, {}
    mesh = _assemble(np.array(ranks[:count], dtype=object).reshape(tuple(axes.values())), tuple(axes))
    if not mesh.local_devices:
        raise _refuse_outsider(mesh)
    place = np.argwhere(mesh.devices == mesh.local_devices[0])[0]
    lines = {}
    for axis, name in enumerate(axes):
        lines[name] = _assemble(mesh.devices[*place[:axis], :, *place[axis + 1 :]], (name,))
    return mesh, lines


def _sort_ranks(devices: Sequence[Device]) -> list[Device]:
    """Returns the devices of the ranks, in their order.

    JAX lists devices in this order on all tested platforms (CPU, GPU, and TPU slices of several hosts, whose ids have
    gaps). JAX does not guarantee this order, and `data_parallel_coords` uses the process as the rank.
    """
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def _assemble(grid: np.ndarray[Any, Any], names: tuple[str, ...]) -> Mesh:
    # JAX's own default axis type differs between its versions, so it is always given.
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


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
    """
    if mesh is None:
        return 0, 1
    axes = (data_axes,) if isinstance(data_axes, str) else tuple(data_axes)
    for name in axes:
        if name not in mesh.axis_names or axes.count(name) > 1:
            fault = "stands twice in data_axes" if name in mesh.axis_names else "is no axis of the mesh"
            raise ValueError(
                f"data axis {_show(name)} {fault}; the mesh has {', '.join(map(repr, mesh.axis_names))}; each data "
                f"axis is one of these, given once, such as {mesh.axis_names[0]!r}"
            )
    if not mesh.local_devices:
        raise _refuse_outsider(mesh)
    shards = shard_processes(cover_processes(mesh, axes), math.prod(mesh.shape[name] for name in axes))
    return shards[mesh.local_devices[0].process_index]


def cover_processes(mesh: Mesh, axes: Sequence[str]) -> dict[int, set[int]]:
    """Returns by process the coordinates of its devices along a mesh's axes, flattened, the first axis outermost."""
    columns = [mesh.axis_names.index(name) for name in axes]
    sizes = [mesh.devices.shape[column] for column in columns]
    coverage: dict[int, set[int]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        coordinate = np.ravel_multi_index([place[column] for column in columns], sizes) if columns else 0
        coverage.setdefault(device.process_index, set()).add(int(coordinate))
    return coverage


def shard_processes(coverage: Mapping[int, Collection[int]], count: int) -> dict[int, tuple[int, int]]:
    """Returns each process's (shard_index, shard_count); shards are in the order of their first coordinates.

    JAX makes the same groups (`get_process_index_and_count`, private) and the same demands, but numbers the groups in
    the order of a hash table, so that its index does not identify the rows.

    Args:
        coverage: by process, the data coordinates that its devices cover.
        count: how many coordinates there are: 0 … count - 1.

    Raises:
        ValueError: the different coverages do not divide the coordinates into equal parts.
    """
    covered = {process: tuple(sorted(set(coordinates))) for process, coordinates in coverage.items()}
    shards = sorted(set(covered.values()))
    if len({len(shard) for shard in shards}) != 1 or sorted(chain(*shards)) != list(range(count)):
        named = [f"process {process} covers {_name_runs(covered[process])}" for process in sorted(covered)]
        more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        raise ValueError(
            f"one batch shard a process was asked for; the layout of the {count} data coordinates is uneven: "
            f"{'; '.join(named[:_MAX_NAMED])}{more}; all processes must cover equally many, and any two the same ones "
            f"or none in common; use as many devices of each process, and keep those of a process together, as "
            f"create_mesh does over equal processes"
        )
    indices = {shard: index for index, shard in enumerate(shards)}
    return {process: (indices[shard], len(shards)) for process, shard in covered.items()}


def name_processes(processes: Collection[int]) -> str:
    """Returns them as a message writes them: "process 3", "processes 0-3, 8"."""
    return f"process{'es' if len(processes) > 1 else ''} {_name_runs(sorted(processes))}"


def _name_runs(numbers: Sequence[int]) -> str:
    there = set(numbers)
    starts = [at for at in numbers if at - 1 not in there]
    ends = [at for at in numbers if at + 1 not in there]
    runs = [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return ", ".join(runs[:_MAX_NAMED] + ["…"] * (len(runs) > _MAX_NAMED)) or "nothing"

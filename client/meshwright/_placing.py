"""Pytrees of arrays placed leaf by leaf: which place each leaf gets, whether it can be there, and how it comes there.

Rule: every leaf is checked before the first is moved, and one that cannot be placed is named by its path. A value that
goes to host memory is copied, and one that spans processes is put together from each process's own part. Knows no
default device and no batch.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

ALIGNMENT_BYTES: Final = 64


def place(data: Any, target: Any) -> Any:
    """Returns the data on a device, under a sharding, or each part under its own.

    Raises:
        TypeError: a leaf is no array; its path is named.
        ValueError: the trees do not match, or a leaf does not fit where it is to go; its path is named.
    """
    leaves = jax.tree.leaves(data)
    return _place_leaves(data, _spread(target, data, len(leaves)))


def place_each(data: Any, choose: Callable[[Any], Any]) -> Any:
    """Returns the data with each leaf where `choose` says of it. Nodes of the caller's own classes hold leaves only.

    Raises:
        TypeError, ValueError: as `place`.
    """
    return _place_leaves(data, [_free_manual_axes(choose(leaf)) for leaf in jax.tree.leaves(data)])


def _place_leaves(data: Any, places: list[Any]) -> Any:
    leaves, structure = jax.tree.flatten(data)
    for number, (leaf, there) in enumerate(zip(leaves, places, strict=True)):
        _check_leaf(data, number, leaf, there)
    own = [_copy_for_host(leaf, there) for leaf, there in zip(leaves, places, strict=True)]
    return jax.tree.unflatten(structure, _put(own, places))


def place_and_wait(data: Any, target: Any) -> Any:
    """Returns the same as `place` when the caller's memory is no longer read: a transfer outlasts its device_put.

    Waiting costs no more than a copy on the host would, and an error of the transfer comes out at its place.
    """
    return jax.block_until_ready(place(data, target))


def check_target(name: str, target: Any) -> Any:
    """Returns what was given if it is a device, a sharding or a pytree of them.

    Raises:
        TypeError: it is not; the path is named.
    """
    for path, leaf in [((), None)] if target is None else jax.tree.leaves_with_path(target):
        if not isinstance(leaf, jax.Device | Sharding):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is {leaf!r}, a {type(leaf).__name__}; it is a "
                f'jax.sharding.Sharding, such as NamedSharding(mesh, PartitionSpec("data")), or a pytree of them'
            )
        if isinstance(leaf, NamedSharding) and not isinstance(leaf.mesh, Mesh):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is over an abstract mesh, which has no devices; a place is a "
                f"sharding over a mesh of devices, as create_mesh returns"
            )
    return target


# ---- the place of each leaf ----


def _spread(target: Any, data: Any, count: int) -> list[Any]:
    if isinstance(target, jax.Device | Sharding):
        return [_free_manual_axes(target)] * count
    structure: Any = jax.tree.structure(target)
    try:
        parts = structure.flatten_up_to(data)
    except ValueError as error:
        raise ValueError(
            f"the shardings have the structure {structure}, the data has {jax.tree.structure(data)}; "
            f"each sharding stands for a leaf or a subtree of the data: give one for all, or a tree like the data"
        ) from error
    pairs = zip(jax.tree.leaves(target), parts, strict=True)
    return [place for there, part in pairs for place in [_free_manual_axes(there)] * len(jax.tree.leaves(part))]


def _free_manual_axes(there: Any) -> Any:
    """Returns the sharding with Auto axes for Manual ones: device_put fails on those (an AssertionError in JAX)."""
    if not isinstance(there, NamedSharding) or AxisType.Manual not in there.mesh.axis_types:
        return there
    types = tuple(AxisType.Auto if kind is AxisType.Manual else kind for kind in there.mesh.axis_types)
    mesh = Mesh(there.mesh.devices, there.mesh.axis_names, axis_types=types)
    return NamedSharding(mesh, there.spec, memory_kind=there.memory_kind)


# ---- what cannot be placed ----


def _check_leaf(data: Any, number: int, leaf: Any, there: Any) -> None:
    try:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError("it has a shape and no values")
        shape = jax.typeof(leaf).shape
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"leaf {_name(data, number)} is a {type(leaf).__name__}, which is no array: {error}; leaves are NumPy "
            f"arrays of numbers, JAX arrays or Python numbers: leave it out, or convert it with numpy.asarray"
        ) from None
    except OverflowError as error:
        raise ValueError(
            f"leaf {_name(data, number)} is {leaf}: {error}; use a smaller number, or `with jax.enable_x64()`"
        ) from None
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted():
        raise ValueError(
            f"leaf {_name(data, number)} has been deleted or donated; its values are gone: place it before a step that "
            f"donates it, or use what the step returned"
        )
    if isinstance(there, NamedSharding):
        _check_fit(partial(_name, data, number), shape, there)


def _check_fit(name: Callable[[], str], shape: tuple[int, ...], sharding: NamedSharding) -> None:
    for dimension, axes in enumerate(_list_axes(sharding.spec)):
        if dimension >= len(shape):
            raise ValueError(
                f"leaf {name()} has the shape {shape}; {sharding.spec} names dimension {dimension}, which it has "
                f"not: give this leaf PartitionSpec(), or a value of {dimension + 1} or more dimensions"
            )
        if not axes:
            continue
        size, count = shape[dimension], math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % count:
            near = " or ".join(str(works) for works in (size // count * count, -(-size // count) * count) if works)
            raise ValueError(
                f"leaf {name()} has the shape {shape}; its dimension {dimension} is {size} and is split over mesh "
                f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(repr, axes))} of size {count}, which does "
                f"not divide it: use {near}"
            )


def _list_axes(spec: PartitionSpec) -> list[tuple[Any, ...]]:
    whole = (None, PartitionSpec.UNCONSTRAINED)
    return [part if isinstance(part, tuple) else () if part in whole else (part,) for part in spec]


def _name(data: Any, number: int) -> str:
    path, _ = jax.tree.leaves_with_path(data)[number]
    return jax.tree_util.keystr(path) or "(the data itself)"


# ---- how a leaf comes there ----


def _put(leaves: list[Any], places: list[Any]) -> list[Any]:
    far = [_spans_processes(leaf, there) for leaf, there in zip(leaves, places, strict=True)]
    if not any(far):
        return list(jax.device_put(leaves, places))
    return [
        _put_own_part(leaf, there) if is_far else jax.device_put(leaf, there)
        for leaf, there, is_far in zip(leaves, places, far, strict=True)
    ]


def _copy_for_host(leaf: Any, there: Any) -> Any:
    """Returns a copy of a NumPy array that goes to host memory: JAX takes the memory of an aligned one as its own.

    The copy is aligned, so that JAX takes that: the array is copied once and not twice. Where JAX has to convert the
    dtype, it copies by itself.

    Source: seen on jax 0.10.2 and 0.12.0, also with may_alias=False; https://github.com/jax-ml/jax/issues/37830.
    """
    if not isinstance(leaf, np.ndarray) or not leaf.nbytes or not _is_host_memory(there):
        return leaf
    if jax.typeof(leaf).dtype != leaf.dtype:
        return leaf
    raw = np.empty(leaf.nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    copy = raw[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    np.copyto(copy, leaf)
    return copy


def _is_host_memory(there: Any) -> bool:
    if isinstance(there, jax.Device):
        return bool(there.platform == "cpu")
    device = next(iter(there.device_set))
    return device.platform == "cpu" or "host" in (there.memory_kind or "")


# ---- several processes ----


def _spans_processes(leaf: Any, there: Any) -> bool:
    """Whether each process has to put its own part. What is spread over processes already, JAX moves by itself."""
    if not isinstance(there, Sharding) or there.is_fully_addressable:
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _put_own_part(leaf: Any, sharding: Sharding) -> Any:
    """Returns the global array, with this process's parts put on its devices.

    `jax.device_put` would do so after a collective that compares the whole value, in which NaN differs from itself
    and which a thread must not start; and it refuses PRNG keys and arrays that lie on one device.
    """
    value = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, jax.typeof(leaf).dtype)
    parts = sharding.addressable_devices_indices_map(value.shape)
    shards = jax.device_put([value[index] for index in parts.values()], list(parts))
    return jax.make_array_from_single_device_arrays(value.shape, sharding, shards, dtype=value.dtype)


def compare_processes(data: Any, devices: Sequence[jax.Device]) -> None:
    """Refuses a value that differs between processes, where all of the job have some of the devices.

    A collective over the job, which every process must enter. Without all of them, or with unequal numbers of
    devices, JAX has none to offer, and nothing is compared.

    Raises:
        TypeError: a leaf is no array; its path is named.
        ValueError: the values differ.
    """
    if not _all_take_part(devices):
        return
    seen = multihost_utils.process_allgather(_digest(data))
    differing = [process for process, digest in enumerate(seen) if not np.array_equal(digest, seen[0])]
    if differing:
        raise ValueError(
            f"the processes of this job hold different values: {differing} not that of process 0; what is replicated "
            f"must be equal everywhere: make it from the same seed or file, or send process 0's with "
            f"jax.experimental.multihost_utils.broadcast_one_to_all"
        )


def _all_take_part(devices: Sequence[jax.Device]) -> bool:
    here = {device.process_index for device in devices}
    counts = Counter(device.process_index for device in jax.devices())
    return len(here) > 1 and here == set(counts) and len(set(counts.values())) == 1


def _digest(data: Any) -> Any:
    """Returns 4 numbers that tell pytrees apart by structure, shapes, dtypes and bytes; NaN equals itself."""
    digest = hashlib.blake2b(str(jax.tree.structure(data)).encode(), digest_size=16)
    for number, leaf in enumerate(jax.tree.leaves(data)):
        _check_leaf(data, number, leaf, None)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            continue  # one array of the whole job already
        is_key = jax.numpy.issubdtype(jax.typeof(leaf).dtype, jax.dtypes.prng_key)
        value = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{value.shape} {value.dtype}".encode() + value.tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint32)

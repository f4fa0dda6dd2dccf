"""Places arrays on devices: one device, a sharding, every device, a batch split over a mesh, batches in advance.

The result is the data's own pytree, with each leaf a `jax.Array` at its requested place. Every leaf is checked before
the first is moved, and an error names the path of a leaf that cannot be placed. On CPU no array shares memory with a
NumPy array of the caller, unlike with `jax.device_put`. Independent of models and plans: a mesh is an argument.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Final, SupportsIndex, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jax.tree_util import keystr

from meshwright._batch_comparison import Comparison, Leaf, compare_copies, list_processes, spans_processes
from meshwright._jax_devices import check_devices, describe_device, free_axes, open_array
from meshwright._prefetch import Prefetcher
from meshwright.parallelism import cover_processes, name_processes, shard_processes
from meshwright.planning.batch_size import BatchSizeRecommendation, recommend_batch_size, validate_batch_size
from meshwright.planning.hardware import HardwareType, detect_hardware
from meshwright.wire.devices import parse_platform

__all__ = [
    "BatchSizeRecommendation",
    "DevicePlacement",
    "HardwareType",
    "Prefetcher",
    "distribute_batch",
    "get_batch_size_recommendation",
    "place_on_device",
    "prefetch_to_device",
]

_REPLICA_AXIS: Final = "replica"

_calls: Final = Comparison()
"""Of the batches that this module's calls pass in this process."""


class DevicePlacement:
    """Places pytrees of arrays, and describes the hardware that they are placed on.

    Leaves may be NumPy arrays, JAX arrays (sharded ones and typed PRNG keys as well) and Python numbers; None is an
    empty subtree, as everywhere in JAX. Transfers are asynchronous, as with `jax.device_put`: before a NumPy array
    that went to an accelerator is overwritten, wait for its copy with `jax.block_until_ready`.

    Where a sharding spans processes, every process passes the same global batch, or with `process_local=True` the part
    that `process_batch_shard` gives it, and places its own part on its own devices; see `distribute_batch`. JAX moves
    an array that already spans processes, with a collective.

    Args:
        default_device: the `jax.Device` where `place_on_device` and `prefetch_to_device` place data by default. None
            means `jax.default_device` where that is in force, otherwise `jax.devices()[0]`; in a job of several
            processes the first device of this process, since a process cannot place data on devices of another.
    """

    def __init__(self, default_device: Any = None) -> None:
        self.default_device: Any = _find_default_device() if default_device is None else default_device

    @property
    def hardware_type(self) -> HardwareType:
        """The default device's row in the batch-size table; UNKNOWN for an accelerator that no table knows."""
        return detect_hardware(parse_platform(self.default_device.platform), self.default_device.device_kind)

    @property
    def num_devices(self) -> int:
        """How many devices the default device's backend has, those of other processes included."""
        return len(self._list_devices())

    def _list_devices(self) -> list[Any]:
        return list(self.default_device.client.devices())

    def place_on_device(self, data: Any, device: Any = None) -> Any:
        """Returns the data with every leaf on one device.

        Args:
            data: a pytree of arrays.
            device: a `jax.Device`; None means the default device.

        Raises:
            TypeError: a leaf is not an array (the message has its path), or `device` is not a device.
            ValueError: a leaf is a Python integer that its dtype cannot hold; NumPy's are narrowed as JAX does.
        """
        return place_on_device(data, self.default_device if device is None else device)

    def distribute_batch(self, data: Any, sharding: Any, *, process_local: bool = False) -> Any:
        """Returns the data under a sharding; see the function of the same name."""
        return distribute_batch(data, sharding, process_local=process_local)

    def replicate_across_devices(self, data: Any, devices: Sequence[Any] | None = None) -> Any:
        """Returns the data with every leaf whole on each device: one array replicated over a 1-D mesh of them.

        In a job of several processes each process that has some of the devices calls this, and the values are compared
        by digest, since different copies would not be detected otherwise.

        Args:
            data: a pytree of arrays.
            devices: `jax.Device`s; None means all devices of the default device's backend.

        Raises:
            TypeError: a leaf is not an array; the message has its path.
            ValueError: no device, a device twice, or devices of several backends; or the processes hold different
                values.
            RuntimeError: another process did not call this in time.
        """
        chosen = check_devices(self._list_devices() if devices is None else devices)
        for path, leaf in jax.tree.leaves_with_path(data):
            _read_shape(path, leaf)
        compare_copies(data, chosen)
        mesh = Mesh(np.array(chosen), (_REPLICA_AXIS,), axis_types=(AxisType.Auto,))
        return _place(data, NamedSharding(mesh, PartitionSpec()))

    def shard_batch_dim(
        self,
        data: Any,
        mesh: Mesh,
        batch_axis: SupportsIndex = 0,
        mesh_axis: str | Sequence[str] = "data",
        *,
        process_local: bool = False,
    ) -> Any:
        """Returns the data with one dimension of every leaf split over a mesh axis, and whole over the others.

        A leaf without this dimension, such as a scalar, is replicated over the mesh; every process passes it whole and
        equal. Manual axes of the mesh become Auto in the arrays' shardings, since JAX does not place arrays on Manual
        axes; give `jax.shard_map` an Auto mesh too, such as `x.sharding.mesh`.

        Args:
            data: a pytree of arrays.
            mesh: may span processes; each process then places the part of its own devices.
            batch_axis: the dimension; negative ones count from the end, as in NumPy.
            mesh_axis: an axis of the mesh, or several, of which the first is the outermost.
            process_local: as in the function `distribute_batch`.

        Raises:
            TypeError: a leaf is not an array; the message has its path. Or `batch_axis` is a string.
            ValueError: the mesh has no such axis, an axis is named twice, a leaf's size does not divide, or the batches
                of the processes do not match.
            RuntimeError: another process did not pass its batch in time.
        """
        if isinstance(batch_axis, str):
            raise TypeError(
                f"batch_axis is {batch_axis!r}; it is the number of a dimension; did you mean mesh_axis={batch_axis!r}?"
            )
        names = (mesh_axis,) if isinstance(mesh_axis, str) else tuple(mesh_axis)
        if not names or len(set(names)) < len(names) or not set(names) <= set(mesh.axis_names):
            present = ", ".join(f"{name!r} ({size})" for name, size in mesh.shape.items())
            raise ValueError(f"mesh_axis is {mesh_axis!r}; it names one axis or more of the mesh, each once: {present}")
        axis = operator.index(batch_axis)
        places = [NamedSharding(mesh, _build_spec(np.ndim(leaf), axis, names)) for leaf in jax.tree.leaves(data)]
        return _place_leaves(data, places, process_local, _calls)

    def prefetch_to_device(
        self,
        data_iterator: Iterable[Any],
        device: Any = None,
        buffer_size: SupportsIndex = 2,
        *,
        process_local: bool = False,
    ) -> Prefetcher:
        """Returns an iterator over the batches, placed ahead of time; see the function of the same name."""
        target = self.default_device if device is None else device
        return prefetch_to_device(data_iterator, target, buffer_size, process_local=process_local)

    def get_batch_size_recommendation(self, hardware_type: HardwareType | None = None) -> BatchSizeRecommendation:
        """Returns the batch sizes per device for a hardware type; None means that of the default device.

        Source: `meshwright.planning.batch_size`: the published table, or the chip table's roofline.
        """
        return get_batch_size_recommendation(self.hardware_type if hardware_type is None else hardware_type)

    def validate_batch_size(self, batch_size: SupportsIndex, warn_suboptimal: bool = True) -> tuple[bool, str]:
        """Returns whether a batch size per device is valid on this hardware, and a sentence that compares it with the
        table.

        Args:
            batch_size: tokens per device in one pass. A batch below the minimum is invalid.
            warn_suboptimal: report a valid batch below the critical size.
        """
        return validate_batch_size(self.hardware_type, operator.index(batch_size), warn_suboptimal)

    def get_device_info(self) -> dict[str, Any]:
        """Returns the reported facts of the devices of the default device's backend.

        The keys: `num_devices`; `hardware_type`, the enum's value; `platforms` and `device_kinds`, each once;
        `devices`, a dict each, with `id`, `platform`, `device_kind`, `process_index`, `memory_limit_bytes`,
        `memory_in_use_bytes` and other facts from JAX. An unreported value is None: CPUs and devices of other processes
        do not report memory.
        """
        devices = [describe_device(device) for device in self._list_devices()]
        for facts in devices:
            memory = facts.pop("memory_stats") or {}
            facts["memory_limit_bytes"] = memory.get("bytes_limit")
            facts["memory_in_use_bytes"] = memory.get("bytes_in_use")
        return {
            "num_devices": len(devices),
            "hardware_type": self.hardware_type.value,
            "platforms": list(dict.fromkeys(device["platform"] for device in devices)),
            "device_kinds": list(dict.fromkeys(device["device_kind"] for device in devices)),
            "devices": devices,
        }


def place_on_device(data: Any, device: Any = None) -> Any:
    """Returns the data with every leaf on one `jax.Device`; None means JAX's default device.

    For a device of another process JAX's rule applies: every process of the job calls this with the same data, and only
    the owner then has the values.

    Raises:
        TypeError: a leaf is not an array (the message has its path), or `device` is not a device.
        ValueError: a leaf is a Python integer that its dtype cannot hold; NumPy's are narrowed as JAX does.
    """
    chosen = _find_default_device() if device is None else device
    if isinstance(chosen, Sharding):
        raise TypeError(f"device is {device!r}, a sharding; place_on_device takes a jax.Device: use distribute_batch")
    return _place(data, chosen)


def distribute_batch(data: Any, sharding: Any, *, process_local: bool = False) -> Any:
    """Returns the data under one sharding, or each part of it under its own.

    Manual axes of a mesh become Auto, since JAX does not place arrays on Manual axes; give `jax.shard_map` an Auto
    mesh too, such as `x.sharding.mesh`.

    Where a sharding spans processes, the processes compare the first batch of a kind (structure, shapes, dtypes), by
    digests that JAX's coordination service exchanges: all of them pass such a batch, and no collective is used. Later
    batches of this kind are not compared. Where several threads beside the main thread pass batches of one kind, use a
    prefetcher for each instead: calls do not identify their thread in another process.

    Args:
        data: a pytree of arrays.
        sharding: a `jax.sharding.Sharding`, or a pytree of them that is a prefix of the data: each applies to a leaf or
            to a whole subtree.
        process_local: False: every process passes the same global batch. True: each process passes the part that
            `meshwright.parallelism.process_batch_shard` gives it, as for `jax.make_array_from_process_local_data`;
            processes with the same shard index pass the same rows, and unsplit leaves are the same in all. Where a
            sharding has devices of this process only, the leaf is whole either way.

    Raises:
        TypeError: a leaf is not an array (the message has its path), or a leaf of `sharding` is neither a sharding nor
            a `jax.Device`.
        ValueError: the pytrees do not match, or a leaf's shape does not fit its sharding (the message has its path), or
            the batches of the processes do not match.
        RuntimeError: another process did not pass its batch in time.
    """
    return _place(data, sharding, process_local, _calls)


def prefetch_to_device(
    data_iterator: Iterable[Any], device: Any = None, buffer_size: SupportsIndex = 2, *, process_local: bool = False
) -> Prefetcher:
    """Returns an iterator over the batches, each placed by a thread before the consumer requests it.

    The source's own work and the transfers run while the consumer computes; the order is kept, and an exception of the
    source is raised at its place. A source may overwrite a batch's NumPy arrays when the next one is requested (many
    data loaders fill one buffer): by then the batch has been copied, on CPU, or its transfer has ended.

    Where the sharding spans processes, the first batch of a kind is compared as by `distribute_batch`, separately for
    each prefetcher. All processes must create their prefetchers in the same order.

    Args:
        data_iterator: yields pytrees of arrays. It is used by one thread only, and closed with the iterator if it
            is a generator.
        device: a device, a sharding, or a pytree of shardings as for `distribute_batch`; None means JAX's default
            device.
        buffer_size: the number of batches that the source may be ahead of the consumer's last batch. 1 is enough to
            overlap; more evens out steps of unequal length. Device memory is needed for this number of further batches.
        process_local: as for `distribute_batch`.

    Raises:
        TypeError: `data_iterator` is not iterable, `device` is not a device or sharding, or `buffer_size` is not a
            whole number.
        ValueError: `buffer_size` is below 1.
    """
    target = _find_default_device() if device is None else device
    _check_target(target)
    comparison = Comparison(target)

    def place_and_wait(data: Any) -> Any:
        # When this returns, the caller's memory is no longer read: a transfer outlasts its device_put. Waiting costs no
        # more than a copy on the host would, and an error of the transfer comes out at its place.
        return jax.block_until_ready(_place(data, target, process_local, comparison))

    return Prefetcher(data_iterator, place_and_wait, buffer_size, comparison.stop)


def get_batch_size_recommendation(hardware_type: HardwareType | None = None) -> BatchSizeRecommendation:
    """Returns the batch sizes per device for a hardware type; None means that of JAX's default device.

    Raises:
        ValueError: it is not a `HardwareType`, nor the value of one.

    Source: `meshwright.planning.batch_size`: the published table, or the chip table's roofline.
    """
    own = DevicePlacement().hardware_type if hardware_type is None else HardwareType(hardware_type)
    return recommend_batch_size(own)


def _find_default_device() -> Any:
    chosen = cast(Any, jax.config).jax_default_device
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen


# ---- the place of each leaf ----


def _check_target(target: Any) -> None:
    """Raises TypeError unless the target is a device, a sharding or a pytree of shardings."""
    for leaf in jax.tree.leaves(target):
        if not isinstance(leaf, jax.Device | Sharding):
            raise TypeError(
                f"{leaf!r} is a {type(leaf).__name__}; data is placed on a jax.Device, or under a "
                f'jax.sharding.Sharding, such as NamedSharding(mesh, PartitionSpec("data"))'
            )


def _place(data: Any, target: Any, process_local: bool = False, comparison: Comparison | None = None) -> Any:
    """Returns the data on a device, under a sharding, or each part under its own.

    Args:
        data: a pytree of arrays.
        target: a device, a sharding, or a pytree of them that is a prefix of the data.
        process_local: where a sharding spans processes, a leaf is this process's part of the array, and not the whole.
        comparison: compares the batches of the processes; None where they have been compared.
    """
    _check_target(target)
    structure: Any = jax.tree.structure(target)
    try:
        parts = structure.flatten_up_to(data)
    except ValueError as error:
        raise ValueError(
            f"the shardings have the structure {structure}, the data has {jax.tree.structure(data)}; "
            f"each sharding stands for a leaf or a subtree of the data: give one for all, or a tree like the data"
        ) from error
    pairs = zip(jax.tree.leaves(target), parts, strict=True)
    places = [place for place, part in pairs for _ in jax.tree.leaves(part)]
    return _place_leaves(data, places, process_local, comparison)


def _place_leaves(data: Any, places: Sequence[Any], process_local: bool, comparison: Comparison | None) -> Any:
    paths, structure = jax.tree.flatten_with_path(data)
    places = [free_axes(place, AxisType.Manual) for place in places]  # JAX's device_put fails on those
    leaves = [_read_leaf(path, leaf, place, process_local) for (path, leaf), place in zip(paths, places, strict=True)]
    far = [leaf for leaf in leaves if leaf.is_far]
    if comparison and far:
        comparison.check(far, process_local)
    own = [_copy_for_host(leaf.value, leaf.place) for leaf in leaves]
    if not far:
        return jax.tree.unflatten(structure, jax.device_put(own, places))
    put = [
        _put_own_part(value, leaf.place, leaf.shape) if leaf.is_far else jax.device_put(value, leaf.place)
        for value, leaf in zip(own, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, put)


def _build_spec(rank: int, batch_axis: int, names: tuple[str, ...]) -> PartitionSpec:
    if not -rank <= batch_axis < rank:
        return PartitionSpec()
    return PartitionSpec(*[None] * (batch_axis % rank), names if len(names) > 1 else names[0])


# ---- whether a leaf fits its place ----


def _read_shape(path: Any, value: Any) -> tuple[int, ...]:
    name = f"leaf {keystr(path) or '(the data itself)'}"
    try:
        if isinstance(value, jax.ShapeDtypeStruct):
            raise TypeError("it has a shape and no values")
        shape: tuple[int, ...] = jax.typeof(value).shape
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} is a {type(value).__name__}, which is no array: {error}; leaves are NumPy arrays of numbers, JAX "
            f"arrays or Python numbers: {_suggest_array(value)}"
        ) from None
    except OverflowError as error:
        raise ValueError(f"{name} is {value}: {error}; use a smaller number, or `with jax.enable_x64()`") from None
    return shape


def _suggest_array(value: Any) -> str:
    if isinstance(value, np.ma.MaskedArray):
        return "use its .filled(0)"
    dtype = value.dtype if isinstance(value, np.ndarray | np.generic) else np.dtype(object)
    if dtype.kind in "iufc":  # of the other byte order, or of too many bytes
        return f'use its .astype("{dtype.kind}{min(dtype.itemsize, 16 if dtype.kind == "c" else 8)}")'
    has_no_numbers = isinstance(value, str | bytes | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    return "leave it out" if has_no_numbers else "leave it out, or convert it with numpy.asarray"


def _read_leaf(path: Any, value: Any, place: Any, process_local: bool) -> Leaf:
    """Returns the leaf with the shape of the array that it becomes: a larger one where it is one process's part."""
    shape, is_far = _read_shape(path, value), spans_processes(value, place)
    is_part = is_far and process_local
    name = f"leaf {keystr(path) or '(the data itself)'}" if is_far or isinstance(place, NamedSharding) else ""
    if is_part and not (isinstance(place, NamedSharding) and place.addressable_devices):
        raise ValueError(
            f"{name} has no part in this process: its sharding is a {type(place).__name__} over devices of "
            f"{name_processes(list_processes(place))}; with process_local=True each process passes the part of its "
            f"own devices: use NamedSharding(mesh, spec) over devices of this process, or pass the leaf only there"
        )
    if isinstance(place, NamedSharding):
        shape = _check_fit(name, shape, place, is_far, is_part)
    return Leaf(path, value, place, is_far, shape)


def _check_fit(
    name: str, shape: tuple[int, ...], sharding: NamedSharding, is_far: bool, is_part: bool
) -> tuple[int, ...]:
    whole = list(shape)
    for dimension, entry in enumerate(sharding.spec.partitions):
        if dimension >= len(shape):
            raise ValueError(
                f"{name} has the shape {shape}; {sharding.spec} names dimension {dimension}, which it has not: give "
                f"this leaf PartitionSpec(), or a value of {dimension + 1} or more dimensions"
            )
        if entry is None:
            continue
        if entry is PartitionSpec.UNCONSTRAINED:
            raise ValueError(f"{name}: {sharding.spec} leaves dimension {dimension} to a compiler: use None there")
        axes = entry if isinstance(entry, tuple) else (entry,)
        size, count = shape[dimension], math.prod(sharding.mesh.shape[axis] for axis in axes)
        parts = _count_parts(sharding.mesh, axes, count) if is_part else 1
        whole[dimension] *= parts
        own = count // parts
        if size % own:
            near = " or ".join(str(works) for works in (size // own * own, -(-size // own) * own) if works)
            here = f" of size {count}, {own} of them in this process" if is_part else f" of size {count}"
            hint = ", or process_local=True where this is one process's part" if is_far and not is_part else ""
            raise ValueError(
                f"{name} has the shape {shape}; its dimension {dimension} is {size} and is split over mesh "
                f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(repr, axes))}{here}, which does "
                f"not divide it: use {near}{hint}"
            )
    return tuple(whole)


@lru_cache(maxsize=64)
def _count_parts(mesh: Mesh, axes: tuple[str, ...], count: int) -> int:
    """Returns how many different parts of a dimension the processes hold, as `process_batch_shard` counts them."""
    return next(iter(shard_processes(cover_processes(mesh, axes), count).values()))[1]


# ---- how a leaf comes to its place ----

_ALIGNMENT_BYTES: Final = 64


def _copy_for_host(value: Any, place: Any) -> Any:
    """Returns a copy of a NumPy array for host memory, since JAX adopts the memory of an aligned array.

    The copy is aligned, so that JAX adopts it: the array is copied once and not twice. Where JAX has to convert the
    dtype, it copies by itself.

    Source: observed on jax 0.10.2 and 0.12.0, also with may_alias=False; https://github.com/jax-ml/jax/issues/37830.
    """
    if not isinstance(value, np.ndarray) or not value.nbytes or not _is_host_memory(place):
        return value
    if jax.typeof(value).dtype != value.dtype:
        return value
    raw = np.empty(value.nbytes + _ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    copy = raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy


def _is_host_memory(place: Any) -> bool:
    device = next(iter(place.device_set)) if isinstance(place, Sharding) else place
    return device.platform == "cpu" or "host" in (getattr(place, "memory_kind", None) or "")


def _put_own_part(value: Any, sharding: Sharding, shape: tuple[int, ...]) -> Any:
    """Returns the global array of a shape, with this process's parts put on its devices.

    For a leaf that is the whole value, `jax.device_put` would do so after a collective that compares it, in which NaN
    differs from itself and which a thread must not start; and it refuses PRNG keys and arrays that lie on one device.
    """
    kind = jax.typeof(value)
    with open_array(value) if isinstance(value, jax.Array) else nullcontext(np.asarray(value, kind.dtype)) as array:
        if array.shape != shape:
            whole = jax.make_array_from_process_local_data(sharding, array, shape)
        else:
            parts = sharding.addressable_devices_indices_map(shape)
            shards = jax.device_put([array[index] for index in parts.values()], list(parts))
            whole = jax.make_array_from_single_device_arrays(shape, sharding, shards, dtype=array.dtype)
    if not kind.weak_type:
        return whole
    # A Python number stays one for JAX's promotion of dtypes, as after device_put; JAX has no public way to say so.
    own = [shard.data for shard in whole.addressable_shards]
    return type(whole)(whole.aval.update(weak_type=True), sharding, own, committed=True)

"""Places arrays on devices: one device, a sharding, every device, a batch split over a mesh, batches in advance.

Rule: the result is the data's own pytree, with each leaf a `jax.Array` at its requested place. An error names the path
of a leaf that cannot be placed. On CPU no array shares memory with a NumPy array of the caller, unlike with
`jax.device_put`. Independent of models and plans: a mesh is an argument.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, SupportsIndex, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from meshwright._jax_devices import describe_device
from meshwright._placing import Comparison, check_target, compare_processes, place, place_and_wait, place_each
from meshwright._prefetch import Prefetcher
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

REPLICA_AXIS: Final = "replica"

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

    Raises:
        TypeError: `default_device` is not a device.
    """

    def __init__(self, default_device: Any = None) -> None:
        self.default_device: Any = _find_default_device() if default_device is None else default_device
        if not isinstance(getattr(self.default_device, "device_kind", None), str):
            raise _refuse_device("default_device", default_device)

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
        chosen = _check_devices(self._list_devices() if devices is None else list(devices))
        compare_processes(data, chosen)
        mesh = Mesh(np.array(chosen), (REPLICA_AXIS,), axis_types=(AxisType.Auto,))
        return place(data, NamedSharding(mesh, PartitionSpec()))

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
        axes; `jax.shard_map` takes such arrays.

        Args:
            data: a pytree of arrays.
            mesh: may span processes; each process then places the part of its own devices.
            batch_axis: the dimension; negative ones count from the end, as in NumPy.
            mesh_axis: an axis of the mesh, or several, of which the first is the outermost.
            process_local: as in the function `distribute_batch`.

        Raises:
            TypeError: a leaf is not an array (the message has its path), `mesh` is not a Mesh, or `batch_axis` is not a
                whole number.
            ValueError: the mesh has no such axis, an axis is named twice, a leaf's size does not divide, or the batches
                of the processes do not match.
            RuntimeError: another process did not pass its batch in time.
        """
        hint = f"; an axis of the mesh is given by name: mesh_axis={batch_axis!r}" if _is_named(batch_axis) else ""
        axis = _read_whole_number("batch_axis", batch_axis, f"0 or -1{hint}")
        names = _read_axes(mesh, mesh_axis)
        return place_each(data, lambda leaf: NamedSharding(mesh, _build_spec(leaf, axis, names)), process_local, _calls)

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

        Raises:
            TypeError: `hardware_type` is not a hardware type.

        Source: `meshwright.planning.batch_size`: the published table, or the chip table's roofline.
        """
        return get_batch_size_recommendation(self.hardware_type if hardware_type is None else hardware_type)

    def validate_batch_size(self, batch_size: SupportsIndex, warn_suboptimal: bool = True) -> tuple[bool, str]:
        """Returns whether a batch size per device is valid on this hardware, and a sentence that compares it with the
        table.

        A batch below the minimum is invalid. A batch below the critical size is valid, and reported if
        `warn_suboptimal`.

        Raises:
            TypeError: `batch_size` is not a whole number.
        """
        size = _read_whole_number("batch_size", batch_size, "256")
        return validate_batch_size(self.hardware_type, size, warn_suboptimal)

    def get_device_info(self) -> dict[str, Any]:
        """Returns the reported facts of the devices of the default device's backend.

        The keys: `num_devices`; `hardware_type`, the enum's value; `platforms` and `device_kinds`, each once;
        `devices`, a dict each, with `id`, `platform`, `device_kind`, `process_index`, `memory_limit_bytes`,
        `memory_in_use_bytes` and other facts from JAX. An unreported value is None: CPUs and devices of other processes
        do not report memory.
        """
        devices = [_describe(device) for device in self._list_devices()]
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
    if not isinstance(chosen, jax.Device):
        raise _refuse_device("device", device)
    return place(data, chosen)


def distribute_batch(data: Any, sharding: Any, *, process_local: bool = False) -> Any:
    """Returns the data under one sharding, or each part of it under its own.

    Manual axes of a mesh become Auto, since JAX does not place arrays on Manual axes; `jax.shard_map` takes such
    arrays.

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
        TypeError: a leaf is not an array, or a leaf of `sharding` is not a sharding; the message has the path.
        ValueError: the pytrees do not match, or a leaf's shape does not fit its sharding (the message has its path), or
            the batches of the processes do not match.
        RuntimeError: another process did not pass its batch in time.
    """
    return place(data, check_target("sharding", sharding), process_local, _calls)


def prefetch_to_device(
    data_iterator: Iterable[Any],
    device: Any = None,
    buffer_size: SupportsIndex = 2,
    *,
    process_local: bool = False,
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
    target = _find_default_device() if device is None else check_target("device", device)
    comparison = Comparison(target)
    placing = partial(place_and_wait, target=target, process_local=process_local, comparison=comparison)
    return Prefetcher(data_iterator, placing, buffer_size, comparison.stop)


def get_batch_size_recommendation(hardware_type: HardwareType | None = None) -> BatchSizeRecommendation:
    """Returns the batch sizes per device for a hardware type; None means that of JAX's default device.

    Raises:
        TypeError: `hardware_type` is not a hardware type.

    Source: `meshwright.planning.batch_size`: the published table, or the chip table's roofline.
    """
    if hardware_type is None:
        return DevicePlacement().get_batch_size_recommendation()
    if not isinstance(hardware_type, HardwareType):
        raise TypeError(
            f"hardware_type is {hardware_type!r}, a {type(hardware_type).__name__}; it is a HardwareType, such as "
            f'HardwareType.H100 or HardwareType("h100")'
        )
    return recommend_batch_size(hardware_type)


# ---- where to ----


def _find_default_device() -> Any:
    chosen = cast(Any, jax.config).jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def _refuse_device(name: str, value: object) -> TypeError:
    hint = "; for a sharding there is distribute_batch" if isinstance(value, Sharding) else ""
    return TypeError(
        f"{name} is {value!r}, a {type(value).__name__}; it is a jax.Device, such as jax.devices()[0]{hint}"
    )


def _check_devices(devices: list[Any]) -> list[Any]:
    rule = "a value is replicated over at least one device, each of them once and all of one backend"
    hint = "leave devices out for all of the default device's backend"
    strangers = [device for device in devices if not isinstance(device, jax.Device)]
    if strangers:
        raise _refuse_device("a member of devices", strangers[0])
    if not devices:
        raise ValueError(f"devices is empty; {rule}: {hint}")
    if len(set(devices)) < len(devices):
        doubled = next(device for device, count in Counter(devices).items() if count > 1)
        raise ValueError(f"devices holds {doubled} more than once; {rule}: {hint}")
    if len({device.client for device in devices}) > 1:
        raise ValueError(f"devices holds {sorted({device.platform for device in devices})}; {rule}: {hint}")
    return devices


def _read_axes(mesh: Mesh, mesh_axis: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh is a {type(mesh).__name__}; it is a jax.sharding.Mesh of devices, as create_mesh returns"
        )
    names = tuple(mesh_axis) if isinstance(mesh_axis, tuple | list) else (mesh_axis,)
    present = ", ".join(f"{name!r} ({size})" for name, size in mesh.shape.items())
    for name in names:
        if not isinstance(name, str) or name not in mesh.shape:
            raise ValueError(
                f"mesh_axis names {name!r}, which the mesh does not have; its axes are {present}: use those"
            )
    if not names or len(set(names)) < len(names):
        raise ValueError(f"mesh_axis is {mesh_axis!r}; it names one axis or more, each once, out of {present}")
    return names


def _is_named(value: object) -> bool:
    names = value if isinstance(value, tuple | list) else (value,)
    return bool(names) and all(isinstance(name, str) for name in names)


def _read_whole_number(name: str, value: SupportsIndex, example: str) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}; it is a whole number, such as {example}")
    return operator.index(value)


def _build_spec(leaf: Any, batch_axis: int, names: tuple[str, ...]) -> PartitionSpec:
    rank = len(np.shape(leaf))
    if not -rank <= batch_axis < rank:
        return PartitionSpec()
    return PartitionSpec(*[None] * (batch_axis % rank), names if len(names) > 1 else names[0])


# ---- facts of a device ----


def _describe(device: Any) -> dict[str, Any]:
    said = describe_device(device)
    memory = said.pop("memory_stats") or {}
    return {
        **said,
        "memory_limit_bytes": memory.get("bytes_limit"),
        "memory_in_use_bytes": memory.get("bytes_in_use"),
    }

"""Pytrees of arrays placed leaf by leaf: which place each leaf gets, whether it can be there, and how it comes there.

Rule: every leaf is checked before the first is moved, and one that cannot be placed is named by its path. A value that
goes to host memory is copied, and one that spans processes is put together from each process's own part, after the
processes have compared their batches. Independent of the default device.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from meshwright._mesh.agreement import find_agreement
from meshwright._parallelism import cover_processes, name_processes, shard_processes

ALIGNMENT_BYTES: Final = 64

COMPARE_TIMEOUT_S: Final = 300.0
"""How long a process waits for the others to pass their batch; `jax.distributed.initialize` waits as long."""

MAX_DESCRIPTION: Final = 400
"""How many characters of a batch's description a message shows."""


def place(data: Any, target: Any, process_local: bool = False, comparison: Comparison | None = None) -> Any:
    """Returns the data on a device, under a sharding, or each part under its own.

    Args:
        data: a pytree of arrays.
        target: a device, a sharding, or a pytree of them.
        process_local: where a sharding spans processes, a leaf is this process's part of the array, and not the whole.
        comparison: compares the batches of the processes; None where they have been compared.

    Raises:
        TypeError: a leaf is not an array; the message has its path.
        ValueError: the trees do not match, or a leaf does not fit its target (the message has its path), or the batches
            of the processes do not match.
        RuntimeError: another process did not pass its batch in time.
    """
    leaves = jax.tree.leaves(data)
    return _place_leaves(data, _spread(target, data, len(leaves)), process_local, comparison)


def place_each(data: Any, choose: Callable[[Any], Any], process_local: bool, comparison: Comparison) -> Any:
    """Returns the data with each leaf at the place that `choose` returns for it. Nodes of the caller's own classes hold
    leaves only.

    Raises:
        TypeError, ValueError, RuntimeError: as `place`.
    """
    places = [_free_manual_axes(choose(leaf)) for leaf in jax.tree.leaves(data)]
    return _place_leaves(data, places, process_local, comparison)


def _place_leaves(data: Any, places: list[Any], process_local: bool, comparison: Comparison | None) -> Any:
    leaves, structure = jax.tree.flatten(data)
    far = [_spans_processes(leaf, there) for leaf, there in zip(leaves, places, strict=True)]
    shapes = [
        _check_leaf(data, number, leaf, there, is_far, process_local)
        for number, (leaf, there, is_far) in enumerate(zip(leaves, places, far, strict=True))
    ]
    if comparison and any(far):
        named = zip(jax.tree.leaves_with_path(data), places, shapes, far, strict=True)
        comparison.check([_Far(*leaf, *rest) for leaf, *rest, is_far in named if is_far], process_local)
    own = [_copy_for_host(leaf, there) for leaf, there in zip(leaves, places, strict=True)]
    if not any(far):
        return jax.tree.unflatten(structure, jax.device_put(own, places))
    put = [
        _put_own_part(leaf, there, shape) if is_far else jax.device_put(leaf, there)
        for leaf, there, shape, is_far in zip(own, places, shapes, far, strict=True)
    ]
    return jax.tree.unflatten(structure, put)


def place_and_wait(data: Any, target: Any, process_local: bool = False, comparison: Comparison | None = None) -> Any:
    """Returns the same as `place` when the caller's memory is no longer read: a transfer outlasts its device_put.

    Waiting costs no more than a copy on the host would, and an error of the transfer comes out at its place.
    """
    return jax.block_until_ready(place(data, target, process_local, comparison))


def check_target(name: str, target: Any) -> Any:
    """Returns the argument if it is a device, a sharding or a pytree of them.

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


# ---- errors of placing ----


def _check_leaf(
    data: Any, number: int, leaf: Any, there: Any, is_far: bool = False, process_local: bool = False
) -> tuple[int, ...]:
    """Returns the shape of the array that the leaf becomes: a larger one where the leaf is one process's part."""
    is_part = is_far and process_local
    try:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError("it has a shape and no values")
        shape: tuple[int, ...] = jax.typeof(leaf).shape
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
    if is_part and not there.addressable_devices:
        raise ValueError(
            f"leaf {_name(data, number)} has no part in this process: its sharding is over devices of "
            f"{name_processes(_list_processes(there))}; with process_local=True each process passes the part of its "
            f"own devices: use a sharding over devices of this process, or pass this leaf in those processes only"
        )
    if isinstance(there, NamedSharding):
        return _check_fit(partial(_name, data, number), shape, there, is_far, is_part)
    if is_part:
        raise ValueError(
            f"leaf {_name(data, number)} is to go under a {type(there).__name__} over several processes; with "
            f"process_local=True only a NamedSharding says which part that is: use NamedSharding(mesh, spec)"
        )
    return shape


def _check_fit(
    name: Callable[[], str], shape: tuple[int, ...], sharding: NamedSharding, is_far: bool, is_part: bool
) -> tuple[int, ...]:
    whole = list(shape)
    for dimension, axes in enumerate(_list_axes(sharding.spec)):
        if dimension >= len(shape):
            raise ValueError(
                f"leaf {name()} has the shape {shape}; {sharding.spec} names dimension {dimension}, which it has "
                f"not: give this leaf PartitionSpec(), or a value of {dimension + 1} or more dimensions"
            )
        if not axes:
            continue
        size, count = shape[dimension], math.prod(sharding.mesh.shape[axis] for axis in axes)
        parts = _count_parts(sharding.mesh, axes, count) if is_part else 1
        whole[dimension] *= parts
        if size % (count // parts):
            own = count // parts
            near = " or ".join(str(works) for works in (size // own * own, -(-size // own) * own) if works)
            here = f" of size {count}, {own} of them in this process" if is_part else f" of size {count}"
            hint = ", or process_local=True where this is one process's part" if is_far and not is_part else ""
            raise ValueError(
                f"leaf {name()} has the shape {shape}; its dimension {dimension} is {size} and is split over mesh "
                f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(repr, axes))}{here}, which does "
                f"not divide it: use {near}{hint}"
            )
    return tuple(whole)


@lru_cache(maxsize=64)
def _count_parts(mesh: Mesh, axes: tuple[str, ...], count: int) -> int:
    """Returns how many different parts of a dimension the processes hold, as `process_batch_shard` counts them.

    Raises:
        ValueError: the layout is uneven.
    """
    parts: int = next(iter(shard_processes(cover_processes(mesh, axes), count).values()))[1]
    return parts


def _list_axes(spec: PartitionSpec) -> list[tuple[Any, ...]]:
    whole = (None, PartitionSpec.UNCONSTRAINED)
    return [part if isinstance(part, tuple) else () if part in whole else (part,) for part in spec]


def _name(data: Any, number: int) -> str:
    path, _ = jax.tree.leaves_with_path(data)[number]
    return jax.tree_util.keystr(path) or "(the data itself)"


# ---- how a leaf comes there ----


def _copy_for_host(leaf: Any, there: Any) -> Any:
    """Returns a copy of a NumPy array for host memory, since JAX adopts the memory of an aligned array.

    The copy is aligned, so that JAX adopts it: the array is copied once and not twice. Where JAX has to convert the
    dtype, it copies by itself.

    Source: observed on jax 0.10.2 and 0.12.0, also with may_alias=False; https://github.com/jax-ml/jax/issues/37830.
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
    if not isinstance(there, Sharding) or there.is_fully_addressable or isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


def _put_own_part(leaf: Any, sharding: Sharding, shape: tuple[int, ...]) -> Any:
    """Returns the global array of a shape, with this process's parts put on its devices.

    For a leaf that is the whole value, `jax.device_put` would do so after a collective that compares it, in which NaN
    differs from itself and which a thread must not start; and it refuses PRNG keys and arrays that lie on one device.
    """
    value = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, jax.typeof(leaf).dtype)
    if value.shape != shape:
        return jax.make_array_from_process_local_data(sharding, value, shape)
    parts = sharding.addressable_devices_indices_map(shape)
    shards = jax.device_put([value[index] for index in parts.values()], list(parts))
    return jax.make_array_from_single_device_arrays(shape, sharding, shards, dtype=value.dtype)


@lru_cache(maxsize=256)
def _list_processes(sharding: Sharding) -> tuple[int, ...]:
    devices: set[Any] = sharding.device_set
    return tuple(sorted({device.process_index for device in devices}))


# ---- comparison of the processes ----


@dataclass(frozen=True)
class _Far:
    """A leaf that spans processes, with the shape of its global array."""

    path: tuple[Any, ...]
    leaf: Any
    sharding: Sharding
    shape: tuple[int, ...]

    def kind(self) -> Any:
        return self.path, np.shape(self.leaf), str(jax.typeof(self.leaf).dtype), self.sharding

    def describe(self) -> str:
        own = jax.typeof(self.leaf)
        spec = f" as {self.sharding.spec}" if isinstance(self.sharding, NamedSharding) else ""
        return f"{jax.tree_util.keystr(self.path) or 'the data'} {own.dtype}{list(own.shape)}{spec}"

    def cover(self) -> str:
        """Returns a name of the part that this process's devices cover; equal in processes that cover the same."""
        parts = self.sharding.addressable_devices_indices_map(self.shape)
        return _hash(sorted(str(index) for index in parts.values()))


class Comparison:
    """Compares the batches of the processes of a job: the first of each kind, before it is placed.

    The kind is the structure, the shapes, the dtypes and the shardings of the leaves that span processes. The batches
    of the main thread are compared in their order, and so are those of each prefetcher. Batches of calls in other
    threads are compared by kind, since threads run in different orders.

    Args:
        prefetcher: the sharding or shardings of a prefetcher; None for batches of direct calls. Every process must
            create its prefetchers in the same order.
    """

    def __init__(self, prefetcher: Any = None) -> None:
        self._known: set[Any] = set()
        self._stopped = False
        self._stream: str | None = None
        if prefetcher is not None:
            far = [each for each in jax.tree.leaves(prefetcher) if _spans_processes(None, each)]
            group = _hash(sorted({process for each in far for process in _list_processes(each)}))
            with _numbers_lock:
                _numbers[group] += 1
                self._stream = f"prefetch/{group}/{_numbers[group]}"

    def stop(self) -> None:
        """Ends a wait for other processes; may be called from any thread."""
        self._stopped = True

    def check(self, leaves: Sequence[_Far], process_local: bool) -> None:
        """Returns when all processes have passed batches that go together. Only the first of a kind waits.

        Raises:
            ValueError: the batches do not go together.
            RuntimeError: another process did not pass its batch in time, or `stop` was called.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        kind = (in_main_thread, process_local, *(leaf.kind() for leaf in leaves))
        if kind in self._known:
            return
        processes = sorted({process for leaf in leaves for process in _list_processes(leaf.sharding)})
        if jax.process_index() not in processes:
            return
        batch = ", ".join(leaf.describe() for leaf in leaves)
        source = self._stream or ("main" if in_main_thread else f"threads/{_hash(batch)}")
        talk = find_agreement(f"{source}/{_hash(processes)}", processes, partial(_refuse_silence, batch))
        with talk.lock:
            if kind in self._known:
                return
            text = json.dumps(
                {
                    "process": jax.process_index(),
                    "process_local": process_local,
                    "batch": f"{_shorten(batch)} with process_local={process_local}",
                    "kind": _hash([batch, process_local, *(_describe_devices(leaf.sharding) for leaf in leaves)]),
                    "parts": _digest_parts(leaves, process_local),
                }
            )
            try:
                texts = talk.exchange(text, timeout_s=COMPARE_TIMEOUT_S, check=self._check_stopped)
            except BaseException:
                talk.withdraw()
                raise
            said = [json.loads(each) for each in texts]
            _check_same_kind(said)
            _check_same_parts(said, process_local)
            talk.commit()
            self._known.add(kind)

    def _check_stopped(self) -> None:
        if self._stopped:
            raise RuntimeError("the prefetcher was closed while it waited for other processes")


_numbers: Final[Counter[str]] = Counter()
_numbers_lock: Final = threading.Lock()
"""How many prefetchers there have been, by the processes that take part."""


def _check_same_kind(said: Sequence[dict[str, Any]]) -> None:
    first = said[0]
    other = next((each for each in said if each["kind"] != first["kind"]), None)
    if other:
        same = first["process_local"] and other["process_local"]
        advice = "drop or pad rows, so that all processes have equally many" if same else _ADVICE
        raise ValueError(
            f"the processes pass different batches: process {first['process']} passes {first['batch']}; process "
            f"{other['process']} passes {other['batch']}; all must pass the same structure, shapes, dtypes and "
            f"shardings: {advice}"
        )


def _check_same_parts(said: Sequence[dict[str, Any]], process_local: bool) -> None:
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for each in said:
        for path, part, digest in each["parts"]:
            process, before = seen.setdefault((path, part), (each["process"], digest))
            if before == digest:
                continue
            if not process_local:
                raise ValueError(
                    f"the processes pass different batches: process {each['process']} passes other values than process "
                    f"{process}, in {each['batch']}; without process_local=True every process passes the same global "
                    f"batch, and of batches that differ rows would be lost: {_ADVICE}"
                )
            raise ValueError(
                f"processes {process} and {each['process']} cover the same part of leaf {path} and pass different "
                f"values; with process_local=True processes whose devices cover the same rows pass the same rows, and "
                f"a leaf that is not split is the same in all: load the part that process_batch_shard(mesh, axes) gives"
            )


_ADVICE: Final = (
    "use process_local=True where each process passes its own rows, those that process_batch_shard gives it, or pass "
    "the same global batch in every process"
)


def _refuse_silence(batch: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{what}; {_shorten(batch)} spans several processes, and the first batch of a kind is compared before it is "
        f"placed: every process must pass such a batch, in the same call or prefetcher; look whether it has failed, "
        f"is still loading, or passes another shape ({_ADVICE})"
    )


def compare_processes(data: Any, devices: Sequence[jax.Device]) -> None:
    """Refuses a value that differs between the processes that have some of the devices.

    Each of these processes must call this, in the same order as others of its calls.

    Raises:
        TypeError: a leaf is not an array; the message has its path.
        ValueError: the values differ.
        RuntimeError: another process did not call this in time.
    """
    processes = sorted({device.process_index for device in devices})
    if len(processes) == 1 or jax.process_index() not in processes:
        return
    for number, leaf in enumerate(jax.tree.leaves(data)):
        _check_leaf(data, number, leaf, None)
    talk = find_agreement(f"replicate/{_hash(processes)}", processes, _refuse_missing)
    with talk.lock:
        said = talk.exchange(_digest(jax.tree.leaves_with_path(data)), timeout_s=COMPARE_TIMEOUT_S)
        differing = [process for process, digest in zip(processes, said, strict=True) if digest != said[0]]
        if differing:
            raise ValueError(
                f"the processes of this job hold different values: {differing} not that of process {processes[0]}; "
                f"what is replicated must be equal everywhere: make it from the same seed or file, or send process 0's "
                f"with jax.experimental.multihost_utils.broadcast_one_to_all"
            )
        talk.commit()


def _refuse_missing(what: str) -> RuntimeError:
    return RuntimeError(f"{what}; each process with some of the devices must call replicate_across_devices alike")


# ---- digests ----


def _digest_parts(leaves: Sequence[_Far], process_local: bool) -> list[list[str]]:
    """Returns [path, part, digest] of the data that must be equal in each process with this part of this path.

    A global batch is one part, of all leaves that have devices in this process; "" is its path.
    """
    here = jax.process_index()
    own = [leaf for leaf in leaves if here in _list_processes(leaf.sharding)]
    if process_local:
        return [[jax.tree_util.keystr(leaf.path), leaf.cover(), _digest([(leaf.path, leaf.leaf)])] for leaf in own]
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for leaf in own:
        groups.setdefault(_hash(_list_processes(leaf.sharding)), []).append((leaf.path, leaf.leaf))
    return [["", group, _digest(members)] for group, members in groups.items()]


def _digest(leaves: Iterable[tuple[Any, Any]]) -> str:
    """Returns a text that distinguishes leaves by paths, shapes, dtypes and bytes; NaN equals itself."""
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            continue  # one array of the whole job already
        dtype = jax.typeof(leaf).dtype
        is_key = jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
        value = np.asarray(jax.device_get(jax.random.key_data(leaf) if is_key else leaf), None if is_key else dtype)
        digest.update(f"{jax.tree_util.keystr(path)} {value.shape} {dtype}".encode() + value.tobytes())
    return digest.hexdigest()


def _describe_devices(sharding: Sharding) -> str:
    if isinstance(sharding, NamedSharding):
        return f"{dict(sharding.mesh.shape)} {[device.id for device in sharding.mesh.devices.flat]}"
    devices: set[Any] = sharding.device_set
    return str(sorted(device.id for device in devices))


def _hash(value: object) -> str:
    return hashlib.blake2b(str(value).encode(), digest_size=8).hexdigest()


def _shorten(batch: str) -> str:
    return batch if len(batch) <= MAX_DESCRIPTION else f"{batch[:MAX_DESCRIPTION]}…"

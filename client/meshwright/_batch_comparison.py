"""Comparison of what the processes of a job place: by digests, over JAX's coordination service, before it is placed.

It needs no collective, so that a thread which prefetches may use it. Independent of devices of the caller's choice.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.tree_util import keystr

from meshwright._agreement import find_agreement

COMPARE_TIMEOUT_S: Final = 300.0
"""How long a process waits for the others to pass their batch; `jax.distributed.initialize` waits as long."""

_MAX_DESCRIPTION: Final = 400
"""How many characters of a batch's description a message shows."""

_ADVICE: Final = (
    "use process_local=True where each process passes its own rows, those that process_batch_shard gives it, or pass "
    "the same global batch in every process"
)


@dataclass(frozen=True)
class Leaf:
    """A leaf and its place; `shape` is that of its global array, and `is_far`: each process puts its own part."""

    path: tuple[Any, ...]
    value: Any
    place: Any
    is_far: bool
    shape: tuple[int, ...]

    def describe(self) -> str:
        """Returns "['x'] float32[4, 5] as PartitionSpec('data',)"."""
        own = jax.typeof(self.value)
        spec = f" as {self.place.spec}" if isinstance(self.place, NamedSharding) else ""
        weak = " of a Python number" if own.weak_type else ""
        return f"{keystr(self.path) or 'the data'} {own.dtype}{list(own.shape)}{weak}{spec}"


def spans_processes(value: Any, place: Any) -> bool:
    """Returns whether each process has to put its own part. What is spread over processes already, JAX moves by
    itself."""
    if not isinstance(place, Sharding) or place.is_fully_addressable or isinstance(value, jax.core.Tracer):
        return False
    return not isinstance(value, jax.Array) or value.is_fully_addressable


@lru_cache(maxsize=256)
def list_processes(sharding: Sharding) -> tuple[int, ...]:
    """Returns the processes that have devices of a sharding."""
    devices: set[Any] = sharding.device_set
    return tuple(sorted({device.process_index for device in devices}))


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
            far = [each for each in jax.tree.leaves(prefetcher) if spans_processes(None, each)]
            group = _hash(sorted({process for each in far for process in list_processes(each)}))
            with _counts_lock:
                _counts[group] += 1
                self._stream = f"prefetch/{group}/{_counts[group]}"

    def stop(self) -> None:
        """Ends a wait for other processes; may be called from any thread."""
        self._stopped = True

    def check(self, leaves: Sequence[Leaf], process_local: bool) -> None:
        """Returns when all processes have passed batches that go together. Only the first of a kind waits.

        Raises:
            ValueError: the batches do not go together.
            RuntimeError: another process did not pass its batch in time, or `stop` was called.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        types = [jax.typeof(leaf.value) for leaf in leaves]
        described = tuple(
            (leaf.path, own.shape, own.dtype, own.weak_type, leaf.place)
            for leaf, own in zip(leaves, types, strict=True)
        )
        kind = (in_main_thread, process_local, described)
        processes = sorted({process for leaf in leaves for process in list_processes(leaf.place)})
        if kind in self._known or jax.process_index() not in processes:
            return
        batch = ", ".join(leaf.describe() for leaf in leaves)
        source = self._stream or ("main" if in_main_thread else f"threads/{_hash(batch)}")
        agreement = find_agreement(f"{source}/{_hash(processes)}", processes, partial(_refuse_silence, batch))
        with agreement.lock:
            if kind in self._known:
                return
            agreement.refuse = partial(_refuse_silence, batch)  # the batch of this call
            message = {
                "process": jax.process_index(),
                "process_local": process_local,
                "batch": f"{_shorten(batch)} with process_local={process_local}",
                "kind": _hash([batch, process_local, *(_describe_devices(leaf.place) for leaf in leaves)]),
                "parts": _digest_parts(leaves, process_local),
            }
            texts = agreement.exchange(json.dumps(message), timeout_s=COMPARE_TIMEOUT_S, check=self._check_stopped)
            messages = [json.loads(text) for text in texts]
            _check_kinds(messages)
            _check_parts(messages)
            agreement.commit()
            self._known.add(kind)

    def _check_stopped(self) -> None:
        if self._stopped:
            raise RuntimeError("the prefetcher was closed while it waited for other processes")


_counts: Final[Counter[str]] = Counter()
_counts_lock: Final = threading.Lock()
"""How many prefetchers there have been, by the processes that take part."""


def _check_kinds(messages: Sequence[dict[str, Any]]) -> None:
    first = messages[0]
    other = next((each for each in messages if each["kind"] != first["kind"]), None)
    if other:
        is_local = first["process_local"] and other["process_local"]
        advice = "drop or pad rows, so that all processes have equally many" if is_local else _ADVICE
        raise ValueError(
            f"the processes pass different batches: process {first['process']} passes {first['batch']}; process "
            f"{other['process']} passes {other['batch']}; all must pass the same structure, shapes, dtypes and "
            f"shardings: {advice}"
        )


def _check_parts(messages: Sequence[dict[str, Any]]) -> None:
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for each in messages:
        for path, part, digest in each["parts"]:
            process, before = seen.setdefault((path, part), (each["process"], digest))
            if before != digest and each["process_local"]:
                raise ValueError(
                    f"processes {process} and {each['process']} cover the same part of leaf {path} and pass different "
                    f"values; with process_local=True processes whose devices cover the same rows pass the same rows, "
                    f"and a leaf that is not split is the same in all: load the part that "
                    f"process_batch_shard(mesh, axes) gives"
                )
            if before != digest:
                raise ValueError(
                    f"the processes pass different batches: process {each['process']} passes other values than process "
                    f"{process}, in {each['batch']}; without process_local=True every process passes the same global "
                    f"batch, and of batches that differ rows would be lost: {_ADVICE}"
                )


def _refuse_silence(batch: str, what: str) -> RuntimeError:
    return RuntimeError(
        f"{what}; {_shorten(batch)} spans several processes, and the first batch of a kind is compared before it is "
        f"placed: every process must pass such a batch, in the same call or prefetcher; look whether it has failed, "
        f"is still loading, or passes another shape ({_ADVICE})"
    )


def compare_copies(data: Any, devices: Sequence[jax.Device]) -> None:
    """Raises ValueError where a value differs between the processes that have some of the devices.

    Each of these processes must call this, in the same order as others of its calls.

    Raises:
        ValueError: the values differ.
        RuntimeError: another process did not call this in time.
    """
    processes = sorted({device.process_index for device in devices})
    if len(processes) == 1 or jax.process_index() not in processes:
        return
    agreement = find_agreement(f"replicate/{_hash(processes)}", processes, _refuse_missing)
    with agreement.lock:
        digests = agreement.exchange(_digest(jax.tree.leaves_with_path(data)), timeout_s=COMPARE_TIMEOUT_S)
        differing = [process for process, digest in zip(processes, digests, strict=True) if digest != digests[0]]
        if differing:
            raise ValueError(
                f"the processes of this job hold different values: {differing} not that of process {processes[0]}; "
                f"what is replicated must be equal everywhere: make it from the same seed or file, or send process 0's "
                f"with jax.experimental.multihost_utils.broadcast_one_to_all"
            )
        agreement.commit()


def _refuse_missing(what: str) -> RuntimeError:
    return RuntimeError(f"{what}; each process with some of the devices must call replicate_across_devices alike")


# ---- digests ----


def _digest_parts(leaves: Sequence[Leaf], process_local: bool) -> list[list[str]]:
    """Returns [path, part, digest] of the data that must be equal in each process with this part of this path.

    A global batch is one part, of all leaves that have devices in this process; "" is its path.
    """
    parts: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
    for leaf in leaves:
        processes = list_processes(leaf.place)
        if jax.process_index() not in processes:
            continue
        key = "", _hash(processes)
        if process_local:
            indices = leaf.place.addressable_devices_indices_map(leaf.shape).values()
            key = keystr(leaf.path), _hash(sorted(map(str, indices)))
        parts.setdefault(key, []).append((leaf.path, leaf.value))
    return [[*key, _digest(members)] for key, members in parts.items()]


def _digest(leaves: Iterable[tuple[Any, Any]]) -> str:
    """Returns a text that distinguishes leaves by paths, shapes, dtypes and bytes; NaN equals itself."""
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            continue  # one array of the whole job already
        dtype = jax.typeof(leaf).dtype
        is_key = jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
        value = np.asarray(jax.device_get(jax.random.key_data(leaf) if is_key else leaf), None if is_key else dtype)
        digest.update(f"{keystr(path)} {value.shape} {dtype}".encode() + value.tobytes())
    return digest.hexdigest()


def _describe_devices(sharding: Sharding) -> str:
    if isinstance(sharding, NamedSharding):
        return f"{dict(sharding.mesh.shape)} {[device.id for device in sharding.mesh.devices.flat]}"
    devices: set[Any] = sharding.device_set
    return str(sorted(device.id for device in devices))


def _hash(value: object) -> str:
    return hashlib.blake2b(str(value).encode(), digest_size=8).hexdigest()


def _shorten(batch: str) -> str:
    return batch if len(batch) <= _MAX_DESCRIPTION else f"{batch[:_MAX_DESCRIPTION]}…"

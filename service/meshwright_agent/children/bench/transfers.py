"""Transfers as users make them: `jax.device_put` from the host, between devices and onto shardings; NumPy back.

Rule: bytes really move. Where JAX would share memory instead (NumPy arrays and CPU devices), a copy is forced.
algbw is S/t with S the bytes of the one array; every element is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from meshwright.wire.bench import BenchCase
from meshwright_agent.bench.scope import Scope
from meshwright_agent.children.bench.measure import (
    ALIGNMENT_BYTES,
    Array,
    JaxCall,
    Outcome,
    Stage,
    Subject,
    Trial,
    build_tile,
    choose_modulus,
    count_wrong,
    expand_tile,
    move_off_alignment,
)

SEED: Final = 1
BATCH_AXIS: Final = "batch"


def list_singles(scope: Scope) -> list[tuple[int, ...]]:
    """Returns the places of a transfer between the host and one device."""
    return [(index,) for index in scope.singles]


def list_each(
    case: BenchCase,
    subject: Callable[..., Subject],
    list_places: Callable[[Scope], Sequence[tuple[int, ...]]],
    scope: Scope,
    stage: Stage,
) -> Iterator[Trial]:
    """Yields one trial for each size and each of the places, the local indices of a transfer."""
    for size in round_sizes(scope.sizes_bytes, stage.item_bytes):
        for indices in list_places(scope):
            yield Trial(
                case=case,
                device_indices=indices,
                dtype=stage.dtype,
                size_bytes=size,
                prepare=partial(subject, stage, size, *(stage.devices[index] for index in indices)),
            )


def list_spread(case: BenchCase, spec: PartitionSpec, scope: Scope, stage: Stage) -> Iterator[Trial]:
    """Yields one trial per size, on all devices."""
    parts = len(scope.devices) if case == "shard_batch" else 1
    chosen = np.array([stage.devices[index] for index in scope.devices])
    sharding = NamedSharding(Mesh(chosen, (BATCH_AXIS,), axis_types=(AxisType.Auto,)), spec)
    for size in round_sizes(scope.sizes_bytes, stage.item_bytes, parts=parts):
        yield Trial(
            case=case,
            device_indices=scope.devices,
            dtype=stage.dtype,
            size_bytes=size,
            prepare=partial(Put, stage, size, sharding),
        )


def round_sizes(sizes_bytes: tuple[int, ...], item_bytes: int, *, parts: int = 1) -> tuple[int, ...]:
    """Returns the sizes rounded down to `parts` equal parts of at least one whole element, without duplicates.

    Parts of 64 bytes and more become multiples of 64 bytes. Then no part begins where the array could be shared.
    """
    rounded = []
    for size in sizes_bytes:
        unit = ALIGNMENT_BYTES if parts > 1 and size >= parts * ALIGNMENT_BYTES else item_bytes
        rounded.append(max(1, size // (parts * unit)) * parts * unit)
    return tuple(dict.fromkeys(rounded))


def build_host_array(stage: Stage, size_bytes: int) -> Array:
    """Returns the array `[elements]` that transfers send. JAX cannot reuse its memory."""
    tile = build_tile(SEED, choose_modulus(stage.dtype, 1))
    return move_off_alignment(expand_tile(tile, size_bytes // stage.item_bytes, stage.numpy_dtype))


@dataclass
class Put(JaxCall):
    """Host to a device or a sharding."""

    size_bytes: int
    target: jax.Device | Sharding

    def __post_init__(self) -> None:
        self.host = build_host_array(self.stage, self.size_bytes)

    def call(self) -> jax.Array:
        """Sends the array."""
        sent: jax.Array = jax.device_put(self.host, self.target)
        return sent

    def verify(self) -> Outcome:
        """Compares each device's part with the same part of the sent array."""
        shards = self.last.addressable_shards
        return Outcome(sum(count_wrong(np.asarray(shard.data), self.host[shard.index]) for shard in shards))


@dataclass
class Fetch(Subject):
    """A device to the host. JAX caches the first host copy of an array, so every sample reads a new array."""

    stage: Stage
    size_bytes: int
    device: jax.Device

    def __post_init__(self) -> None:
        self.host = build_host_array(self.stage, self.size_bytes)
        self.source = jax.device_put(self.host, self.device)
        self.out = np.zeros_like(self.host)

    def sample(self) -> float:
        """Reads a new array."""
        fresh = jax.block_until_ready(self.source.copy())
        duration_s, self.out = self.stage.time(lambda: self._read(fresh))
        return duration_s

    def _read(self, fresh: jax.Array) -> Array:
        seen = np.asarray(fresh)
        if self.stage.platform != "cpu":
            return seen
        np.copyto(self.out, seen)
        return self.out

    def verify(self) -> Outcome:
        """Compares the array that was read last."""
        return Outcome(count_wrong(self.out, self.host))


@dataclass
class Move(JaxCall):
    """One device to another."""

    size_bytes: int
    origin: jax.Device
    target: jax.Device

    def __post_init__(self) -> None:
        self.host = build_host_array(self.stage, self.size_bytes)
        self.source = jax.block_until_ready(jax.device_put(self.host, self.origin))

    def call(self) -> jax.Array:
        """Sends the array."""
        sent: jax.Array = jax.device_put(self.source, self.target)
        return sent

    def verify(self) -> Outcome:
        """Compares the received array and its device."""
        astray = 0 if self.last.devices() == {self.target} else self.host.size
        return Outcome(max(astray, count_wrong(np.asarray(self.last), self.host)))

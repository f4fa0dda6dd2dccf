"""Host buffers whose memory JAX on CPU takes as its own, which makes them the ones that can go wrong."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

_MESH = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
_GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
TARGETS = {
    "device": jax.devices()[1],
    "split": NamedSharding(_MESH, PartitionSpec("data")),
    "split in part": NamedSharding(_GRID, PartitionSpec("data")),
    "whole": NamedSharding(_MESH, PartitionSpec()),
    "pinned": SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"),
}
"""What takes an aligned buffer as it is."""


def make_aligned(count: int) -> Any:
    """Returns zeros `[count]` that begin at a multiple of 64 bytes."""
    raw = np.zeros(count * 4 + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * 4].view(np.float32)


def shares_memory(array: jax.Array, host: Any) -> bool:
    """Whether any part of an array lies in a NumPy array's memory."""
    low, high = host.ctypes.data, host.ctypes.data + host.nbytes
    return any(low <= shard.data.unsafe_buffer_pointer() < high for shard in array.addressable_shards)

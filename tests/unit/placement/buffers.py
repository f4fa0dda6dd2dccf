"""Host buffers whose memory JAX on CPU takes as its own, which makes them the ones that can go wrong."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def make_aligned(count: int, dtype: Any = np.float32) -> Any:
    """Returns zeros `[count]` that begin at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    raw = np.zeros(count * dtype.itemsize + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype)


def shares_memory(array: jax.Array, host: Any) -> bool:
    """Whether any part of an array lies in a NumPy array's memory."""
    low, high = host.ctypes.data, host.ctypes.data + host.nbytes
    return any(low <= shard.data.unsafe_buffer_pointer() < high for shard in array.addressable_shards)

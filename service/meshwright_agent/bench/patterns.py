"""What is sent and what must come back: whole numbers that every dtype and every sum of ranks holds exactly.

Rule: an expected value is computed here, by NumPy, never by the device. A pattern repeats after a prime number of
elements, so that parts that were swapped, shifted or left out do not look right. Knows no jax and no device.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PERIOD: Final = 65_537
"""Prime, and no divisor or multiple of the sizes that people choose."""

_EXACT: Final = {"float32": 2**24, "bfloat16": 2**8, "float16": 2**11}
"""Up to where each dtype holds every whole number: 2 to the number of its significand's bits (IEEE 754)."""

_LARGEST_MODULUS: Final = 251


def choose_modulus(dtype: str, rank_count: int) -> int:
    """Returns below which values must stay for a sum over the ranks to be exact; at least 2.

    Beyond 256 ranks a bfloat16 sum is not exact for any pattern that is not nearly all zeros.
    """
    return max(2, min(_LARGEST_MODULUS, _EXACT[dtype] // rank_count))


def build_tile(seed: int, modulus: int) -> Array:
    """Returns `[PERIOD]` whole numbers in [0, modulus) as float32: the pattern that belongs to a seed."""
    return np.random.default_rng(seed).integers(0, modulus, PERIOD).astype(np.float32)


def expand_tile(tile: Array, count: int, dtype: npt.DTypeLike, *, start: int = 0) -> Array:
    """Returns elements `start` … `start + count` of the endlessly repeated tile."""
    shifted = np.roll(tile, -(start % tile.size)).astype(dtype)
    return np.resize(shifted, count)


ALIGNMENT_BYTES: Final = 64


def move_off_alignment(array: Array) -> Array:
    """Returns a copy of the array in memory that is aligned to its items but not to 64 bytes.

    JAX on CPU takes the memory of a NumPy array aligned to 64 bytes as it is, also when asked not to
    (`may_alias=False`; seen on jax 0.10.2 and 0.12.0): nothing would move, in no time.
    """
    raw = np.empty(array.nbytes + 2 * ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES + array.itemsize
    moved: Array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def count_wrong(got: Array, expected: Array) -> int:
    """Returns how many elements differ; NaN is wrong; another shape means that all are wrong."""
    if got.shape != expected.shape:
        return max(int(got.size), int(expected.size), 1)
    return int(np.count_nonzero(got != expected))

"""Measurements of one device alone: matmul FLOP/s and memory bandwidth.

Rule: plain `jit` with default precision. A sample is the mean of calls that follow one another without waiting, as in
a training loop: waiting for each took a third off the bandwidth of an H100 and half off the FLOP/s of small matrices. A
matmul of n×n×n is 2n³ floating-point operations (a multiplication and an addition each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from meshwright_agent.bench.scope import Scope
from meshwright_agent.children.bench.measure import (
    PERIOD,
    SIGNIFICAND_BITS,
    Array,
    JaxCall,
    Outcome,
    Stage,
    Trial,
    count_wrong,
)
from meshwright_agent.children.bench.transfers import build_host_array, round_sizes

CHECK_FLOPS: Final = 1e9
"""FLOPs for NumPy's check of a matmul: all rows up to n = 1000, a sample of the rows above."""

BLOCK_ROWS: Final = 1024

SAMPLE_S: Final = 0.02
"""About the duration of a sample's calls."""
MAX_CALLS: Final = 32
"""Of a sample. Source: JAX lets 32 computations wait for a GPU."""


def list_matmul(scope: Scope, stage: Stage) -> Iterator[Trial]:
    """Yields one trial per device and n."""
    for n in scope.matmul_sizes:
        for index in scope.singles:
            yield Trial(
                case="matmul",
                device_indices=(index,),
                dtype=stage.dtype,
                size_bytes=3 * n * n * stage.item_bytes,
                flops=2.0 * n**3,
                prepare=partial(Matmul, stage, n, stage.devices[index]),
            )


def list_memory_bandwidth(scope: Scope, stage: Stage) -> Iterator[Trial]:
    """Yields one trial per device and size. S is the sum of the bytes read and written."""
    for size in round_sizes(scope.memory_bytes, 2 * stage.item_bytes):
        for index in scope.singles:
            yield Trial(
                case="memory_bandwidth",
                device_indices=(index,),
                dtype=stage.dtype,
                size_bytes=size,
                prepare=partial(Negation, stage, size, stage.devices[index]),
            )


def build_matrix(n: int, seed: int, dtype: np.dtype[np.generic]) -> Array:
    """Returns `[n, n]` normally distributed values, each of at most 8 significant bits.

    So no input is rounded, whatever precision the platform multiplies in (TF32, or bfloat16 passes on TPU). The bits
    are as mixed as in training, because a GPU's clock depends on them.
    """
    values = np.random.default_rng(seed).standard_normal(PERIOD).astype(np.float32)
    mantissa, exponent = np.frexp(values)
    coarse = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return np.resize(coarse.astype(np.float16).astype(dtype), (n, n))


def choose_rows(n: int) -> Array:
    """Returns the rows of the product to check: evenly spread, including the first and last."""
    count = int(min(n, max(2, CHECK_FLOPS // (n * n))))
    return np.unique(np.linspace(0, n - 1, count).astype(int))


def multiply(rows: Array, right: Array) -> Array:
    """Returns `[row, n]`, the product in float64, block by block of the right matrix."""
    total = np.zeros((rows.shape[0], right.shape[1]))
    for begin in range(0, right.shape[0], BLOCK_ROWS):
        part = slice(begin, begin + BLOCK_ROWS)
        total += rows[:, part].astype(np.float64) @ right[part].astype(np.float64)
    return total


def count_off(got: Array, expected: Array, dtype: str) -> int:
    """Returns the number of elements with an error beyond rounding; NaN counts.

    Allowed are twice the rounding of the result to `dtype`, and n sums of terms of about 1 rounded to float32.
    """
    n = expected.shape[1]
    unit = 2.0 ** (1 - SIGNIFICAND_BITS[dtype])
    allowed = 2 * unit * np.abs(expected) + 8 * n * 2.0**-23
    near = np.abs(got.astype(np.float64) - expected) <= allowed
    return int(np.count_nonzero(~near))


@dataclass
class ComputeCall(JaxCall):
    """A call of a device alone.

    Attributes:
        calls: of one sample.
    """

    calls: int = field(init=False, default=1)

    def choose_calls(self) -> None:
        """Compiles, and chooses the number of calls by the duration of one."""
        self.sample()
        self.calls = max(1, min(MAX_CALLS, int(SAMPLE_S / max(self.sample(), 1e-9))))

    def sample(self) -> float:
        """Calls, waits for the last result, and returns the seconds of one call."""
        duration_s, self.last = self.stage.time(self._call_often)
        return duration_s / self.calls

    def _call_often(self) -> jax.Array:
        for _ in range(self.calls):
            self.last = self.call()
        return self.last


@dataclass
class Matmul(ComputeCall):
    """Two matrices on one device."""

    n: int
    device: jax.Device

    def __post_init__(self) -> None:
        self.left = build_matrix(self.n, 1, self.stage.numpy_dtype)
        self.right = build_matrix(self.n, 2, self.stage.numpy_dtype)
        self.placed = [jax.device_put(matrix, self.device) for matrix in (self.left, self.right)]
        self.product = jax.jit(jnp.matmul, out_shardings=SingleDeviceSharding(self.device))
        self.choose_calls()

    def call(self) -> jax.Array:
        """Multiplies once."""
        product: jax.Array = self.product(*self.placed)
        return product

    def verify(self) -> Outcome:
        """Compares rows with NumPy's product in float64."""
        rows = choose_rows(self.n)
        got = np.asarray(self.last)[rows]
        return Outcome(count_off(got, multiply(self.left[rows], self.right), self.stage.dtype))


@dataclass
class Negation(ComputeCall):
    """Negates an array in place: its memory is donated to the result."""

    size_bytes: int
    device: jax.Device
    times: int = 0

    def __post_init__(self) -> None:
        self.host = build_host_array(self.stage, self.size_bytes // 2)
        self.negate = jax.jit(jnp.negative, donate_argnums=0, out_shardings=SingleDeviceSharding(self.device))
        self.last = jax.block_until_ready(jax.device_put(self.host, self.device))
        self.choose_calls()

    def call(self) -> jax.Array:
        """Negates once."""
        self.times += 1
        negated: jax.Array = self.negate(self.last)
        return negated

    def verify(self) -> Outcome:
        """Compares the result with the original array, negated as often."""
        expected = self.host if self.times % 2 == 0 else -self.host
        return Outcome(count_wrong(np.asarray(self.last), expected))

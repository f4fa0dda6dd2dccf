"""The check of a matmul, and the arrays that are sent; on one CPU device, in this process."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from meshwright_agent.children.bench.compute import ComputeCall, build_matrix, count_off, multiply
from meshwright_agent.children.bench.measure import Stage
from tests.fakes.stored import ManualClock

DTYPES = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_no_fault_and_one_wrong_element_is(dtype: str) -> None:
    n = 256
    left, right = (build_matrix(n, seed, jnp.dtype(dtype)) for seed in (1, 2))
    expected = multiply(left, right)
    got = expected.astype(jnp.dtype(dtype))
    assert count_off(got, expected, dtype) == 0
    got[3, 5] += got.dtype.type(1 + abs(float(got[3, 5])))
    got[7, 7] = np.nan
    assert count_off(got, expected, dtype) == 2


class Ticking(ComputeCall):
    """Work that takes 3 ms of the stage's clock."""

    def call(self) -> Any:
        self.stage.clock.advance(0.003)
        return jnp.zeros(1)

    def verify(self) -> Any:
        raise NotImplementedError


def test_a_sample_is_the_mean_of_the_calls_that_fill_twenty_milliseconds() -> None:
    work = Ticking(Stage({}, "cpu", "float32", ManualClock()))
    assert work.sample() == pytest.approx(0.003)
    work.choose_calls()
    assert work.calls == 6
    assert work.sample() == pytest.approx(0.003)

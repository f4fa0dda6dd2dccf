"""Numbers that come back only if every byte went where it should."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.children.bench.measure import choose_modulus

dtypes = st.sampled_from(["float32", "bfloat16", "float16"])


@given(dtypes, st.integers(1, 128))
def test_a_sum_over_the_ranks_is_exact_in_every_dtype(dtype: str, ranks: int) -> None:
    largest = choose_modulus(dtype, ranks) - 1
    total = np.array(0, jnp.dtype(dtype))
    for _ in range(ranks):
        total = (total + np.array(largest, jnp.dtype(dtype))).astype(jnp.dtype(dtype))
    assert float(total) == ranks * largest
    assert largest >= 1

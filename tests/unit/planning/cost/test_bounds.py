"""Bounds: at each of them compute and communication take the same time, written out here from the layer itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.collectives import time_all_gather, torus_wire
from meshwright.planning.search.batch import bound_fsdp_tokens, bound_matmul_tokens, bound_tensor_size
from meshwright.topology.chips import read_chips

D, F = 8192, 28672
COMPUTE = st.floats(1e13, 5e15)
LINK = st.floats(1e10, 1e12)
AXES = st.integers(1, 3)


@given(COMPUTE, st.floats(1e11, 1e13), st.sampled_from([1, 2, 4]))
def test_at_the_memory_bound_a_matmul_takes_as_long_as_reading_its_weights(
    flops_per_s: float, memory_bytes_per_s: float, weight_bytes: int
) -> None:
    tokens = bound_matmul_tokens(flops_per_s, memory_bytes_per_s, weight_bytes=weight_bytes)
    assert 2 * tokens * D * F / flops_per_s == pytest.approx(weight_bytes * D * F / memory_bytes_per_s)


@given(COMPUTE, LINK, AXES, st.sampled_from([1, 2, 4]))
def test_at_the_fsdp_bound_a_layer_takes_as_long_as_gathering_it(
    flops_per_s: float, link_bytes_per_s: float, axes: int, value_bytes: int
) -> None:
    tokens = bound_fsdp_tokens(flops_per_s, axes * 2 * link_bytes_per_s, value_bytes=value_bytes)
    wire = torus_wire(link_bytes_per_s, [16] * axes, [True] * axes, hop_s=0)
    assert 4 * tokens * D * F / flops_per_s == pytest.approx(2 * time_all_gather(value_bytes * D * F, wire))


@given(COMPUTE, LINK, AXES)
def test_at_the_tensor_bound_a_layer_takes_as_long_as_its_activations(
    flops_per_s: float, link_bytes_per_s: float, axes: int
) -> None:
    size = bound_tensor_size(flops_per_s, axes * 2 * link_bytes_per_s, F)
    wire = torus_wire(link_bytes_per_s, [16] * axes, [True] * axes, hop_s=0)
    tokens = 4096
    assert 4 * tokens * D * F / size / flops_per_s == pytest.approx(2 * time_all_gather(2 * tokens * D, wire))


def test_a_16_bit_matmul_has_the_bound_that_the_chip_table_tells() -> None:
    for chip in read_chips():
        known = bound_matmul_tokens(chip.flops_per_s, chip.memory_bytes_per_s)
        assert known == pytest.approx(chip.critical_batch_tokens)

"""Bounds: at each of them compute and communication take the same time, written out here from the layer itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.bounds import (
    Rates,
    bound_fsdp_tokens,
    bound_matmul_tokens,
    bound_mixed_tokens,
    bound_slice_tokens,
    bound_tensor_size,
    choose_fsdp_size,
    count_checkpoint_bytes,
    count_least_devices,
    count_training_flops,
    floor_to_power_of_two,
    list_bounds,
    round_to_power_of_two,
    time_training,
)
from meshwright.planning.cost.collectives import time_all_gather, torus_wire
from meshwright.topology.chips import find_chip, read_chips

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
    tokens = bound_fsdp_tokens(flops_per_s, 2 * link_bytes_per_s, axes=axes, value_bytes=value_bytes)
    wire = torus_wire(link_bytes_per_s, [16] * axes, [True] * axes, hop_s=0)
    assert 4 * tokens * D * F / flops_per_s == pytest.approx(2 * time_all_gather(value_bytes * D * F, wire))


@given(COMPUTE, LINK, AXES)
def test_at_the_tensor_bound_a_layer_takes_as_long_as_its_activations(
    flops_per_s: float, link_bytes_per_s: float, axes: int
) -> None:
    size = bound_tensor_size(flops_per_s, 2 * link_bytes_per_s, F, axes=axes)
    wire = torus_wire(link_bytes_per_s, [16] * axes, [True] * axes, hop_s=0)
    tokens = 4096
    assert 4 * tokens * D * F / size / flops_per_s == pytest.approx(2 * time_all_gather(2 * tokens * D, wire))


def price_mixed(tokens: float, fsdp: float, devices: int, wires: tuple[float, float]) -> float:
    """Seconds of FSDP's and tensor parallelism's communication in one layer forward."""
    tensor = devices / fsdp
    return 4 * D * F / tensor / wires[0] + 4 * tokens * D / fsdp / wires[1]


@given(st.floats(1e4, 1e8), st.integers(4, 9000), AXES, AXES, st.floats(0.2, 5))
def test_no_other_fsdp_size_communicates_less(
    tokens: float, devices: int, fsdp_axes: int, tensor_axes: int, factor: float
) -> None:
    best = float(choose_fsdp_size(tokens, F, devices, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes))
    wires = (1.8e11 * fsdp_axes, 1.8e11 * tensor_axes)
    least = price_mixed(tokens, best, devices, wires)
    assert least <= price_mixed(tokens, best * factor, devices, wires) * (1 + 1e-9)


@given(COMPUTE, LINK, AXES, AXES)
def test_at_the_mixed_bound_the_best_sizes_take_as_long_as_the_layer(
    flops_per_s: float, axis_bytes_per_s: float, fsdp_axes: int, tensor_axes: int
) -> None:
    devices = 4096
    known = bound_mixed_tokens(flops_per_s, axis_bytes_per_s, F, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes)
    tokens = float(known) * devices
    best = float(choose_fsdp_size(tokens, F, devices, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes))
    wires = (axis_bytes_per_s * fsdp_axes, axis_bytes_per_s * tensor_axes)
    assert price_mixed(tokens, best, devices, wires) == pytest.approx(4 * tokens * D * F / devices / flops_per_s)


@given(COMPUTE, LINK)
def test_at_the_network_bound_the_backward_pass_takes_as_long_as_its_gradients(
    flops_per_s: float, network_bytes_per_s: float
) -> None:
    tokens = bound_slice_tokens(flops_per_s, network_bytes_per_s)
    assert 8 * tokens * D * F / flops_per_s == pytest.approx(2 * 2 * (2 * D * F) / network_bytes_per_s)


def test_few_groups_and_dense_layers_need_fewer_tokens() -> None:
    many = bound_fsdp_tokens(990e12, 4e11)
    assert bound_fsdp_tokens(990e12, 4e11, groups=2) == pytest.approx(many / 2)
    assert bound_fsdp_tokens(990e12, 4e11, groups=1) == 0
    assert bound_fsdp_tokens(990e12, 4e11, experts_ratio=32) == pytest.approx(32 * many)


def test_bounds_of_candidates_come_as_an_array() -> None:
    axes = np.array([1, 2, 3])
    np.testing.assert_allclose(bound_fsdp_tokens(4.59e14, 1.8e11, axes=axes), [2550, 1275, 850])
    np.testing.assert_allclose(choose_fsdp_size(np.array([4e6, 16e6]), F, 1024) ** 2, np.array([4e6, 16e6]) * 1024 / F)


def test_a_16_bit_matmul_has_the_bound_that_the_chip_table_tells() -> None:
    for chip in read_chips():
        known = bound_matmul_tokens(chip.flops_per_s, chip.memory_bytes_per_s)
        assert known == pytest.approx(chip.critical_batch_tokens)


def test_a_part_of_a_device_is_a_device() -> None:
    assert count_least_devices(21.6e12, 96e9) == 225
    assert count_least_devices(96e9 + 1, 96e9) == 2
    assert count_least_devices(96e9, 96e9) == 1


def test_training_is_six_flops_a_parameter_and_token() -> None:
    flops = count_training_flops(70e9, 15e12)
    assert flops == 6.3e24
    assert time_training(flops, 1000, 1e15, 0.5) == 6.3e24 / 5e17


def test_checkpoints_are_kept_for_every_token_and_layer() -> None:
    assert count_checkpoint_bytes(4e6, 8192, 80, checkpoints=4) == 2 * 8192 * 4e6 * 4 * 80


SIZES = [(1618, 2048, 1024), (13.9, 16, 8), (11.6, 16, 8), (11, 8, 8), (1, 1, 1)]


@pytest.mark.parametrize(("value", "nearest", "below"), SIZES)
def test_sizes_are_rounded_to_powers_of_two(value: float, nearest: int, below: int) -> None:
    assert (round_to_power_of_two(value), floor_to_power_of_two(value)) == (nearest, below)


def read_v5p() -> Rates:
    chip = find_chip("v5p")
    assert chip is not None
    assert chip.link_bytes_per_s is not None
    return Rates(
        chip.flops_per_s, chip.memory_bytes_per_s, 2 * chip.link_bytes_per_s, 3, chip.scaleout_bytes_per_s, 8960
    )


def test_the_list_keeps_memory_links_and_network_apart_each_with_its_derivation() -> None:
    found = {bound.name: bound for bound in list_bounds(read_v5p(), inner_size=28672)}
    assert list(found) == ["memory", "fsdp", "tensor", "mixed", "network"]
    values = {name: round(bound.value, 1) for name, bound in found.items()}
    assert values == {"memory": 166.0, "fsdp": 850.0, "tensor": 11.2, "mixed": 453.6, "network": 73440.0}
    assert [bound.per for bound in found.values()] == ["device", "device", "axis", "device", "slice"]
    assert found["fsdp"].derivation == "4.59e+14 FLOP/s ÷ (1.8e+11 bytes/s an axis × 3)"
    assert all(bound.source.startswith("jax-ml/scaling-book") for bound in found.values())


def test_what_nobody_says_has_no_bound() -> None:
    alone = Rates(1e14, 1e12)
    assert [bound.name for bound in list_bounds(alone, inner_size=F)] == ["memory"]
    switched = replace(alone, axis_bytes_per_s=4.5e11)
    assert [bound.name for bound in list_bounds(switched, inner_size=F)] == ["memory", "fsdp", "tensor"]
    assert [bound.name for bound in list_bounds(read_v5p())] == ["memory", "fsdp", "network"]

"""Curves of matmuls: their form, their table, and what they say of matmuls that somebody measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.gemm import (
    Bends,
    Dtype,
    GemmCurve,
    find_curve,
    find_peak_flops_per_s,
    matmul_seconds,
    read_curves,
)
from meshwright.topology.chips import Chip, find_chip, read_chips

DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "fp8", "int8", "nvfp4")
SIZES = st.integers(min_value=1, max_value=1 << 18)

PLAIN = GemmCurve(flops_per_s=1e14, memory_bytes_per_s=1e12, bends=Bends(sharpness=64))


def find_known(name: str) -> Chip:
    chip = find_chip(name)
    assert chip is not None
    return chip


def test_without_bends_it_is_the_roofline() -> None:
    assert matmul_seconds(8192, 8192, 8192, PLAIN) == pytest.approx(2 * 8192**3 / 1e14, rel=1e-6)
    assert matmul_seconds(1, 8192, 8192, PLAIN) == pytest.approx(2 * (8192 + 8192**2 + 8192) / 1e12, rel=1e-6)


def test_each_bend_by_hand() -> None:
    fast = replace(PLAIN, memory_bytes_per_s=1e30)
    units = 2e-14
    cases = {
        Bends(tile_k=128): units * 10 * 256 * 30,
        Bends(m_extra=5): units * 15 * 200 * 30,
        Bends(k_extra=7): units * 10 * 207 * 30,
        Bends(n_extra=2): units * 10 * 200 * 32,
        Bends(wave_elements=400): units * 200 * 500,  # 300 elements and 400: 500, as 3, 4 and 5
        Bends(overhead_s=1e-6): units * 10 * 200 * 30 + 1e-6,
    }
    for bends, expected_s in cases.items():
        assert matmul_seconds(10, 200, 30, replace(fast, bends=bends)) == pytest.approx(expected_s, rel=1e-9)


def test_memory_reads_each_operand_and_weighs_the_result() -> None:
    slow = replace(PLAIN, flops_per_s=1e30, bends=Bends(result_weight=3), input_bytes=1.0, result_bytes=4.0)
    assert matmul_seconds(10, 20, 30, slow) == pytest.approx((200 + 600 + 3 * 4 * 300) / 1e12, rel=1e-9)


@given(m=SIZES, k=SIZES, n=SIZES, more=st.integers(min_value=0, max_value=1 << 18), place=st.integers(0, 2))
def test_no_curve_falls_where_a_size_grows_or_beats_the_peak(m: int, k: int, n: int, more: int, place: int) -> None:
    rows, depth, columns = (size + more * (axis == place) for axis, size in enumerate((m, k, n)))
    for chip in ("v5e", "tpu7x", "v2", "h100", "b200", "a100-pcie", "v100", "mi300x"):
        for dtype in DTYPES:
            curve = find_curve(chip, dtype)
            took_s = matmul_seconds(m, k, n, curve)
            assert matmul_seconds(rows, depth, columns, curve) >= took_s
            assert took_s > 2 * m * k * n / find_peak_flops_per_s(find_known(chip), dtype)


def test_sizes_broadcast_and_each_element_is_what_one_number_gives() -> None:
    m, k, n = np.array([1, 128, 4096]), np.array([[100], [8192]]), 640
    curve = find_curve("v5p")
    together = matmul_seconds(m, k, n, curve)
    assert together.shape == (2, 3)
    alone = [[float(matmul_seconds(int(row), int(depth), n, curve)) for row in m] for (depth,) in k]
    assert together.tolist() == alone


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        matmul_seconds(8, -1, 8, PLAIN)


def test_what_was_measured_replaces_the_rates_and_keeps_the_bends() -> None:
    curve = find_curve("v5e")
    measured = curve.with_measured(flops_per_s=1.5e14, memory_bytes_per_s=7e11)
    assert (measured.flops_per_s, measured.memory_bytes_per_s) == (1.5e14, 7e11)
    assert (measured.bends, measured.basis) == (curve.bends, "measured")
    assert curve.source in measured.source
    assert curve.with_measured(flops_per_s=1.5e14).memory_bytes_per_s == curve.memory_bytes_per_s
    assert curve.with_measured() == curve


@pytest.mark.parametrize("rate", [0.0, -1e12, float("nan"), float("inf")])
def test_a_measured_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        PLAIN.with_measured(memory_bytes_per_s=rate)


def test_every_chip_has_a_curve_of_every_dtype() -> None:
    for chip in read_chips():
        for dtype in DTYPES:
            curve = find_curve(chip, dtype)
            assert 0.3 < curve.flops_per_s / find_peak_flops_per_s(chip, dtype) <= 1
            assert 0.3 < curve.memory_bytes_per_s / chip.device_memory_bytes_per_s < 1
            assert curve.source


def test_a_chip_without_a_row_gets_no_more_than_what_somebody_measured_of_it() -> None:
    """668.4 of 1,307 TFLOP/s; where nobody measured, its platform's part."""
    assert find_curve("mi300x").flops_per_s == pytest.approx(6.68e14)
    assert find_curve("t4").flops_per_s == pytest.approx(read_curves()["gpu", "bfloat16"].flops_ratio * 6.5e13)


def test_a_device_is_a_part_of_a_chip() -> None:
    assert find_curve("tpu7x").flops_per_s < 2.307e15 / 2
    assert find_curve("tpu7x").memory_bytes_per_s < 7.38e12 / 2


def test_an_unknown_chip_or_dtype_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="v5e, h100"):
        find_curve("v9z")
    with pytest.raises(ValueError, match="bfloat16, float16, fp8"):
        find_curve("v5e", "float64")  # type: ignore[arg-type]

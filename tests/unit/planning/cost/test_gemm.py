"""Curves of matmuls: their form, their table, and what they say of matmuls that somebody measured."""

from __future__ import annotations

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


@given(m=SIZES, k=SIZES, n=SIZES, more=st.integers(min_value=0, max_value=1 << 18), place=st.integers(0, 2))
def test_no_curve_falls_where_a_size_grows_or_beats_the_peak(m: int, k: int, n: int, more: int, place: int) -> None:
    rows, depth, columns = (size + more * (axis == place) for axis, size in enumerate((m, k, n)))
    for chip in ("v5e", "tpu7x", "v2", "h100", "b200", "a100-pcie", "v100", "mi300x"):
        for dtype in DTYPES:
            curve = find_curve(chip, dtype)
            took_s = matmul_seconds(m, k, n, curve)
            assert matmul_seconds(rows, depth, columns, curve) >= took_s
            assert took_s > 2 * m * k * n / find_peak_flops_per_s(find_known(chip), dtype)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        matmul_seconds(8, -1, 8, PLAIN)


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


def test_an_unknown_chip_or_dtype_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="v5e, h100"):
        find_curve("v9z")
    with pytest.raises(ValueError, match="bfloat16, float16, fp8"):
        find_curve("v5e", "float64")  # type: ignore[arg-type]

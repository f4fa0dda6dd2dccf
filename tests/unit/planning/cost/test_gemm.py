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
    parse_curves,
    read_curves,
)
from meshwright.topology.chips import Chip, find_chip, read_chips
from tests.accuracy.gemm import COMPILER, FITTED, Fitted, build_rows, check

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


def test_compute_and_memory_of_the_same_length_overlap_by_the_norm() -> None:
    curve = GemmCurve(2 * 1000**3, 6 * 1000**2, Bends(sharpness=2))
    assert matmul_seconds(1000, 1000, 1000, curve) == pytest.approx(2**0.5, rel=1e-9)
    assert matmul_seconds(1000, 1000, 1000, replace(curve, bends=Bends(sharpness=1))) == pytest.approx(2, rel=1e-9)


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


def test_bytes_of_an_element_may_differ_between_candidates() -> None:
    sizes = (16, 8192, 8192)
    both = matmul_seconds(*sizes, replace(PLAIN, input_bytes=np.array([1.0, 2.0])))
    alone = [float(matmul_seconds(*sizes, replace(PLAIN, input_bytes=each))) for each in (1.0, 2.0)]
    assert both.tolist() == alone
    assert both[0] < both[1]


def test_nothing_to_multiply_takes_no_time() -> None:
    assert matmul_seconds(np.array([0, 5]), 128, 128, find_curve("h100"))[0] == 0
    assert matmul_seconds(128, 0, 128, find_curve("h100")) == 0


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


def test_the_basis_says_where_a_curve_comes_from() -> None:
    asked: dict[tuple[str, Dtype], str] = {
        ("v5e", "bfloat16"): "compiler",
        ("TPU v6e", "bfloat16"): "compiler",
        ("h100", "float16"): "measured",
        ("h200", "bfloat16"): "assumed",
        ("v3", "bfloat16"): "assumed",
        ("mi300x", "fp8"): "assumed",
        ("b200", "nvfp4"): "assumed",
    }
    assert {key: find_curve(*key).basis for key in asked} == asked


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


def test_a_table_that_lacks_a_column_or_has_another_basis_is_refused() -> None:
    good = "name,dtype,flops_ratio,memory_ratio,tile_k,m_extra,k_extra,n_extra,wave_elements,result_weight,sharpness"
    values = "x,bfloat16,0.9,0.8,1,0,0,0,0,1,4"
    with pytest.raises(ValueError, match="'overhead_s'"):
        parse_curves([good, values])
    with pytest.raises(ValueError, match="'guessed'"):
        parse_curves([f"{good},overhead_s,basis,source", f"{values},0,guessed,nobody"])


def test_the_table_is_what_the_refit_gives() -> None:
    """Constants within rounding; what hardly matters may end elsewhere with another numpy, so times decide."""
    rebuilt = {(row.name, row.dtype): row for row in build_rows()}
    table = read_curves()
    assert list(table) == list(rebuilt)
    sizes = np.array([64, 256, 1408, 4096, 28672])
    m, k, n = sizes[:, None, None], sizes[:, None], sizes
    for key, row in table.items():
        again = rebuilt[key]
        fits = [GemmCurve(r.flops_ratio * 1e15, r.memory_ratio * 3e12, r.bends) for r in (row, again)]
        times = [matmul_seconds(m, k, n, fit) for fit in fits]
        np.testing.assert_allclose(*times, rtol=0.005)
        assert row.flops_ratio == pytest.approx(again.flops_ratio, rel=0.002)
        assert row.source.partition(";")[0] == again.source.partition(";")[0]


@pytest.mark.parametrize("each", FITTED, ids=lambda each: f"{each.name}-{each.dtype}")
def test_a_curve_tells_half_of_its_shapes_within_7_percent(each: Fitted) -> None:
    errors = np.abs(check(each))
    assert len(errors) >= 30
    assert np.median(errors) < 0.07
    assert np.quantile(errors, 0.9) < 0.2


def test_large_matmuls_of_tpus_that_somebody_measured_and_no_fit_has_seen() -> None:
    """8192³ on v6e; squares on tpu7x; github.com/AI-Hypercomputer/accelerator-microbenchmarks."""
    assert abs(check(Fitted("v6e", "bfloat16", "microbenchmarks"))[0]) < 0.05
    squares = check(Fitted("tpu7x", "bfloat16", "microbenchmarks"))
    assert len(squares) == 8
    assert np.abs(squares[5:]).max() < 0.06  # 4,096 and more
    assert abs(squares[4]) < 0.2  # 2,048


@pytest.mark.parametrize(("chip", "dtype"), [("v5e", "int8"), ("tpu7x", "fp8")])
def test_eight_bits_on_a_tpu_take_the_16_bit_curve_at_their_own_peak(chip: str, dtype: Dtype) -> None:
    """As XLA's compiler has it, of shapes that no fit has seen in 8 bits."""
    errors = np.abs(check(Fitted(chip, dtype, COMPILER)))
    assert len(errors) == 8
    assert np.median(errors) < 0.2

"""What a matmul takes on one device: seconds by its shape, from a curve of a few constants for a chip and a dtype.

Rule: numpy in, numpy out; sizes are numbers or arrays over candidates and broadcast together. A curve never falls where
a size grows. Constants stand in `gemm.csv`, rates as parts of the chip table's peaks, each row with its source.
Knows no model: which matmuls there are is `work`.

What [m, k] × [k, n] takes is a start and the p-norm of two times: the matrix units', for which sizes are a little
larger than they are, and the memory's, which reads both operands once and writes the result once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.layout import Numbers
from meshwright.topology.chips import Chip, find_chip, read_table

Basis = Literal["compiler", "measured", "assumed"]
Dtype = Literal["bfloat16", "float16", "fp8", "int8", "nvfp4"]

_Sizes = NDArray[np.float64]


@dataclass(frozen=True)
class Bends:
    """How a curve bends away from its rates on small and odd sizes; constants of a fit.

    Attributes:
        tile_k: the contraction is rounded up to it; of the other two, odd sizes were not seen to cost more.
        m_extra, k_extra, n_extra: what each size costs as if it had more: what fills and drains.
        wave_elements: of the result; a smaller one takes the time of about so many, since units stand idle.
        result_weight: what a byte of the result costs, in bytes that are read.
        sharpness: p of the norm; the larger, the nearer to the larger of both times. At least 1.
        overhead_s: of each matmul, whatever its size; on GPUs the start of a kernel is in it.
    """

    tile_k: int = 1
    m_extra: float = 0.0
    k_extra: float = 0.0
    n_extra: float = 0.0
    wave_elements: float = 0.0
    result_weight: float = 1.0
    sharpness: float = 4.0
    overhead_s: float = 0.0


@dataclass(frozen=True)
class GemmCurve:
    """Constants of one device and dtype.

    Attributes:
        flops_per_s: what large matmuls approach.
        memory_bytes_per_s: what matmuls that do little else than read approach.
        input_bytes, result_bytes: an element of an operand, and of the result; one number, or one a candidate.
        basis: where the bends and rates come from: XLA's compiler for the chip, measurements of it, or other chips.
        source: which fit.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    bends: Bends
    input_bytes: Numbers = 2.0
    result_bytes: Numbers = 2.0
    basis: Basis = "assumed"
    source: str = ""

    def with_measured(self, *, flops_per_s: float | None = None, memory_bytes_per_s: float | None = None) -> GemmCurve:
        """Returns the curve with rates that were measured on this device; the bends stay.

        Args:
            flops_per_s: of a matmul in this dtype that is large enough for what the device can: 8192³.
            memory_bytes_per_s: of a copy through the device's memory, read and written together.

        Raises:
            ValueError: a rate is not positive.
        """
        given = {"flops_per_s": flops_per_s, "memory_bytes_per_s": memory_bytes_per_s}
        rates = {name: rate for name, rate in given.items() if rate is not None}
        for name, rate in rates.items():
            if not 0 < rate < float("inf"):
                raise ValueError(
                    f"measured {name} is {rate}; a rate is a positive number; leave it out where it is unknown"
                )
        if not rates:
            return self
        return replace(
            self,
            flops_per_s=rates.get("flops_per_s", self.flops_per_s),
            memory_bytes_per_s=rates.get("memory_bytes_per_s", self.memory_bytes_per_s),
            basis="measured",
            source=f"{' and '.join(rates)} measured on this device; bends: {self.source}",
        )


def matmul_seconds(m: Numbers, k: Numbers, n: Numbers, curve: GemmCurve) -> NDArray[np.float64]:
    """Returns what [m, k] × [k, n] takes on one device, in seconds; an array of the sizes' broadcast shape.

    Never falls where a size grows. A size of 0 takes no time: nothing runs.

    Raises:
        ValueError: a size is negative.

    Source: the form is that of the least left-out error in `tests/accuracy/gemm.py` at 548beb6; the memory's side is
    the roofline of Williams, Waterman, Patterson, "Roofline" (CACM 2009).
    """
    rows, depth, columns = (np.asarray(size, dtype=np.float64) for size in (m, k, n))
    if any((size < 0).any() for size in (rows, depth, columns)):
        raise ValueError(f"a matmul of [{m}, {k}] × [{k}, {n}] has a negative size; sizes are 0 or more")
    compute_s = _count_padded_flops(rows, depth, columns, curve.bends) / curve.flops_per_s
    memory_s = _count_weighed_bytes(rows, depth, columns, curve) / curve.memory_bytes_per_s
    busy_s = _add_overlapped(compute_s, memory_s, curve.bends.sharpness)
    return np.where(rows * depth * columns > 0, busy_s + curve.bends.overhead_s, 0.0)


def _count_padded_flops(m: _Sizes, k: _Sizes, n: _Sizes, bends: Bends) -> _Sizes:
    depth = np.ceil(k / bends.tile_k) * bends.tile_k + bends.k_extra
    return 2 * depth * np.hypot((m + bends.m_extra) * (n + bends.n_extra), bends.wave_elements)


def _count_weighed_bytes(m: _Sizes, k: _Sizes, n: _Sizes, curve: GemmCurve) -> _Sizes:
    """Returns bytes of operands and result, those of the result by their weight."""
    return (m * k + k * n) * curve.input_bytes + m * n * curve.result_bytes * curve.bends.result_weight


def _add_overlapped(one: _Sizes, other: _Sizes, sharpness: float) -> _Sizes:
    """Returns the p-norm, with the larger taken out so that no power leaves the range."""
    large, small = np.maximum(one, other), np.minimum(one, other)
    ratio = np.divide(small, large, out=np.zeros_like(large), where=large > 0)
    return large * (1 + ratio**sharpness) ** (1 / sharpness)


_INPUT_BYTES: Final[Mapping[Dtype, float]] = {"bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5625}
"""Of an element of an operand; nvfp4 has a byte of scale for each 16 elements. Results are of 16 bits."""


def find_curve(chip: str | Chip, dtype: Dtype = "bfloat16") -> GemmCurve:
    """Returns the curve of one JAX device of a chip.

    The row is the chip's own, else its family's, else its platform's; of the dtype, else of the nearest. A row of
    another dtype or of a platform is "assumed", and gives no more than the best that the chip table has as measured.

    Args:
        chip: or any name of it: "v5e", "h100", "A100 80GB SXM".
        dtype: of the operands; sums are of 32 bits.

    Raises:
        ValueError: no chip has this name, or no curve knows the dtype.
    """
    known = find_chip(chip) if isinstance(chip, str) else chip
    if known is None:
        raise ValueError(f"chip {chip!r} is in no table, so it has no curve; use one such as v5e, h100")
    if dtype not in _INPUT_BYTES:
        raise ValueError(f"dtype {dtype!r} has no curve; use one of {', '.join(_INPUT_BYTES)}")
    row = _find_row(known, dtype)
    return GemmCurve(
        flops_per_s=row.flops_ratio * find_peak_flops_per_s(known, dtype),
        memory_bytes_per_s=row.memory_ratio * known.device_memory_bytes_per_s,
        bends=row,
        input_bytes=_INPUT_BYTES[dtype],
        basis=row.basis,
        source=row.source,
    )


def find_peak_flops_per_s(chip: Chip, dtype: Dtype) -> float:
    """Returns the peak of one JAX device in FLOP/s; the one of 16 bits where a chip has no other, as it computes so.

    nvfp4 is twice fp8 where there is fp8 and the chip is of NVIDIA's Blackwell, whose units have it; elsewhere fp8's.

    Source: the chip table; stas00/ml-engineering, compute/accelerator/README.md (744d01e), which has 9,000 TFLOP/s of
    fp4 and 4,500 of fp8 for B200.
    """
    fp8 = chip.fp8_flops_per_s
    peaks: dict[Dtype, float | None] = {
        "fp8": fp8,
        "int8": chip.int8_ops_per_s,
        "nvfp4": fp8 and fp8 * (2 if chip.family in _HAS_FP4 else 1),
    }
    return (peaks.get(dtype) or chip.flops_per_s) / chip.jax_devices_per_chip


_HAS_FP4: Final = frozenset({"b200", "gb200", "b300", "gb300"})

_WIDER: Final[Mapping[Dtype, tuple[str, ...]]] = {
    "bfloat16": ("bfloat16",),
    "float16": ("bfloat16",),
    "int8": ("int8", "fp8", "bfloat16"),
    "fp8": ("fp8", "int8", "bfloat16"),
    "nvfp4": ("nvfp4", "fp8", "bfloat16"),
}
"""Whose row a dtype takes: its own, or the nearest that there is. float16 runs as bfloat16 does."""


@dataclass(frozen=True, kw_only=True)
class CurveRow(Bends):
    """One row of the table.

    Attributes:
        name: a chip's first alias, a family, or a platform for all others.
        flops_ratio, memory_ratio: parts of the published peaks.
    """

    name: str
    dtype: str
    flops_ratio: float
    memory_ratio: float
    basis: Basis
    source: str


@functools.cache
def read_curves() -> Mapping[tuple[str, str], CurveRow]:
    """Returns the table by name and dtype."""
    return {(row.name, row.dtype): row for row in read_table("meshwright.planning.cost", "gemm.csv", CurveRow)}


def _find_row(chip: Chip, dtype: Dtype) -> CurveRow:
    rows = read_curves()
    for name in (chip.aliases[0], chip.family, chip.platform):
        for kind in _WIDER[dtype]:
            if (row := rows.get((name, kind))) is not None:
                is_own = name != chip.platform and kind == _WIDER[dtype][0]
                return row if is_own else _assume(row, chip, dtype)
    raise AssertionError(f"gemm.csv has no row for {chip.platform}")


def _assume(row: CurveRow, chip: Chip, dtype: Dtype) -> CurveRow:
    """Returns a row that was fitted to something else, with no more than what was measured on this chip."""
    best = chip.measured_flops_per_s
    most = best / chip.flops_per_s if best and dtype in ("bfloat16", "float16") else 1.0
    return replace(row, flops_ratio=min(row.flops_ratio, most), basis="assumed")

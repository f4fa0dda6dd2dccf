"""Fits curves of matmuls to what was measured, or to what XLA's compiler says, and tells their left-out errors.

Rule: a form is judged by what it says of shapes that it was not fitted to: the other half of them, drawn at random, and
whole families of weights. Knows no table of curves: that is `tests.accuracy.gemm`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.planning.cost.gemm import Bends, Dtype, GemmCurve, find_peak_flops_per_s, matmul_seconds
from meshwright.topology.chips import Chip, find_chip
from tests.accuracy.gemm_compiler import WEIGHTS, read_compiled

MEASURED: Final = Path(__file__).with_name("data") / "gemm_measured.csv"

ML_ENGINEERING: Final = "stas00/ml-engineering, compute/accelerator/README.md (744d01e), best matmul of a search"

_XLA: Final = "XLA's profile of matmuls, xla/service/gpu/model/matmul_interpolator_data.h of jax-cuda12-plugin 0.10.2"

SOURCES: Final[Mapping[str, str]] = {
    "xla-h100": _XLA,
    "xla-b200": _XLA,
    "simumax-a100": "github.com/MooreThreads/SimuMax (4dcaae5), configs/system/a100_pcie.json",
    "simumax-b200": "github.com/MooreThreads/SimuMax (4dcaae5), configs/system/b200_bf16_ceperm.json",
    "microbenchmarks": "github.com/AI-Hypercomputer/accelerator-microbenchmarks",
}
"""Of the sets of `gemm_measured.csv`. XLA's have one matmul each of 256 to 4,096, SimuMax's those of training: forward,
gradient of inputs, gradient of weights (added to what is there, read and written). XLA's fp8 of H100 is left out of
every fit: from 2,048 on it is up to 2,424 TFLOP/s, above the peak of 1,979."""

BEST_RATIOS: Final[Mapping[tuple[str, Dtype], float]] = {
    ("a100", "bfloat16"): 271.2 / 312,
    ("a100-pcie", "bfloat16"): 252.9 / 312,
    ("h100", "bfloat16"): 794.5 / 989,
    ("b200", "bfloat16"): 1745.0 / 2250,
    ("gb200", "bfloat16"): 1822.0 / 2500,
    ("b300", "bfloat16"): 1769.0 / 2250,
    ("h100", "fp8"): 1402.6 / 1979,
    ("b200", "fp8"): 3432.5 / 4500,
    ("gb200", "fp8"): 3615.6 / 5000,
    ("b300", "fp8"): 3353.3 / 4500,
    ("v6e", "bfloat16"): 827.5 / 918,
    ("tpu7x", "bfloat16"): 956 / 1153.5,
}
"""What matmuls were seen to reach at best, of the peak: no curve approaches more, so that none goes on rising beyond
its shapes. Source: GPUs as `ML_ENGINEERING`, TPUs as the set "microbenchmarks"."""


@dataclass(frozen=True)
class Sample:
    """Matmuls [m, k] × [k, n] of one chip, dtype and set, and what each took; arrays of [sample].

    Attributes:
        input_bytes: read of the operands, for each of their elements.
        result_bytes: read and written of the result, for each of its elements.
        families: the weights of a shape, as one number each.
    """

    chip: Chip
    dtype: Dtype
    m: NDArray[np.float64]
    k: NDArray[np.float64]
    n: NDArray[np.float64]
    input_bytes: NDArray[np.float64]
    result_bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    families: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, chosen: NDArray[np.bool_]) -> Sample:
        """Returns a part."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("chip", "dtype")}
        return replace(self, **{name: array[chosen] for name, array in arrays.items()})


def read_compiled_sample(chip: str, dtype: Dtype) -> Sample:
    """Returns what the compiler says; of bytes, those that are not copied into VMEM before.

    The result of int8 is int32 in these programs; the compiler has it cost about what one of 16 bits does.
    """
    rows = [row for row in read_compiled() if (row.chip, row.dtype) == (chip, dtype)]
    size = 2.0 if dtype == "bfloat16" else 1.0
    m, k, n, prefetched, seconds = np.array([(r.m, r.k, r.n, r.prefetched_bytes, r.seconds) for r in rows], float).T
    inputs = m * k + k * n
    places = {pair: place for place, pair in enumerate(WEIGHTS)}
    families = np.array([places.get((row.k, row.n), places.get((row.m, row.n), -1)) for row in rows])
    assert (families >= 0).all()
    read = np.maximum(size - prefetched / inputs, 0)
    return Sample(_find(chip), dtype, m, k, n, read, np.full(len(rows), 2.0), seconds, families)


def read_measured_sample(of: str, chip: str, dtype: Dtype) -> Sample:
    """Returns a set of what was measured."""
    with MEASURED.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if (row["set"], row["chip"], row["dtype"]) == (of, chip, dtype)]
    columns = ("m", "k", "n", "input_bytes", "output_bytes", "seconds")
    m, k, n, inputs, results, seconds = np.array([[float(row[name]) for name in columns] for row in rows]).T
    _, families = np.unique(np.stack([k, n]), axis=1, return_inverse=True)
    return Sample(_find(chip), dtype, m, k, n, inputs, results, seconds, families.reshape(-1))


def _find(name: str) -> Chip:
    chip = find_chip(name)
    assert chip is not None, name
    return chip


@dataclass(frozen=True)
class Form:
    """A form of the curve: which constants are fitted, and what the others are."""

    free: tuple[str, ...]
    bends: Bends = field(default_factory=lambda: Bends(sharpness=64))
    has_memory: bool = True


_NORM: Final = ("flops_ratio", "memory_ratio", "sharpness", "overhead_s")

CONSTANT: Final = Form(("flops_ratio",), has_memory=False)
ROOFLINE: Final = Form(("flops_ratio", "memory_ratio"))
SIMPLE: Final[Mapping[str, Form]] = {
    "constant": CONSTANT,
    "roofline": ROOFLINE,
    "p-norm and start": Form(_NORM),
    "and larger sizes": Form((*_NORM, "m_extra", "k_extra", "n_extra")),
}
TPU: Final = Form((*_NORM, "m_extra", "n_extra", "result_weight"), Bends(tile_k=128))
GPU: Final = Form((*_NORM, "k_extra", "wave_elements"))
FORMS: Final[Mapping[str, Mapping[str, Form]]] = {
    "tpu": {**SIMPLE, "chosen, but for the tile": Form(TPU.free), "chosen": TPU},
    "gpu": {**SIMPLE, "chosen": GPU},
}

LIMITS: Final[Mapping[str, tuple[float, float, float]]] = {
    "flops_ratio": (0.2, 0.7, 1.0),
    "memory_ratio": (0.05, 0.7, 0.95),
    "m_extra": (0.01, 20, 500),
    "k_extra": (0.01, 50, 2000),
    "n_extra": (0.01, 20, 500),
    "wave_elements": (1.0, 5e5, 5e6),
    "result_weight": (0.5, 1.5, 6),
    "sharpness": (1, 3, 12),
    "overhead_s": (1e-8, 3e-6, 5e-5),
}
"""Least, where the fit begins, and most. No memory gives more than 95 % of its peak: what does was in a cache."""

STARTS: Final = 3
SOFT: Final = 0.05
"""Errors beyond 5 % count less than their square, so that a few odd shapes do not bend a curve."""


@dataclass(frozen=True)
class Fit:
    """Constants, rates as parts of the peaks."""

    flops_ratio: float
    memory_ratio: float
    bends: Bends

    def predict(self, sample: Sample) -> NDArray[np.float64]:
        """Returns seconds of each matmul; [sample]."""
        curve = GemmCurve(
            self.flops_ratio * find_peak_flops_per_s(sample.chip, sample.dtype),
            self.memory_ratio * sample.chip.device_memory_bytes_per_s,
            self.bends,
            sample.input_bytes,
            sample.result_bytes,
        )
        return matmul_seconds(sample.m, sample.k, sample.n, curve)


def fit_form(sample: Sample, form: Form) -> Fit:
    """Returns the constants of least soft error in the logarithm of seconds, the best of a few beginnings."""
    least, begin, most = np.log([LIMITS[name] for name in form.free]).T
    most[0] = np.log(BEST_RATIOS.get((sample.chip.aliases[0], sample.dtype), 1.0))
    wanted = np.log(sample.seconds)

    def miss(constants: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(_build_fit(form, constants).predict(sample)) - wanted

    found = [
        least_squares(miss, start, bounds=(least, most), loss="soft_l1", f_scale=SOFT, max_nfev=300)
        for start in _list_starts(least, begin, most)
    ]
    return _build_fit(form, min(found, key=lambda each: float(each.cost)).x)


def _list_starts(
    least: NDArray[np.float64], begin: NDArray[np.float64], most: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    for seed in range(STARTS):
        moved = begin + (np.random.default_rng(seed).normal(0, 0.7, len(begin)) if seed else 0)
        yield np.clip(moved, least + 1e-3, most - 1e-3)


def _build_fit(form: Form, constants: NDArray[np.float64]) -> Fit:
    known = dict(zip(form.free, map(float, np.exp(constants)), strict=True))
    flops, memory = known.pop("flops_ratio"), known.pop("memory_ratio", 1.0)
    return Fit(flops, memory if form.has_memory else 1e9, replace(form.bends, **known))


def round_fit(fit: Fit) -> Fit:
    """Returns constants as the table has them: four digits, and none of an extra below a twentieth."""
    extras = {f.name: _round(getattr(fit.bends, f.name)) for f in fields(Bends) if f.name != "tile_k"}
    gone = {name: 0.0 for name in ("m_extra", "k_extra", "n_extra") if extras[name] < 0.05}
    return Fit(_round(fit.flops_ratio), _round(fit.memory_ratio), replace(fit.bends, **extras | gone))


def _round(value: float) -> float:
    return float(f"{value:.4g}")


Split = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""What is fitted, and what is left out."""


def split_halves(sample: Sample) -> Iterator[Split]:
    """Yields random halves, each left out once."""
    for seed in range(3):
        first = np.zeros(len(sample), dtype=bool)
        first[np.random.default_rng(seed).permutation(len(sample))[: len(sample) // 2]] = True
        yield first, ~first
        yield ~first, first


def split_families(sample: Sample, folds: int = 5) -> Iterator[Split]:
    """Yields fifths of the families of weights, each left out once."""
    names = np.random.default_rng(0).permutation(np.unique(sample.families))
    for fold in range(folds):
        out = np.isin(sample.families, names[fold::folds])
        yield ~out, out


def find_errors(sample: Sample, form: Form, split: Callable[[Sample], Iterable[Split]]) -> NDArray[np.float64]:
    """Returns the relative errors of what was left out."""
    return np.concatenate([compare(fit_form(sample.take(kept), form), sample.take(out)) for kept, out in split(sample)])


def compare(fit: Fit, sample: Sample) -> NDArray[np.float64]:
    """Returns the relative errors, signed: above 0 where the curve says too long."""
    return fit.predict(sample) / sample.seconds - 1

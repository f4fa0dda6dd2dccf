"""`python -m tests.accuracy.gemm`: refits the curves of matmuls and prints their left-out errors; `--write` the table.

Rule: every row of `planning/cost/gemm.csv` is made here, from the rows of `data/gemm_*.csv`; a row without data of its
own says whose it took. `--compile` asks XLA's TPU compiler for what `data/gemm_compiler.csv` lacks.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import meshwright.planning.cost.gemm as curves
from meshwright.planning.cost.gemm import Basis, Bends, CurveRow, Dtype
from tests.accuracy.gemm_compiler import CHIPS, ask_compiler, read_compiled
from tests.accuracy.gemm_fit import (
    BEST_RATIOS,
    FORMS,
    ML_ENGINEERING,
    SOURCES,
    Fit,
    Sample,
    compare,
    find_errors,
    fit_form,
    read_compiled_sample,
    read_measured_sample,
    round_fit,
    split_families,
    split_halves,
)

TABLE: Final = Path(curves.__file__).with_name("gemm.csv")
COMPILER: Final = "XLA's TPU compiler"


@dataclass(frozen=True)
class Fitted:
    """A row that has data of its own: which."""

    name: str
    dtype: Dtype
    of: str

    @property
    def basis(self) -> Basis:
        """Who says what matmuls take."""
        return "compiler" if self.of == COMPILER else "measured"

    def read(self) -> Sample:
        """Returns its data."""
        if self.of == COMPILER:
            return read_compiled_sample(self.name, self.dtype)
        return read_measured_sample(self.of, self.name, self.dtype)


FITTED: Final = (
    *(Fitted(chip, "bfloat16", COMPILER) for chip in CHIPS),
    Fitted("a100-pcie", "bfloat16", "simumax-a100"),
    Fitted("h100", "bfloat16", "xla-h100"),
    Fitted("b200", "bfloat16", "xla-b200"),
    Fitted("b200", "fp8", "xla-b200"),
)

CHECKED: Final = (
    Fitted("v5e", "int8", COMPILER),
    Fitted("v6e", "int8", COMPILER),
    Fitted("tpu7x", "fp8", COMPILER),
    Fitted("v6e", "bfloat16", "microbenchmarks"),
    Fitted("tpu7x", "bfloat16", "microbenchmarks"),
    Fitted("b200", "bfloat16", "simumax-b200"),
)
"""In no fit: how far the curves are from it. What is of 8 bits on a TPU takes its 16-bit row, at the peak of 8."""

TAKEN: Final[Mapping[tuple[str, Dtype], tuple[str, Dtype]]] = {
    ("a100", "bfloat16"): ("a100-pcie", "bfloat16"),
    ("h100", "fp8"): ("h100", "bfloat16"),
    ("gb200", "bfloat16"): ("b200", "bfloat16"),
    ("b300", "bfloat16"): ("b200", "bfloat16"),
    ("gb300", "bfloat16"): ("b200", "bfloat16"),
    ("gb200", "fp8"): ("b200", "fp8"),
    ("b300", "fp8"): ("b200", "fp8"),
    ("gb300", "fp8"): ("b200", "fp8"),
}
"""Whose bends a row takes that has only a best matmul of its own, or (GB300) of its sister B300."""

SISTERS: Final = {"gb300": "b300"}


def build_rows() -> list[CurveRow]:
    """Returns the table: what is fitted, what is taken from another, and a row of each platform for all others."""
    fitted = [build_fitted(each) for each in FITTED]
    known = {(row.name, row.dtype): row for row in fitted}
    taken = [_take(name, dtype, known[whose]) for (name, dtype), whose in TAKEN.items()]
    return [*fitted, *taken, *_build_platforms(fitted)]


@functools.cache
def build_fitted(each: Fitted) -> CurveRow:
    """Returns the row of a fit to all of its data."""
    sample = each.read()
    fit = round_fit(fit_form(sample, FORMS[sample.chip.platform]["chosen"]))
    halves = _tell(find_errors(sample, FORMS[sample.chip.platform]["chosen"], split_halves))
    source = f"fit to {len(sample)} matmuls by {_name_source(each)}; left-out median and p90 {halves} %"
    best = BEST_RATIOS.get((each.name, each.dtype), 1.0)
    bound = f"; rate: the best that was measured, {best:.1%} of peak" if fit.flops_ratio > 0.999 * best else ""
    return CurveRow(each.name, each.dtype, fit.flops_ratio, fit.memory_ratio, fit.bends, each.basis, source + bound)


def _name_source(each: Fitted) -> str:
    if each.of != COMPILER:
        return SOURCES[each.of]
    versions = {row.source for row in read_compiled() if (row.chip, row.dtype) == (each.name, each.dtype)}
    return " and ".join(sorted(versions))


def _take(name: str, dtype: Dtype, row: CurveRow) -> CurveRow:
    """Returns a row with another's bends, and the same part of its own best matmul."""
    whose: Dtype = "fp8" if row.dtype == "fp8" else "bfloat16"
    best = BEST_RATIOS[SISTERS.get(name, name), dtype]
    ratio = float(f"{row.flops_ratio / BEST_RATIOS[row.name, whose] * best:.4g}")
    basis: Basis = "assumed" if name in SISTERS else "measured"
    source = (
        f"{row.dtype} of {row.name} but for the rate: {ML_ENGINEERING} {best:.1%} of peak"
        f"{' of ' + SISTERS[name] if name in SISTERS else ''}"
    )
    return CurveRow(name, dtype, ratio, row.memory_ratio, row.bends, basis, source)


def _build_platforms(fitted: Sequence[CurveRow]) -> Iterator[CurveRow]:
    """Yields the medians of each platform's constants, for the chips that have no row."""
    tpus = [row for row in fitted if row.basis == "compiler" and row.dtype == "bfloat16"]
    gpus = [row for row in fitted if row.basis == "measured" and row.dtype == "bfloat16"]
    for name, rows in (("tpu", tpus), ("gpu", gpus)):
        source = f"medians of the constants of {', '.join(row.name for row in rows)}"
        yield CurveRow(
            name,
            "bfloat16",
            _find_median([row.flops_ratio for row in rows]),
            _find_median([row.memory_ratio for row in rows]),
            _find_middle([row.bends for row in rows]),
            "assumed",
            source,
        )


def _find_middle(bends: Sequence[Bends]) -> Bends:
    found: dict[str, Any] = {
        field.name: _find_median([getattr(b, field.name) for b in bends]) for field in fields(Bends)
    }
    return Bends(**{name: int(value) if name == "tile_k" else value for name, value in found.items()})


def _find_median(values: Sequence[float]) -> float:
    return float(f"{np.median(values):.4g}")


def write_rows(rows: Sequence[CurveRow]) -> str:
    """Returns the text of the table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    bends = [field.name for field in fields(Bends)]
    writer.writerow(["name", "dtype", "flops_ratio", "memory_ratio", *bends, "basis", "source"])
    for row in rows:
        numbers = [row.flops_ratio, row.memory_ratio, *(getattr(row.bends, name) for name in bends)]
        writer.writerow([row.name, row.dtype, *(f"{number:g}" for number in numbers), row.basis, row.source])
    return text.getvalue()


def list_lines() -> Iterator[str]:
    """Yields the lines of the report: forms by their left-out errors, and what no curve was fitted to."""
    yield "median / p90 of the relative error of what was left out, %: random halves | families of weights"
    for each in FITTED:
        sample = each.read()
        yield f"{each.name} {each.dtype}: {len(sample)} matmuls by {_name_source(each)}"
        for name, form in FORMS[sample.chip.platform].items():
            halves, families = (_tell(find_errors(sample, form, split)) for split in (split_halves, split_families))
            yield f"  {name:24} {halves:>14} | {families:>14}"
    yield "in no fit"
    for each in CHECKED:
        errors = check(each)
        name = f"{each.name} {each.dtype}, {each.of}"
        yield f"  {name}: {len(errors)} matmuls, {_tell(errors)}, median with its sign {np.median(errors):+.1%}"


def check(each: Fitted) -> NDArray[np.float64]:
    """Returns the relative errors of the curve that the library gives, signed."""
    sample, curve = each.read(), curves.find_curve(each.name, each.dtype)
    flops_ratio = curve.flops_per_s / curves.find_peak_flops_per_s(sample.chip, each.dtype)
    memory_ratio = curve.memory_bytes_per_s / sample.chip.device_memory_bytes_per_s
    return compare(Fit(flops_ratio, memory_ratio, curve.bends), sample)


def _tell(errors: NDArray[np.float64]) -> str:
    sizes = 100 * np.abs(errors)
    return f"{np.median(sizes):.1f} / {np.quantile(sizes, 0.9):.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where the table is another than the refit gives."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.gemm", description=__doc__)
    parser.add_argument("--compile", action="store_true", help="ask the compiler for the rows that its table lacks")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    asked = parser.parse_args(arguments)
    if asked.compile and (status := ask_all()):
        return status
    text = write_rows(build_rows())
    if asked.write:
        TABLE.write_text(text, encoding="utf-8")
        curves.read_curves.cache_clear()
    for line in list_lines():
        print(line, flush=True)
    if TABLE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TABLE.name} is another than the refit; --write writes it", file=sys.stderr)
    return 1


def ask_all() -> int:
    """Asks the compiler for every fit; returns a child's exit status that is not 0, else 0."""
    wanted: dict[Dtype, list[str]] = {}
    for each in FITTED:
        if each.of == COMPILER:
            wanted.setdefault(each.dtype, []).append(each.name)
    return next((status for dtype, chips in wanted.items() if (status := ask_compiler(chips, dtype))), 0)


if __name__ == "__main__":
    sys.exit(main())

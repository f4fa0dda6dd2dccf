"""Constants of a step on TPUs, fitted to MaxText's published runs: rows of `constants.csv` and `intervals.csv`.

    python -m tests.accuracy.tpu            the fit, and errors of runs left out by chip and model, and by chip
    python -m tests.accuracy.tpu --write    and puts its rows into both tables

Rule: a few constants for all TPUs, each with a prior; only what matmuls reach may differ by chip, and is held near the
others'. Fitted are logarithms of seconds; a row that is far off counts by its distance, not by its square. Nothing is
keyed by a model or a row.
"""

from __future__ import annotations

import csv
import functools
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.gemm import find_curve, find_peak_flops_per_s
from meshwright.planning.cost.practice import Constant, Practice, Spread
from meshwright.planning.cost.remat import Output, find_repeated
from meshwright.planning.cost.spans import Spans, lay_on_torus
from meshwright.planning.cost.step_time import Execution, Machine, StepTime, price_step
from meshwright.planning.cost.work import Work, build_work
from meshwright.targets import TargetSpec
from meshwright.topology.targets import build_target
from tests.accuracy.cost_tables import find_quantiles
from tests.accuracy.evaluate import LEAST_RESIDUALS, Fold, Prediction, Predictor, Row, add_intervals, by_fold, by_row
from tests.accuracy.metrics import measure_coverage, summarize_errors
from tests.accuracy.null import CONSTANT
from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs, select_timed

SET: Final = "maxtext"
PRACTICES: Final = ("maxtext", "xla")
_COST: Final = Path(str(files("meshwright.planning.cost")))
TABLE: Final = _COST / "constants.csv"
SPREADS: Final = _COST / "intervals.csv"
COLUMNS: Final = tuple(field.name for field in fields(Constant))
SPREAD_COLUMNS: Final = tuple(field.name for field in fields(Spread))

KEPT: Final[Mapping[str, tuple[Output, ...]]] = {
    "full": (),
    "minimal": (),
    "custom: layer inputs, q, k, v offloaded": ("qkv",),
    "custom: context, second MLP matmul offloaded": ("context", "mlp_out"),
    "custom: layer inputs, second MLP matmul offloaded": ("mlp_out",),
    "custom: layer inputs, context kept": ("context",),
    "custom: layer inputs, context, second MLP matmul kept": ("context", "mlp_out"),
    "save_dot_except_mlpwi": ("qkv", "attention_out", "mlp_out"),
}
"""What the backward pass finds, by what a row says of its remat. Layer inputs are kept by each of them.

Source: AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy."""

BASE: Final = Practice(
    memory=0.83,
    hidden=4.0,
    network=1.0,
    tensor_latency_s=0.0,
    network_latency_s=0.0,
    optimizer_bytes=28.0,
    logits_bytes=16.0,
    traffic=8.0,
    traffic_cut=8.0,
)
"""Constants that are not fitted: the published runs cannot tell them from others."""

GIVEN: Final[Mapping[str, tuple[str, str]]] = {
    "memory": ("ratio", "HBM copy on v6e, 1359.6 of 1640 GB/s: AI-Hypercomputer/accelerator-microbenchmarks"),
    "hidden": ("1", "assumed; with 2 or 8 in its place left-out runs come to 2.3 / 6.1 % and 2.5 / 6.6 %"),
    "network": ("ratio", "what links reach stands in reached.csv"),
    "tensor_latency_s": ("s", "the hops' latency stands in collectives.py"),
    "network_latency_s": ("s", "the hops' latency stands in collectives.py"),
    "optimizer_bytes": ("bytes", "counted: Adam reads weight, gradient and two moments, writes three, 4 B each"),
    "logits_bytes": ("bytes", "counted: written and read twice in float32, gradient written and read in 16 bits"),
    "traffic": ("1", "assumed: norms and residuals; with 4 or 16 left-out runs come to 2.3 / 6.7 % and 2.8 / 7.0 %"),
    "traffic_cut": ("1", "assumed: queries, keys, values, gate; with 4 or 16: 3.0 / 6.8 % and 1.9 / 6.1 %"),
}
"""Unit and reason of each of them."""


@dataclass(frozen=True)
class Prior:
    """What a constant is before any run is seen: its median, and how far its logarithm strays."""

    value: float
    spread: float
    unit: str = "ratio"


SHARED: Final[Mapping[str, Prior]] = {
    "matmul": Prior(0.85, 0.1),
    "attention": Prior(0.4, 0.3),
    "exposed": Prior(0.3, 0.7),
    "tensor": Prior(1.5, 0.5),
    "straggle": Prior(0.02, 0.7),
}
FAMILIES: Final = ("tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_7x")
FAMILY_SPREAD: Final = 0.08
"""Of a family's `matmul` around the shared one."""

ERROR: Final = 0.03
"""What is left of a good row: the spread of runs of the same step in the collection."""
ROBUST: Final = 1.5
"""Rows off by more than so many `ERROR` count by their distance. Source: Huber, Robust Statistics (1981)."""
_STEP: Final = 1e-3
_ROUNDS: Final = 8


@dataclass(frozen=True)
class TpuConstants:
    """A fit: constants for all TPUs, and `matmul` by family; a family that is not there has the shared one."""

    practice: Practice
    matmul: Mapping[str, float]

    def find_practice(self, family: str) -> Practice:
        """Returns the constants of one family."""
        return replace(self.practice, matmul=self.matmul.get(family, self.practice.matmul))


@dataclass(frozen=True)
class TpuCase:
    """A run as the formulas take it."""

    run: Run
    family: str
    work: Work
    machine: Machine
    spans: Spans
    execution: Execution


def fit(runs: Sequence[Run]) -> TpuConstants:
    """Returns constants fitted to those of the runs that are MaxText's on TPUs."""
    return _fit(tuple(run for run in select_timed(runs) if run.set_name == SET))


def predict(constants: TpuConstants, runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Returns the seconds of each run on TPUs, and nothing of others."""
    return tuple(Prediction(step_s=price_run(constants, run)) if is_tpu(run) else Prediction() for run in runs)


def is_tpu(run: Run) -> bool:
    """True where the run is on TPUs."""
    return run.find_chip().platform == "tpu"


def build_execution(run: Run, work: Work) -> Execution:
    """Returns how MaxText runs a step: gradients are summed in 16 bits, as XLA's TPU compiler lets them (their
    collectives in tests/compiler/steps/estimates.jsonl)."""
    repeated = find_repeated(work, KEPT[run.published_recompute])
    return Execution(
        gradient_bytes=2.0,
        weight_bytes=2.0,
        repeated_matmuls=repeated.matmuls,
        repeated_attention=repeated.attention,
    )


TPU: Final = Predictor("step-time model, fitted to TPUs", fit, predict)


def price_run(constants: TpuConstants, run: Run) -> float:
    """Returns the seconds of a step."""
    return float(price_parts(constants, run).total_s)


def price_parts(constants: TpuConstants, run: Run) -> StepTime:
    """Returns the seconds of a step by part."""
    case = build_case(run)
    practice = constants.find_practice(case.family)
    return price_step(case.work, run.layout, case.machine, case.spans, practice, case.execution)


@functools.cache
def build_case(run: Run) -> TpuCase:
    """Returns the run's work, device, wires and framework."""
    chip, target = run.find_chip(), TargetSpec.parse(run.target)
    granule = build_target(replace(target, granules=1)).granules[0]
    parts = chip.jax_devices_per_chip
    work = build_work(run.model, run.sequence_length)
    return TpuCase(
        run=run,
        family=chip.family,
        work=work,
        machine=Machine(
            find_peak_flops_per_s(chip, "bfloat16"), chip.device_memory_bytes_per_s, find_curve(chip, "bfloat16")
        ),
        spans=lay_on_torus(
            run.layout,
            chip.family,
            granule.shape or (),
            granule.wrap or (),
            (chip.link_bytes_per_s or 0.0) / parts,
            (chip.scaleout_bytes_per_s or 0.0) / parts,
            parts,
        ),
        execution=build_execution(run, work),
    )


@functools.cache
def _fit(runs: tuple[Run, ...]) -> TpuConstants:
    """Returns the posterior's mode by Gauss-Newton; weights of far rows are set anew each round."""
    center = np.array([*(np.log(prior.value) for prior in SHARED.values()), *(0.0 for _ in FAMILIES)])
    spread = np.array([*(prior.spread for prior in SHARED.values()), *(FAMILY_SPREAD for _ in FAMILIES)])
    at = center
    for _ in range(_ROUNDS):
        errors = _measure_errors(at, runs)
        slopes = np.stack([(_measure_errors(at + move, runs) - errors) / _STEP for move in np.eye(at.size) * _STEP], 1)
        weights = np.sqrt(np.minimum(1, ROBUST * ERROR / np.maximum(np.abs(errors), 1e-12))) / ERROR
        rows = np.concatenate([slopes * weights[:, None], np.diag(1 / spread)])
        goals = np.concatenate([-errors * weights, (center - at) / spread])
        at = at + np.linalg.lstsq(rows, goals, rcond=None)[0]
    return _read_constants(at)


def _measure_errors(at: NDArray[np.floating[Any]], runs: Sequence[Run]) -> NDArray[np.float64]:
    constants = _read_constants(at)
    return np.array([np.log(price_run(constants, run) / (run.step_s or np.nan)) for run in runs])


def _read_constants(at: NDArray[np.floating[Any]]) -> TpuConstants:
    values = dict(zip(SHARED, map(float, np.exp(at)), strict=False))
    factors = map(float, np.exp(at[len(SHARED) :]))
    families = {name: values["matmul"] * factor for name, factor in zip(FAMILIES, factors, strict=True)}
    return TpuConstants(replace(BASE, **values), families)


def build_rows(constants: TpuConstants, runs: Sequence[Run], errors: str) -> list[dict[str, str]]:
    """Returns the rows of `constants.csv` for TPUs.

    Args:
        constants: the fit.
        runs: that it was fitted to.
        errors: what runs that were left out come to, in words.
    """
    told = f"fit to {len(runs)} published runs of MaxText, tests/accuracy/tpu.py; left out by chip and model: {errors}"
    found: list[dict[str, str]] = []
    for practice in PRACTICES:
        source = told if practice == SET else f"as maxtext, whose runs are tuned: {told}"

        def add(family: str, name: str, value: float, unit: str, source: str, practice: str = practice) -> None:
            cells = (practice, "tpu", family, name, f"{value:.4g}", unit, source)
            found.append(dict(zip(COLUMNS, cells, strict=True)))

        for name, prior in SHARED.items():
            add("", name, getattr(constants.practice, name), prior.unit, source)
        for family, value in constants.matmul.items():
            add(family, "matmul", value, "ratio", source)
        for name, (unit, reason) in GIVEN.items():
            add("", name, getattr(BASE, name), unit, reason)
    return found


def build_spreads(known: Sequence[Row], strange: Sequence[Row]) -> list[dict[str, str]]:
    """Returns the rows of `intervals.csv` for TPUs: quantiles of ln(measured ÷ predicted).

    A family has its own residuals where there are enough, else those of all TPUs. For a family without runs, and for
    frameworks without runs, count the residuals of runs whose whole family was left out: families weigh alike, and as
    there are few, bounds are set apart as those of GPUs are (`find_quantiles`).

    Args:
        known: judged without their chip and model.
        strange: judged without their chip.
    """
    every = f"{len(known)} published runs of MaxText left out by chip and model"
    found: list[dict[str, str]] = []

    def add(practice: str, family: str, rows: Sequence[Row], bounds: tuple[float, float], source: str) -> None:
        low, high = bounds
        cells = (practice, "tpu", family, f"{low:.4f}", f"{high:.4f}", str(len(rows)), source)
        found.append(dict(zip(SPREAD_COLUMNS, cells, strict=True)))

    for family in FAMILIES:
        own = [row for row in known if row.run.chip_group == family]
        rows, source = (own, f"those of {family} among {every}") if len(own) >= LEAST_RESIDUALS else (known, every)
        add(SET, family, rows, _find_plain_quantiles(rows), source)
    strangers = f"{len(strange)} published runs of MaxText left out by chip"
    bounds = find_quantiles(strange, fold=by_chip)
    add(SET, "", strange, bounds, strangers)
    for practice in ("xla", ""):
        add(practice, "", strange, bounds, f"{strangers}; none of another framework is at hand")
    return found


def _find_plain_quantiles(rows: Sequence[Row]) -> tuple[float, float]:
    low, high = np.quantile([-np.log1p(row.error or 0.0) for row in rows], [0.1, 0.9])
    return float(low), float(high)


def add_strange_intervals(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Returns rows that were judged without their family with the intervals of a plan, from other families alone."""
    families = dict.fromkeys(row.run.chip_group for row in rows)
    bounds = {
        family: np.exp(find_quantiles([row for row in rows if row.run.chip_group != family], fold=by_chip))
        for family in families
    }
    return tuple(_add_bounds(row, *map(float, bounds[row.run.chip_group])) for row in rows)


def _add_bounds(row: Row, low: float, high: float) -> Row:
    step_s = row.prediction.step_s or 0.0
    return replace(row, prediction=replace(row.prediction, low_s=step_s * low, high_s=step_s * high))


def write_rows(rows: Iterable[Mapping[str, str]], columns: Sequence[str], path: Path) -> None:
    """Puts rows into a table in place of all that it has for TPUs; others stay."""
    others: list[dict[str, Any]] = []
    if path.exists():
        others = [row for row in csv.DictReader(path.read_text().splitlines()) if row["platform"] != "tpu"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, *others])
    path.write_text(text.getvalue())


def by_chip(run: Run) -> str:
    """Returns the kind of chip: none of it is left to fit on."""
    return run.chip_group


def judge(runs: Sequence[Run], fold: Fold) -> tuple[Row, ...]:
    """Returns the runs with what was predicted of them, unseen."""
    return replace(TPU, fold=fold).evaluate(runs)


def main(arguments: Sequence[str]) -> int:
    """Prints the fit and its errors; writes the table where it is told to."""
    runs = read_runs(SET)
    constants = fit(runs)
    print(*(f"{name} {getattr(constants.practice, name):.4g}" for name in SHARED), sep="\n")
    print(*(f"matmul of {family} {value:.4g}" for family, value in constants.matmul.items()), sep="\n")
    known, strange = judge(runs, by_fold), judge(runs, by_chip)
    print(f"left out by chip and model: {_tell(known)}; intervals have {_tell_coverage(add_intervals(known))}")
    print(f"left out by chip: {_tell(strange)}; intervals have {_tell_coverage(add_strange_intervals(strange))}")
    null = replace(CONSTANT, fold=by_fold).evaluate(runs)
    print(f"null, left out one by one: {_tell(CONSTANT.evaluate(runs))}; by chip and model: {_tell(null)}")
    print(f"ours, left out one by one: {_tell(judge(runs, by_row))}")
    if "--write" in arguments:
        write_rows(build_rows(constants, runs, _tell(known)), COLUMNS, TABLE)
        write_rows(build_spreads(known, strange), SPREAD_COLUMNS, SPREADS)
    return 0


def _tell(rows: Sequence[Row]) -> str:
    predicted = [row.prediction.step_s or np.nan for row in rows]
    found = summarize_errors(predicted, [row.run.step_s or np.nan for row in rows])
    return f"median {100 * found.median:.1f} %, p90 {100 * found.p90:.1f} %"


def _tell_coverage(rows: Sequence[Row]) -> str:
    told = [row for row in rows if row.prediction.low_s and row.prediction.high_s and row.run.step_s]
    bounds = np.array([(row.prediction.low_s, row.prediction.high_s, row.run.step_s) for row in told], float)
    found = measure_coverage(*bounds.T)
    return f"{100 * found.share:.0f} % of {found.count}, their width is {100 * found.median_width:.0f} %"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

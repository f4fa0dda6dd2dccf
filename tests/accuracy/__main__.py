"""`make accuracy`: the cost model beside published runs and compiled peaks; writes docs/explanation/accuracy.md.

Each figure of a step is a prediction by constants that were fitted without the run's chip, or without its model. The
page's text stands in the page; its tables, between marks, are written here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from meshwright.planning.cost.step_time import LAW
from tests.accuracy.peaks import price_peak, read_peaks
from tests.accuracy.runs import Run, fit_law, fit_slowdown, select

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "accuracy.md"

Predict = Callable[[Run], float]
Fit = Callable[[Sequence[Run]], Predict]
"""Makes a predictor of runs that it may see."""


def fit_constants(runs: Sequence[Run]) -> Predict:
    """Returns the law with constants of these runs."""
    law = fit_law(runs)
    return lambda run: run.predict(law)


def fit_gpus(runs: Sequence[Run]) -> Predict:
    """Returns the law of plans with the slowdown of these runs."""
    law = replace(LAW, slowdown={"gpu": fit_slowdown(runs)})
    return lambda run: run.predict(law)


def fit_mfu(runs: Sequence[Run]) -> Predict:
    """Returns the median share of the peak that the model's FLOPs reach."""
    share = float(np.median([run.flops_s / run.step_s for run in runs]))
    return lambda run: run.flops_s / share


def fit_roofline(runs: Sequence[Run]) -> Predict:
    """Returns the same with a share that falls with the chip's FLOP a byte, as the law's does: two constants."""
    ratios = np.array([run.chip.device_flops_per_s / run.chip.device_memory_bytes_per_s for run in runs])
    slowdowns = np.array([run.step_s / run.flops_s for run in runs])
    constant, slope = np.linalg.lstsq(np.stack([np.ones_like(ratios), ratios], axis=1), slowdowns, rcond=None)[0]
    return lambda run: (
        run.flops_s * (constant + slope * run.chip.device_flops_per_s / run.chip.device_memory_bytes_per_s)
    )


def predict_folds(runs: Sequence[Run], fit: Fit, name: Callable[[Run], str]) -> list[tuple[Run, float]]:
    """Returns each run with its seconds as predicted from the runs of other folds."""
    found = []
    for fold in sorted({name(run) for run in runs}):
        predict = fit([run for run in runs if name(run) != fold])
        found += [(run, predict(run)) for run in runs if name(run) == fold]
    return found


def predict_same_chip(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Returns each run with its seconds by the MFU of other models on its own chip."""
    found = []
    for run in runs:
        others = [other for other in runs if other.chip is run.chip and other.group != run.group]
        found += [(run, fit_mfu(others)(run))] if others else []
    return found


def find_errors(predicted: Sequence[tuple[Run, float]]) -> np.ndarray:
    """Returns predicted ÷ published − 1."""
    return np.array([seconds / run.step_s - 1 for run, seconds in predicted])


def score_interval(predicted: Sequence[tuple[Run, float]], spreads: Sequence[float]) -> float:
    """Returns the mean interval score of Winkler for four of five, of the seconds' logarithms; less is better."""
    halves, off = np.log(spreads), np.abs(np.log(1 + find_errors(predicted)))
    return float(np.mean(2 * halves + 2 / 0.2 * np.maximum(0, off - halves)))


def even_out(predicted: Sequence[tuple[Run, float]]) -> list[float]:
    """Returns the factor within which four of five of these predictions lie, for each."""
    spread = float(np.exp(np.quantile(np.abs(np.log(1 + find_errors(predicted))), 0.8)))
    return [spread] * len(predicted)


def list_seconds() -> Iterator[str]:
    """Yields the table of dense models on TPUs."""
    runs = select("tpu")
    folds = {"chip": lambda run: run.chip.family, "model": lambda run: run.group}
    rows: list[tuple[str, str, list[tuple[Run, float]]]] = []
    for words, fit in (("constant MFU", fit_mfu), ("roofline", fit_roofline), ("**the law**", fit_constants)):
        rows += [(words, left_out, predict_folds(runs, fit, name)) for left_out, name in folds.items()]
    rows.insert(2, ("constant MFU of the same chip", "model", predict_same_chip(runs)))
    yield "| predictor | left out | runs | median | 90th percentile |\n| --- | --- | --- | --- | --- |"
    for words, left_out, predicted in rows:
        median, p90 = np.quantile(np.abs(find_errors(predicted)), [0.5, 0.9])
        yield f"| {words} | {left_out} | {len(predicted)} | {median:.1%} | {p90:.1%} |"


def list_intervals() -> Iterator[str]:
    """Yields the table of intervals of dense models on TPUs."""
    runs = select("tpu")
    yield "| left out | inside | by chip | score | score of a constant MFU |\n| --- | --- | --- | --- | --- |"
    for left_out, name in (("chip", lambda run: run.chip.family), ("model", lambda run: run.group)):
        predicted, null = predict_folds(runs, fit_constants, name), predict_folds(runs, fit_mfu, name)
        inside = [(run, 1 / run.spread <= seconds / run.step_s <= run.spread) for run, seconds in predicted]
        families = sorted({run.chip.family for run in runs})
        shares = [np.mean([ok for run, ok in inside if run.chip.family == family]) for family in families]
        each = ", ".join(f"{family} {share:.0%}" for family, share in zip(families, shares, strict=True))
        scores = score_interval(predicted, [run.spread for run, _ in predicted]), score_interval(null, even_out(null))
        share = np.mean([ok for _, ok in inside])
        yield f"| {left_out} | {share:.0%} | {each} | {scores[0]:.2f} | {scores[1]:.2f} |"


def list_others() -> Iterator[str]:
    """Yields the table of what few runs judge."""
    gpus, experts = select("gpu"), (*select("tpu", experts=True), *select("gpu", experts=True))
    yield "| runs | constant | runs | median | 90th percentile | inside |\n| --- | --- | --- | --- | --- | --- |"
    named = {
        "JAX on GPUs, by the other models' runs": ("slowdown", predict_folds(gpus, fit_gpus, lambda run: run.group)),
        "JAX on GPUs": ("slowdown", [(run, run.predict()) for run in gpus]),
        "mixtures of experts": ("experts", [(run, run.predict()) for run in experts]),
    }
    for words, (constant, predicted) in named.items():
        median, p90 = np.quantile(np.abs(find_errors(predicted)), [0.5, 0.9])
        inside = np.mean([1 / run.spread <= seconds / run.step_s <= run.spread for run, seconds in predicted])
        yield f"| {words} | `{constant}` | {len(predicted)} | {median:.1%} | {p90:.1%} | {inside:.0%} |"


def list_constants() -> Iterator[str]:
    """Yields what the fits to all runs give, beside what plans have."""
    fitted, slowdown = fit_law(select("tpu")), fit_slowdown(select("gpu"))
    yield "| constant | fitted to all of its runs | in plans |\n| --- | --- | --- |"
    yield f"| efficiency | {fitted.efficiency:.3f} | {LAW.efficiency:.3f} |"
    yield f"| intensity, FLOP a byte | {fitted.intensity:.0f} | {LAW.intensity:.0f} |"
    yield f"| slowdown on GPUs | {slowdown:.2f} | {LAW.slowdown['gpu']:.2f} |"


def list_runs() -> Iterator[str]:
    """Yields each run with its error."""
    runs = select("tpu")
    seen = dict(predict_folds(runs, fit_constants, lambda run: run.group))
    yield "| run | published s | predicted | error |\n| --- | --- | --- | --- |"
    for run in (*runs, *select("gpu"), *select("tpu", experts=True), *select("gpu", experts=True)):
        seconds = seen.get(run, run.predict())
        yield f"| {run.id} | {run.step_s:.4g} | {seconds:.4g} | {seconds / run.step_s - 1:+.1%} |"


def list_memory() -> Iterator[str]:
    """Yields the table of our own step's peaks."""
    yield "| compiled for | cases | median | 90th percentile | bias |\n| --- | --- | --- | --- | --- |"
    for platform in ("tpu", "gpu"):
        told = [(peak, peak.peak_bytes or peak.needed_bytes) for peak in read_peaks() if peak.platform == platform]
        errors = np.array([price_peak(peak) / measured - 1 for peak, measured in told if measured])
        median, p90 = np.quantile(np.abs(errors), [0.5, 0.9])
        yield f"| {platform.upper()} | {len(errors)} | {median:.1%} | {p90:.1%} | {np.median(errors):+.1%} |"


TABLES: Final = {
    "seconds": list_seconds, "intervals": list_intervals, "others": list_others, "constants": list_constants,
    "runs": list_runs, "memory": list_memory,
}  # fmt: skip


def write(text: str) -> str:
    """Returns the page with its tables."""
    for name, rows in TABLES.items():
        table = "\n".join(rows())
        marks = rf"(<!-- {name} -->\n)(?:.*?\n)??(<!-- end -->)"
        text, count = re.subn(marks, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
        assert count == 1, f"{PAGE.name} has {count} places for {name}"
    return text


def main() -> int:
    """Writes the page and prints it."""
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

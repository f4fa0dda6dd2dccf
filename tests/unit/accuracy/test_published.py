"""The cost model against published runs that it has not seen, and against compiled peaks; and the page that says so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.planning.cost.step_time import LAW
from tests.accuracy.__main__ import (
    PAGE,
    find_errors,
    fit_constants,
    fit_gpus,
    fit_mfu,
    predict_folds,
    score_interval,
    write,
)
from tests.accuracy.peaks import price_peak, read_peaks
from tests.accuracy.runs import fit_law, fit_slowdown, read_runs, select

TPU = select("tpu")
FOLDS = {"chip": lambda run: run.chip.family, "model": lambda run: run.group}


def test_every_run_has_its_source_and_a_batch_that_its_mesh_divides() -> None:
    assert len(read_runs()) == 63
    for run in read_runs():
        assert run.source
        sizes = (getattr(run.layout, axis) for axis in ("dp", "fsdp", "tp", "cp", "ep", "pp"))
        assert math.prod(map(int, sizes)) == run.devices


@pytest.mark.parametrize("left_out", FOLDS)
def test_unseen_runs_are_within_5_and_13_per_cent_and_nearer_than_a_constant_mfu(left_out: str) -> None:
    ours, null = (
        np.quantile(np.abs(find_errors(predict_folds(TPU, fit, FOLDS[left_out]))), [0.5, 0.9])
        for fit in (fit_constants, fit_mfu)
    )
    assert (ours <= [0.05, 0.13]).all()
    assert (ours < null).all()


@pytest.mark.parametrize("left_out", FOLDS)
def test_intervals_hold_four_of_five_unseen_runs_and_most_of_each_chip(left_out: str) -> None:
    predicted = predict_folds(TPU, fit_constants, FOLDS[left_out])
    inside = [(run, 1 / run.spread <= seconds / run.step_s <= run.spread) for run, seconds in predicted]
    assert 0.75 <= np.mean([is_inside for _, is_inside in inside]) <= 0.88
    for family in {run.chip.family for run in TPU}:
        assert np.mean([is_inside for run, is_inside in inside if run.chip.family == family]) >= 0.7, family
    assert score_interval(predicted, [run.spread for run, _ in predicted]) < 0.3


def test_the_constants_of_plans_are_those_that_fit_all_runs() -> None:
    fitted = fit_law(TPU)
    assert fitted.efficiency == pytest.approx(LAW.efficiency, rel=0.01)
    assert fitted.intensity == pytest.approx(LAW.intensity, rel=0.01)
    assert fit_slowdown(select("gpu")) == pytest.approx(LAW.slowdown["gpu"], abs=0.02)


def test_mixtures_of_experts_are_met_within_their_interval_by_most() -> None:
    runs = [*select("tpu", experts=True), *select("gpu", experts=True)]
    assert np.mean([1 / run.spread <= run.predict() / run.step_s <= run.spread for run in runs]) > 0.7
    mixtral = [run.predict() / run.step_s for run in runs if run.execution.capacity_factor]
    assert mixtral == pytest.approx([1, 1], abs=0.2)


def test_gpus_runs_are_met_within_their_interval_by_what_other_models_say() -> None:
    predicted = predict_folds(select("gpu"), fit_gpus, FOLDS["model"])
    assert np.mean([1 / run.spread <= seconds / run.step_s <= run.spread for run, seconds in predicted]) >= 0.8


@pytest.mark.parametrize(("platform", "most"), [("tpu", 0.07), ("gpu", 0.15)])
def test_predicted_peaks_of_our_own_step_are_near_its_compilers(platform: str, most: float) -> None:
    told = [(peak, peak.peak_bytes or peak.needed_bytes) for peak in read_peaks() if peak.platform == platform]
    errors = np.abs([price_peak(peak) / measured - 1 for peak, measured in told if measured])
    assert len(errors) > 30
    assert np.quantile(errors, 0.9) < most


def test_the_page_has_the_figures_of_this_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert write(text) == text, "run make accuracy"

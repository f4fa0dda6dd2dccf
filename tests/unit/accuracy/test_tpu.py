"""The constants for TPUs: the tables have what the fit gives, and the fit carries to runs that it has not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.planning.cost.practice import find_practice, find_spread, interval
from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs
from tests.accuracy.tpu import (
    FAMILIES,
    KEPT,
    PRACTICES,
    SET,
    SHARED,
    add_strange_intervals,
    build_spreads,
    by_chip,
    fit,
    judge,
    predict,
    price_parts,
)

RUNS = read_runs(SET)


@pytest.mark.parametrize("practice", PRACTICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_what_the_fit_gives(practice: str, family: str) -> None:
    fitted, told = fit(RUNS).find_practice(family), find_practice(practice, "tpu", family)
    assert told.is_own
    for name in SHARED:
        assert getattr(told.practice, name) == pytest.approx(getattr(fitted, name), rel=0.01)


def test_a_family_without_runs_has_the_constants_of_all() -> None:
    constants = fit(RUNS)
    assert constants.find_practice("tpu_v4") == constants.practice
    told = find_practice(SET, "tpu", "tpu_v4")
    assert told.basis == "maxtext/tpu"
    assert told.practice.matmul == pytest.approx(constants.practice.matmul, rel=0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fold", ["maxtext/v5e/maxtext-scale-16", "maxtext/v6e/gpt3-175b", "maxtext/v5p/llama2-70b"])
def test_a_fit_carries_to_runs_that_it_has_not_seen(fold: str) -> None:
    unseen = [run for run in RUNS if run.fold == fold]
    constants = fit([run for run in RUNS if run.fold != fold])
    for run, told in zip(unseen, predict(constants, unseen), strict=True):
        assert told.step_s == pytest.approx(run.step_s, rel=0.1)


def test_no_constant_is_looked_up_by_a_name() -> None:
    constants, run = fit(RUNS), RUNS[0]
    renamed = replace(run, id="x", fold="x", group="x", note="", source="")
    assert predict(constants, [renamed]) == predict(constants, [run])


def test_runs_on_gpus_are_not_its_affair() -> None:
    gpus = [run for run in read_runs("bloom") if run.step_s is not None][:2]
    assert all(told.step_s is None for told in predict(fit([*RUNS, *gpus]), gpus))
    assert fit([*RUNS, *gpus]) == fit(RUNS)


def test_each_remat_that_is_published_is_known() -> None:
    assert {run.published_recompute for run in RUNS} == set(KEPT)


@pytest.mark.parametrize("run", [run for run in RUNS if run.granules in (1, 32)], ids=lambda run: run.id)
def test_parts_are_not_negative_and_slices_wait(run: Run) -> None:
    parts = price_parts(fit(RUNS), run)
    assert float(parts.compute_s) > 0
    assert min(map(float, (parts.remat_s, parts.optimizer_s, *parts.communication_s.values()))) >= 0
    assert (float(parts.other_s) > 0) == (run.granules > 1)


def test_intervals_are_wider_for_chips_without_runs() -> None:
    low, high = interval(10.0, SET, "tpu", "tpu_v5e")
    wide_low, wide_high = interval(10.0, SET, "tpu", "tpu_v4")
    assert low < high
    assert wide_high / wide_low > high / low
    assert find_spread(SET, "tpu", "tpu_v4").family == ""


@pytest.mark.exhaustive
def test_a_plan_has_intervals_that_cover_runs_on_a_chip_without_runs() -> None:
    strange = judge(RUNS, by_chip)
    told = [(row.prediction.low_s, row.run.step_s, row.prediction.high_s) for row in add_strange_intervals(strange)]
    covered = [(low or 0.0) <= (seconds or 0.0) <= (high or 0.0) for low, seconds, high in told]
    assert 0.7 <= sum(covered) / len(covered) <= 0.9
    (row,) = (row for row in build_spreads(strange, strange) if row["practice"] == "xla")
    assert (float(row["low"]), float(row["high"])) == pytest.approx(
        (find_spread("xla", "tpu").low, find_spread("xla", "tpu").high), abs=0.002
    )

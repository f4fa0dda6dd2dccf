"""A predictor judged fold by fold: what it may see, what is asked, intervals from residuals that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.accuracy.evaluate import Prediction, Row, add_intervals, by_row, evaluate
from tests.accuracy.goals import Goal, judge
from tests.accuracy.report import report_set
from tests.accuracy.run import Run
from tests.unit.accuracy.made_up import build_run

RUNS = [build_run(float(place), fold="abc"[place % 3], id=str(place)) for place in range(1, 10)]
GOAL = Goal("sc21", "made up", is_scaled=True)


def fit(runs: Sequence[Run]) -> list[Run]:
    return list(runs)


def predict_mean(seen: list[Run], runs: Sequence[Run]) -> list[Prediction]:
    return [Prediction(step_s=sum(run.step_s or 0 for run in seen) / len(seen)) for _ in runs]


def test_a_fold_is_predicted_from_the_other_folds_alone():
    rows = evaluate(RUNS, fit, predict_mean)
    assert [row.run.id for row in rows] == [run.id for run in RUNS]
    assert rows[0].prediction.step_s == pytest.approx((45 - (1 + 4 + 7)) / 6)
    assert rows[0].error == pytest.approx(5.5 - 1)


def test_leaving_out_one_row_keeps_its_relatives():
    rows = evaluate(RUNS, fit, predict_mean, fold=by_row)
    assert [row.prediction.step_s for row in rows] == pytest.approx([(45 - place) / 8 for place in range(1, 10)])


def test_sets_that_are_not_asked_about_are_fitted_on_all_the_same():
    others = [build_run(100.0, fold="d", set_name="bloom", id="other")]
    [first, *_] = rows = evaluate([*RUNS, *others], fit, predict_mean, sets=["sc21"])
    assert len(rows) == 9
    assert first.prediction.step_s == pytest.approx((33 + 100) / 7)


def test_a_predictor_that_loses_a_run_is_refused():
    with pytest.raises(ValueError, match="2 predictions for 3 runs"):
        evaluate(RUNS, fit, lambda seen, runs: [Prediction()] * (len(runs) - 1))


def build_rows(ratios: dict[str, list[float]], **other: object) -> list[Row]:
    """Returns rows by fold whose measured seconds are these times the predicted 2.0."""
    runs = [build_run(2.0 * ratio, fold=fold, **other) for fold, found in ratios.items() for ratio in found]
    return [Row(run, Prediction(step_s=2.0)) for run in runs]


def test_an_interval_is_made_of_other_folds_residuals():
    rows = add_intervals(build_rows({"a": [9.0], "b": [0.5 + 0.1 * step for step in range(11)]}))
    assert (rows[0].prediction.low_s, rows[0].prediction.high_s) == pytest.approx((2 * 0.6, 2 * 1.4))
    assert (rows[1].prediction.low_s, rows[1].prediction.high_s) == pytest.approx((18.0, 18.0))


def test_an_interval_prefers_residuals_of_its_own_set_and_chip():
    own = build_rows({"a": [1.0], "b": [1.0] * 10})
    far = build_rows({"c": [5.0] * 50}, set_name="vtrain-single")
    [first, *_] = add_intervals([*own, *far])
    assert (first.prediction.low_s, first.prediction.high_s) == (2.0, 2.0)


def test_an_interval_that_a_predictor_gives_itself_stays():
    row = Row(build_run(1.0), Prediction(step_s=1.0, low_s=0.5, high_s=1.5))
    others = build_rows({"b": [1.0] * 10})
    assert add_intervals([row, *others])[0] is row


def test_a_report_counts_what_is_not_predicted_and_scales_once():
    rows = [*build_rows({"a": [1.0, 2.0, 3.0]}), Row(build_run(1.0, fold="b"), Prediction())]
    found = report_set(rows, GOAL)
    assert (found.rows, found.silent) == (4, 1)
    assert found.errors is not None
    assert found.scaled is not None
    assert found.errors.median == pytest.approx(0.5)  # 0, 1 ÷ 2, 2 ÷ 3 too little
    assert found.scaled.median == pytest.approx(1 / 3)  # after × 2: 1, 0, 1 ÷ 3
    assert found.memory is None


def test_memory_is_judged_where_both_sides_told_it():
    rows = [
        Row(build_run(None, peak_bytes=100, oom=False), Prediction(peak_bytes=110, runs_out=True)),
        Row(build_run(None, oom=True), Prediction(peak_bytes=70, runs_out=False)),
    ]
    found = report_set(rows, GOAL)
    assert found.memory is not None
    assert found.memory.bias == pytest.approx(0.1)
    assert found.verdicts is not None
    assert (found.verdicts.misses, found.verdicts.false_alarms) == (1, 1)


def test_a_goal_is_reached_at_its_bound_and_not_beyond():
    assert [judge(0.05, 0.05), judge(0.051, 0.05), judge(None, 0.05), judge(0.1, None)] == ["yes", "no", "–", "–"]
    assert [judge(0.5, 0.5, is_least=True), judge(0.4, 0.5, is_least=True)] == ["yes", "no"]

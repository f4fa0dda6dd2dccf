"""Errors, order, intervals and verdicts on memory, against figures counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.accuracy.metrics import (
    Coverage,
    MemoryVerdicts,
    find_errors,
    find_kendall_tau,
    find_regret,
    fit_scale,
    judge_memory,
    measure_coverage,
    rank_groups,
    summarize_errors,
)


def test_an_error_is_predicted_by_measured_less_one_with_its_sign():
    assert find_errors([1.1, 0.5, 4.0], [1.0, 1.0, 4.0]).tolist() == pytest.approx([0.1, -0.5, 0.0])


def test_the_summary_has_sizes_but_the_bias_keeps_its_sign():
    errors = summarize_errors([0.9, 0.8, 0.6, 1.1, 0.95], [1.0] * 5)
    assert errors.count == 5
    assert errors.median == pytest.approx(0.1)
    assert errors.mean == pytest.approx((0.1 + 0.2 + 0.4 + 0.1 + 0.05) / 5)
    assert errors.p90 == pytest.approx(0.2 + 0.6 * (0.4 - 0.2))  # at 3.6 of 0 … 4
    assert errors.worst == pytest.approx(0.4)
    assert errors.bias == pytest.approx(-0.1)


def test_no_row_has_no_summary():
    with pytest.raises(ValueError, match="at least one"):
        summarize_errors([], [])


def test_the_scale_is_the_median_ratio_so_that_one_far_row_does_not_move_it():
    assert fit_scale([1.0, 1.0, 1.0], [2.0, 2.2, 90.0]) == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("predicted", "measured", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([4, 3, 2, 1], [10, 20, 30, 40], -1.0),
        ([1, 2, 4, 3], [10, 20, 30, 40], 4 / 6),  # 5 pairs in order, 1 not
        ([1, 1, 2], [1, 2, 3], 2 / (3 * 2) ** 0.5),  # one pair tied on one side
    ],
)
def test_tau_counts_pairs_in_order_less_pairs_that_are_not(predicted, measured, tau):
    assert find_kendall_tau(predicted, measured) == pytest.approx(tau)


def test_tau_is_the_one_of_scipy_with_ties_on_both_sides():
    draw = np.random.default_rng(7)
    predicted, measured = draw.integers(0, 6, 40), draw.integers(0, 9, 40)
    tau, _ = kendalltau(predicted, measured)
    assert find_kendall_tau(predicted, measured) == pytest.approx(tau)


def test_tau_is_not_defined_where_all_are_predicted_alike():
    assert find_kendall_tau([1.0, 1.0], [1.0, 2.0]) is None


def test_regret_is_what_the_choice_costs():
    assert find_regret([3.0, 1.0, 2.0], [10.0, 12.0, 15.0]) == pytest.approx(0.2)
    assert find_regret([1.0, 3.0], [10.0, 12.0]) == 0.0


def test_regret_of_a_tie_is_the_mean_of_what_could_be_chosen():
    assert find_regret([1.0, 1.0, 2.0], [10.0, 12.0, 9.0]) == pytest.approx(11 / 9 - 1)


def test_groups_are_ranked_each_for_itself_and_small_ones_not_at_all():
    groups = ["a", "b", "a", "b", "a", "c"]
    ranking = rank_groups([1, 9, 2, 8, 3, 7], [10, 5, 20, 6, 30, 1], groups)
    assert ranking is not None
    assert (ranking.groups, ranking.median_tau, ranking.least_tau) == (2, 0.0, -1.0)  # a: 1, b: −1, c is alone
    assert ranking.median_regret == pytest.approx(0.1)  # a: 0, b: 6 ÷ 5 − 1
    assert ranking.worst_regret == pytest.approx(0.2)
    assert rank_groups([1, 2], [1, 2], ["a", "b"]) is None


def test_coverage_counts_rows_within_their_bounds_ends_included():
    found = measure_coverage([1.0, 1.0, 1.0, 1.0], [1.5, 2.0, 2.0, 3.0], [1.0, 2.0, 2.1, 0.9])
    assert found == Coverage(count=4, share=0.5, median_width=1.0)


def test_a_miss_is_worse_than_a_false_alarm_and_both_are_counted_apart():
    predicted, measured = [True, False, False, True, True], [True, True, False, False, False]
    assert judge_memory(predicted, measured) == MemoryVerdicts(count=5, misses=1, false_alarms=2)

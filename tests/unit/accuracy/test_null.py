"""The dumb predictors: their counts of FLOPs, and the collection's own figures where all its rows are here."""

from __future__ import annotations

import math

import pytest

from tests.accuracy.evaluate import by_row
from tests.accuracy.metrics import fit_scale, rank_groups, summarize_errors
from tests.accuracy.null import CONSTANT, count_flops, price_compute, price_model, price_textbook
from tests.accuracy.runs import read_runs
from tests.unit.accuracy.made_up import build_run


def write_sc21(run, *, factor: int, head: int) -> float:
    hidden, layers, length = run.model.hidden_size, run.model.num_hidden_layers, run.sequence_length
    more = 1 + length / (6 * hidden) + run.model.vocab_size / (head * layers * hidden)
    return factor * run.tokens * layers * hidden**2 * more


@pytest.mark.parametrize("run", [*read_runs("sc21"), read_runs("bloom")[0]], ids=lambda run: run.id)
def test_flops_of_a_gpt_are_those_of_sc21(run):
    assert count_flops(run) == pytest.approx(write_sc21(run, factor=72, head=12), rel=1e-9)
    assert count_flops(run, with_recomputed=True) == pytest.approx(write_sc21(run, factor=96, head=16), rel=1e-9)


def test_a_step_that_recomputes_nothing_has_no_more_flops_than_its_model():
    run = build_run(1.0, recompute="none")
    assert price_compute(run) == price_model(run)


@pytest.mark.parametrize(
    ("name", "median", "mean", "worst"), [("vtrain-single", 0.503, 0.594, 2.393), ("vtrain-multi", 0.118, 0.175, 0.693)]
)
def test_constant_mfu_after_one_scale_has_the_collections_errors_on_vtrain(name, median, mean, worst):
    runs = read_runs(name)
    priced, measured = [price_compute(run) for run in runs], [run.step_s or math.nan for run in runs]
    scale = fit_scale(priced, measured)
    errors = summarize_errors([scale * price for price in priced], measured)
    assert (errors.median, errors.mean, errors.worst) == pytest.approx((median, mean, worst), abs=6e-4)


def test_the_textbook_knows_the_bubble_and_the_collectives():
    alone = build_run(1.0, recompute="none")
    layout = alone.layout
    staged = build_run(1.0, recompute="none", layout=type(layout)(dp=8, pp=4, micro_batch=16, passes=4))
    assert price_textbook(staged) > price_compute(staged) / 0.6 * (1 + 3 / 4)
    assert price_textbook(alone) > price_compute(alone) / 0.6  # the gradients of 32 replicas


def test_the_textbook_ranks_multi_node_runs_and_not_those_of_one_node():
    ranked = {name: read_runs(name) for name in ("vtrain-multi", "vtrain-single")}
    found = {
        name: rank_groups(
            [price_textbook(run) for run in runs],
            [run.step_s or math.nan for run in runs],
            [run.group for run in runs],
            least_rows=6,
        )
        for name, runs in ranked.items()
    }
    multi, single = found["vtrain-multi"], found["vtrain-single"]
    assert multi is not None
    assert single is not None
    assert (multi.groups, single.groups) == (4, 88)
    assert multi.median_tau is not None
    assert single.median_tau is not None
    assert multi.median_tau > 0.55 > 0.1 > single.median_tau


def test_a_constant_is_the_median_of_other_rows_of_the_same_chip_and_dtype():
    runs = [build_run(step_s, id=str(step_s)) for step_s in (1.0, 2.0, 4.0)]
    stranger = build_run(1.0, id="fp8", compute_dtype="fp8")
    rows = CONSTANT.evaluate([*runs, stranger])
    assert CONSTANT.fold is by_row
    assert rows[0].prediction.step_s == pytest.approx(2 / (1 / 2 + 1 / 4))  # the middle of two rates
    assert rows[3].prediction.step_s is None

"""The cost model's fits: tables are what a fit gives, and nothing is known of the runs that are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.planning.cost.gemm import find_curve
from meshwright.planning.cost.layout import REMAT_MINIMAL, Layout
from meshwright.planning.cost.practice import find_practice
from meshwright.planning.cost.spans import lay_on_hosts
from meshwright.planning.cost.step_time import Execution, Machine, price_step
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model
from meshwright.topology.chips import find_chip
from tests.accuracy.cost import COST, STARTS, fit, predict
from tests.accuracy.cost_cases import build_batches
from tests.accuracy.cost_fit import fit_framework, price_runs
from tests.accuracy.cost_tables import add_spreads, find_quantiles
from tests.accuracy.evaluate import Prediction, Row
from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs, select_timed

QUICK = ("torchtitan", "llm-foundry")
"""Frameworks whose fit takes seconds."""


MAXTEXT_ON_H100 = [(1, 492e12), (2, 422e12), (4, 407e12), (8, 409e12), (16, 375e12)]
"""Hosts of 8 H100 with 800 Gbit/s, and FLOP/s of each: Llama 2 7B, 4 sequences of 4,096 on a device, FSDP in a host,
`minimal_flash`. Source: AI-Hypercomputer/maxtext, src/maxtext/configs/gpu/a3/llama_2_7b; models/gpu/llama2_7b.yml."""


def read_practice(name: str) -> list[Run]:
    return [run for run in select_timed(read_runs()) if run.practice == name]


@pytest.mark.parametrize("name", QUICK)
def test_the_table_is_what_a_fit_gives(name: str) -> None:
    runs = read_practice(name)
    tuned = fit_framework(runs, STARTS[name])

    for family in {run.chip_group for run in runs}:
        told, fitted = find_practice(name, "gpu", family).practice, tuned.find(family)
        for constant in STARTS[name].names:
            assert getattr(told, constant) == pytest.approx(getattr(fitted, constant), rel=0.02), constant


def test_a_run_left_out_is_not_seen() -> None:
    runs = read_practice("torchtitan")
    fold = runs[0].fold
    kept = [run for run in runs if run.fold != fold]
    asked = [run for run in runs if run.fold == fold]
    spoilt = [replace(run, step_s=10 * (run.step_s or 0.0)) if run.fold == fold else run for run in runs]

    (row, *_) = [row for row in COST.evaluate(spoilt) if row.run.fold == fold]
    assert row.prediction.step_s == pytest.approx(predict(fit(kept), asked)[0].step_s)


def test_runs_on_tpus_are_left_to_others() -> None:
    tpu = read_runs("maxtext")[0]

    assert predict(fit(read_practice("torchtitan")), [tpu]) == (Prediction(),)


def test_runs_priced_together_are_priced_as_each_alone() -> None:
    runs = [*read_practice("torchtitan"), *read_runs("simumax")[:8], *read_runs("bloom")[:5]]
    tuned = fit_framework(read_practice("torchtitan"), STARTS["torchtitan"])

    together = price_runs(runs, tuned)
    assert len(build_batches(runs)) < len(runs)
    assert together == pytest.approx(np.array([price_runs([run], tuned)[0] for run in runs]))


def test_a_name_changes_nothing() -> None:
    runs = read_practice("torchtitan")
    tuned = fit_framework(runs, STARTS["torchtitan"])
    renamed = [replace(run, id="other", model=run.model.model_copy(update={"name": "other"})) for run in runs]

    assert price_runs(renamed, tuned) == pytest.approx(price_runs(runs, tuned))


def test_bounds_are_quantiles_set_apart_by_the_number_of_folds() -> None:
    runs = read_practice("torchtitan")[:1] * 41
    rows = [Row(run, Prediction(step_s=(run.step_s or 0.0) * np.exp(place / 40))) for place, run in enumerate(runs)]

    low, high = find_quantiles(rows)
    assert low == pytest.approx(-0.9 - 0.8, abs=0.05)
    assert high == pytest.approx(-0.1 + 0.8, abs=0.05)


def test_an_interval_has_seen_no_relative() -> None:
    runs = read_practice("torchtitan") * 4
    rows = [Row(run, Prediction(step_s=run.step_s)) for run in runs]
    spoilt = [Row(run, Prediction(step_s=(9 if run.fold == runs[0].fold else 1) * (run.step_s or 0.0))) for run in runs]

    (told, *_), (other, *_) = add_spreads(rows), add_spreads(spoilt)
    assert told.prediction.low_s == told.prediction.high_s == pytest.approx(told.prediction.step_s)
    assert other.prediction.low_s == other.prediction.high_s == pytest.approx(other.prediction.step_s)


def test_rows_on_tpus_are_left_to_the_rule_of_their_own_table() -> None:
    tpus = [Row(run, Prediction(step_s=9.0)) for run in read_practice("maxtext")[:2]]
    gpus = [Row(run, Prediction(step_s=run.step_s)) for run in read_practice("torchtitan") * 4]
    told = add_spreads([*tpus, *gpus])
    assert told[:2] == tuple(tpus)
    # Residuals on TPUs, which are far off here, are in no interval of a GPU.
    assert all(row.prediction.low_s == pytest.approx(row.prediction.step_s) for row in told[2:])


@pytest.mark.parametrize(("hosts", "flops_per_s"), MAXTEXT_ON_H100)
def test_constants_of_xla_meet_jax_on_gpus(hosts: int, flops_per_s: float) -> None:
    """In no fit. Attention's FLOPs count in full, as MaxText counted them then."""
    chip = find_chip("h100")
    assert chip is not None
    assert chip.scaleup_bytes_per_s is not None
    work = build_work(read_model("llama2-7b"), 4096)
    layout = Layout(dp=hosts, fsdp=8, micro_batch=4, remat=REMAT_MINIMAL)
    machine = Machine(chip.flops_per_s, chip.device_memory_bytes_per_s, find_curve(chip))
    spans = lay_on_hosts(layout, chip.family, 8, chip.scaleup_bytes_per_s, 12.5e9)
    practice = find_practice("xla", "gpu", chip.family).practice

    step = price_step(work, layout, machine, spans, practice, Execution())
    (block,) = work.blocks
    attention = 3 * 32 * block.attention.flops_per_token
    flops = work.flops_per_token + attention * (block.attention.length / block.attention.context - 1)
    assert step.total_s == pytest.approx(4 * 4096 * flops / flops_per_s, rel=0.15)

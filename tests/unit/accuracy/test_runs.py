"""The collection's tables, read: every row there, each in the terms of the cost model, seconds as they follow."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from meshwright.planning.parameters import count_parameters
from meshwright.topology.resolve import read_target
from tests.accuracy.run import LeftOut, Run
from tests.accuracy.runs import read_collection, read_runs, select_timed
from tests.accuracy.sets import SETS
from tests.accuracy.tables import DATA, build_model, count_flops

COLLECTION = read_collection()
ROWS = {
    "maxtext": 51,
    "llm-foundry": 98,
    "megatron-bridge": 93,
    "vtrain-multi": 109,
    "vtrain-single": 1440,
    "bloom": 72,
    "simumax": 43,
    "torchtitan": 13,
    "korthikanti": 8,
    "sc21": 10,
}
"""As many as the sources' tables have in the collection; of Korthikanti's four, each with two ways to recompute."""


def find(id_: str) -> Run:
    [run] = [run for run in COLLECTION.runs if run.id == id_]
    return run


def test_every_row_is_a_run_or_says_why_it_is_none():
    rows: list[Run | LeftOut] = [*COLLECTION.runs, *COLLECTION.left_out]
    assert Counter(row.set_name for row in rows) == ROWS
    assert len({(row.set_name, row.id) for row in rows}) == len(rows)
    assert all(row.reason for row in COLLECTION.left_out)


@pytest.mark.parametrize("name", ROWS)
def test_axes_hosts_and_batch_of_a_run_fit_together(name):
    for run in read_runs(name):
        assert run.layout.devices == run.devices, run.id
        assert run.devices % run.hosts == 0, run.id
        assert run.global_batch >= run.layout.data_parts, run.id
        assert (run.model.name, run.source.startswith("https://")) == (None, True), run.id
        assert run.step_s is None or run.step_s > 0, run.id
        assert run.oom is True or run.step_s is not None or run.peak_bytes is not None, run.id


@pytest.mark.parametrize("target", sorted({run.target for run in COLLECTION.runs}))
def test_a_runs_target_is_hardware_that_can_be_planned_on(target):
    assert read_target(target).granules == next(run.granules for run in COLLECTION.runs if run.target == target)


def test_a_model_has_no_name_to_be_looked_up_by_and_its_count_is_the_published_one():
    with (DATA / "llm-foundry.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    counts = {row["id"]: count_parameters(build_model({"vocabulary": "50368", **row})).total for row in rows}
    assert counts == {row["id"]: int(row["parameters"]) for row in rows}


def test_seconds_follow_from_tokens_a_second():
    run = find("foundry-006")  # 8,192 sequences of 2,048 at 2,535,811 tokens/s
    assert (run.step_s, run.step_basis) == (pytest.approx(8192 * 2048 / 2_535_811), "tokens/s")


def test_seconds_follow_from_flops_with_what_is_recomputed():
    run = find("sc21-t1-1008.0B")  # arXiv:2104.04473, table 1: 1T parameters, 163 TFLOP/s on 3,072 GPUs
    assert run.step_s == pytest.approx(102.63, rel=1e-3)
    flops = count_flops(run.model, run.sequence_length, run.tokens)
    assert flops == pytest.approx(8 * 1008e9 * run.tokens, rel=0.02)


def test_blooms_first_rows_have_the_seconds_that_its_log_printed():
    assert find("bloom-389").step_s == pytest.approx(769.99, rel=1e-3)
    assert find("bloom-391").step_s == pytest.approx(430.21, rel=2e-3)


def test_rows_that_ran_out_of_memory_have_no_seconds():
    out = [run for run in read_runs("bloom") if run.oom]
    assert [run.id for run in out] == ["bloom-917", "bloom-918", "bloom-957"]
    assert not select_timed(out)


def test_the_batch_is_cut_into_micro_batches_and_passes():
    layout = find("mbridge-035").layout  # 256 GPUs, TP 4, PP 16: 4 replicas; 1,536 sequences of micro-batches of 1
    assert (layout.dp, layout.micro_batch, layout.passes, layout.interleave) == (4, 1, 384, 4)


def test_a_slices_tpus_are_devices_as_jax_counts_them():
    run = find("ironwood-llama3.1-70b-256-131072-bf16")
    assert (run.devices, run.hosts, run.granules) == (512, 64, 1)
    assert (run.layout.cp, run.layout.micro_batch) == (8, 1)


def test_relatives_are_left_out_together_and_ranked_in_smaller_groups():
    single, multi = read_runs("vtrain-single"), read_runs("vtrain-multi")
    assert (len({run.fold for run in single}), len({run.group for run in single})) == (8, 144)
    assert sum(count >= 6 for count in Counter(run.group for run in single).values()) == 88
    assert len({run.group for run in multi}) == 4


def test_what_a_step_keeps_of_attention_and_in_moments_is_told():
    assert {run.attention for run in read_runs("sc21", "bloom", "vtrain-multi")} == {"scores"}
    assert {run.attention for run in read_runs("llm-foundry", "simumax")} == {"flash"}
    assert find("ironwood-llama3.1-405b-256-8192-bf16").first_moment_dtype == "bfloat16"


def test_an_unknown_set_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ValueError, match=r"no set is called vtrain; these are: maxtext, .*sc21"):
        read_runs("vtrain")


def test_every_table_has_its_set():
    assert {each.name for each in SETS} <= {path.stem for path in DATA.glob("*.csv")}

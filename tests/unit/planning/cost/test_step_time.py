"""What a step takes: parts that can be counted by hand, and how they move with the layout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from meshwright.planning.cost.spans import REMAT_FULL, REMAT_NONE, REMAT_OFFLOAD, Layout, lay_on_hosts
from meshwright.planning.cost.step_time import LAW, DeviceRates, Execution, Law, PartSeconds, StepTime, find_spread
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model
from meshwright.topology.chips import find_chip
from tests.fakes.asking import ask_planner

A100: Any = find_chip("a100")
PEAK, MEMORY = 312e12, 2e12
MACHINE = DeviceRates("gpu", PEAK, MEMORY)
WORK = build_work(read_model("llama2-7b"), 4096)
SPARSE = build_work(read_model("qwen3-30b-a3b"), 4096)
BARE = Law(1.0, float("inf"), {"gpu": 1.0}, experts=1.0)
"""Matmuls at the peak, attention at half of it."""
MATMULS = 2 * (WORK.parameters - WORK.embedding_parameters - WORK.head.parameters) * 4096 / PEAK
ATTENTION = 2 * 32 * WORK.blocks[0].attention.flops_per_token * 4096 / PEAK
HEAD = 2 * WORK.head.parameters * 4096 / PEAK
"""Forward seconds of a sequence on one device."""


def price(layout: Layout, *, law: Law = BARE, work: Any = WORK, machine: Any = MACHINE, **does: Any) -> PartSeconds:
    """Returns the parts of a step, without the optimizer's where its `weight_bytes` are not given."""
    spans, held = lay_on_hosts(layout, A100, 8), does.get("weight_bytes", 0.0)
    layout = replace(layout, optimizer_bytes=2 * held)
    return StepTime(work, layout, machine, spans, Execution(**{"weight_bytes": held, **does}), law).price()


@pytest.mark.parametrize("layout", [Layout(fsdp=2, cp=8), Layout(fsdp=2, ep=8), Layout(fsdp=4, tp=4)])
def test_the_update_is_cut_as_the_state_is(layout: Layout) -> None:
    seconds = [price(each, weight_bytes=4.0)["compute"] - price(each)["compute"] for each in (layout, Layout(fsdp=16))]
    assert seconds[0] == pytest.approx(seconds[1])


def test_each_stage_updates_embedding_and_head() -> None:
    ends = WORK.embedding_parameters + WORK.head.parameters
    seconds = price(Layout(pp=4), weight_bytes=4.0)["compute"] - price(Layout(pp=4))["compute"]
    assert float(seconds) == pytest.approx(((WORK.parameters - ends) / 4 + ends) * 28 / MEMORY)


@pytest.mark.parametrize("cut", ["cp", "ep"])
def test_context_and_expert_axes_gather_weights_and_sum_gradients_with_the_others(cut: str) -> None:
    for one, other in (
        ({cut: 8}, {"fsdp": 8}),
        ({"fsdp": 2, cut: 8}, {"fsdp": 16}),
        ({"dp": 2, cut: 8}, {"dp": 2, "fsdp": 8}),
    ):
        parts = [price(Layout(micro_batch_size=64, **each), work=WORK) for each in (one, other)]
        assert parts[0]["fsdp"] == pytest.approx(parts[1]["fsdp"])
        assert parts[0]["dp"] == pytest.approx(parts[1]["dp"])


def test_the_axis_that_cuts_experts_does_not_gather_them() -> None:
    experts = sum(block.count * block.expert_parameters for block in SPARSE.blocks)
    cut, gathered = (price(each, work=SPARSE) for each in (Layout(dp=2, ep=4), Layout(dp=2, fsdp=4)))
    assert cut["fsdp"] / gathered["fsdp"] == pytest.approx(1 - experts / SPARSE.parameters, abs=0.02)
    assert cut["dp"] == pytest.approx(gathered["dp"])


def test_what_is_offloaded_goes_to_the_host_and_back_behind_the_compute() -> None:
    rates = (1e6, 2e6, 1e12, math.inf)
    machines = (DeviceRates("gpu", PEAK, MEMORY, rate) for rate in rates)
    slow, faster, hidden, free = (price(Layout(remat=REMAT_OFFLOAD), machine=each)["remat"] for each in machines)
    assert slow - faster == pytest.approx(2 * 32 * 4096 * 4096 * 2 * (1 / rates[0] - 1 / rates[1]))
    assert hidden == free == price(Layout(remat=REMAT_FULL))["remat"]


def test_a_device_alone_computes_three_times_its_matmuls_and_three_and_a_half_times_its_attention() -> None:
    step = price(Layout(remat=REMAT_NONE))
    assert step["compute"] == pytest.approx(3 * (MATMULS + HEAD) + 3.5 * ATTENTION, rel=1e-3)
    assert sum(step.values()) == step["compute"]


def test_the_optimizer_reads_and_writes_the_state_that_a_device_holds() -> None:
    split = Layout(dp=2, fsdp=4, tp=2)
    plain, adamw = price(split), price(split, weight_bytes=4.0)
    assert float(adamw["compute"] - plain["compute"]) == pytest.approx(WORK.parameters / 8 * 28 / MEMORY)
    assert sum(adamw.values()) - sum(plain.values()) == pytest.approx(adamw["compute"] - plain["compute"])


def test_each_pass_adds_its_gradients_to_those_of_earlier_ones() -> None:
    for passes, sums in ((1, 0), (8, 8)):
        layout = Layout(dp=2, fsdp=4, tp=2, gradient_accumulation_steps=passes)
        more = price(layout, weight_bytes=4.0)["compute"] - price(layout)["compute"]
        assert float(more) == pytest.approx(WORK.parameters / 8 * (28 + sums * 12) / MEMORY)


def test_moments_of_fewer_bytes_take_less_time() -> None:
    asked: Any = {"model": "llama3-8b", "target": "v5e:4x4", "axes": {"fsdp": 8, "tp": 2}}
    training: Any = {"seq_len": 2048, "global_batch_size": 8}
    named = dict.fromkeys(("first_moment_dtype", "second_moment_dtype"), "bfloat16")
    chosen = ask_planner(**asked, training=training, moment_dtypes=["bfloat16"]).plans[0].step_time
    given = ask_planner(**asked, training={**training, **named}).plans[0].step_time
    whole = ask_planner(**asked, training=training).plans[0].step_time
    assert chosen.compute_s == given.compute_s < whole.compute_s


def test_scores_that_lie_in_memory_take_their_traffic_and_the_whole_square() -> None:
    fused, whole = price(Layout(remat=REMAT_NONE)), price(Layout(remat=REMAT_NONE), fused_attention=False)
    square = 2 * 32 * 4 * 4096 * 4096 * 4096 / PEAK  # two matmuls, at half of the peak
    traffic = 32 * 32 * 4096 * 4096 * LAW.score_bytes / MEMORY
    assert float(whole["compute"] - fused["compute"]) == pytest.approx(3.5 * (square - ATTENTION) + traffic, rel=1e-3)


def test_attention_on_tpus_takes_what_its_kernel_runs() -> None:
    law, work = Law(1.0, float("inf"), {"tpu": 1.0, "gpu": 1.0}), build_work(read_model("gpt-oss-120b"), 8192)
    own, others = (
        price(Layout(remat=REMAT_NONE), law=law, work=work, machine=DeviceRates(platform, PEAK, MEMORY))["compute"]
        for platform in ("tpu", "gpu")
    )
    more = sum(b.count * (b.attention.kernel_flops_per_token - b.attention.flops_per_token) for b in work.blocks)
    assert float(own - others) == pytest.approx(3.5 * 2 * more * 8192 / PEAK)


def test_more_tensor_parts_than_heads_of_keys_and_values_gather_whole_heads() -> None:
    work = build_work(read_model("llama3-8b"), 16_384)  # eight such heads
    spans = lay_on_hosts(Layout(cp=2, tp=8), A100, 16)
    eight, sixteen = (
        StepTime(work, Layout(cp=2, tp=tp), MACHINE, spans, Execution(), BARE)._time_context(work.blocks[0])
        for tp in (8, 16)
    )
    assert float(sixteen) == float(eight)


@pytest.mark.parametrize(("passes", "runs", "repeats"), [(8, 1, 8), (8, 2, 8), (6, 1, 1)])  # 6 do not fill 4 stages
def test_a_pipeline_waits_for_its_stages_in_each_run(passes: int, runs: int, repeats: int) -> None:
    """(p − 1) ÷ (m·v) of the steady part: Narayanan et al., arXiv:2104.04473, section 2.2; 32 ÷ 4 layers a stage."""
    step = price(Layout(pp=4, gradient_accumulation_steps=passes, pipeline_runs=runs))
    head = passes * 3 * HEAD / 4  # outside the loop, over all stages
    steady = float(step["compute"] + step["remat"]) + float(step["pp"]) - head
    assert float(step["bubble"]) == pytest.approx(steady * 3 / passes * runs / repeats)


@pytest.mark.parametrize(("once", "ratio"), [(False, 4), (True, 1)])
def test_a_pipeline_gathers_its_weights_for_each_pass_or_once(once: bool, ratio: int) -> None:
    layouts = (Layout(pp=4, fsdp=8, gradient_accumulation_steps=passes, gathers_once=once) for passes in (4, 16))
    few, many = (float(price(each)["fsdp"]) for each in layouts)
    assert many / few == pytest.approx(ratio, rel=0.05)  # embedding and head once, at any rate


@pytest.mark.parametrize(("chip", "work", "layout", "spread", "words"), [
    ("v5p", WORK, Layout(fsdp=64), 1.09, "32 published runs"),
    ("v4", WORK, Layout(fsdp=64), 1.14, "no run on this chip"), ("h100", WORK, Layout(fsdp=64), 1.3, "20 runs"),
    ("mi300x", WORK, Layout(fsdp=64), 1.5, "no run on this chip"), ("h100", WORK, Layout(tp=8), 1.35, "run tests tp"),
    ("h100-pcie", WORK, Layout(fsdp=64), 1.5, "no run on this chip"),
    ("v5p", WORK, Layout(pp=2, cp=4), 1.35, "at most one run tests pp, cp"),
    ("v5p", build_work(read_model("llama2-7b"), 512), Layout(fsdp=64), 1.3, "so few tokens"),
    ("v5p", SPARSE, Layout(ep=8), 1.5, "mixtures of experts"),
])  # fmt: skip
def test_what_is_known_least_sets_the_interval(chip: str, work: Any, layout: Layout, spread: float, words: str) -> None:
    found: Any = find_chip(chip)
    factor, reason = find_spread(found, work, layout)
    assert factor == spread
    assert words in reason

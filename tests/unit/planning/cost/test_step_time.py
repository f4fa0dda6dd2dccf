"""What a step takes: parts that can be counted by hand, and how they move with the layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.spans import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout, lay_on_hosts
from meshwright.planning.cost.step_time import LAW, DeviceRates, Execution, Law, StepTime, find_spread, price_step
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model
from meshwright.topology.chips import find_chip, read_chips

A100 = next(chip for chip in read_chips() if "a100" in chip.aliases)
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


def price(
    layout: Layout, *, law: Law = BARE, work: Any = WORK, machine: DeviceRates = MACHINE, **does: Any
) -> StepTime:
    spans = lay_on_hosts(layout, A100, 8)
    return price_step(work, layout, machine, spans, Execution(**{"update_bytes": 0.0, **does}), law)


def test_a_device_alone_computes_three_times_its_matmuls_and_three_and_a_half_times_its_attention() -> None:
    step = price(Layout(remat=REMAT_NONE))
    assert step.compute_s == pytest.approx(3 * (MATMULS + HEAD) + 3.5 * ATTENTION, rel=1e-3)
    assert (float(step.remat_s), float(step.bubble_s), sum(step.communication_s.values())) == (0, 0, 0)


def test_full_remat_repeats_all_but_the_last_matmul_and_minimal_attention() -> None:
    full, minimal = (price(Layout(remat=remat)) for remat in (REMAT_FULL, REMAT_MINIMAL))
    last = 2 * 32 * 11008 * 4096 * 4096 / PEAK
    assert full.remat_s == pytest.approx(MATMULS - last + ATTENTION, rel=1e-3)
    assert minimal.remat_s == pytest.approx(ATTENTION)
    assert full.compute_s == minimal.compute_s


def test_a_chip_with_more_flops_for_each_byte_reaches_less_of_them() -> None:
    one, other = (price(Layout(), law=LAW, machine=replace(MACHINE, memory_bytes_per_s=rate)) for rate in (2e12, 1e12))
    ratio = (1 / LAW.efficiency + PEAK / 1e12 / LAW.intensity) / (1 / LAW.efficiency + PEAK / 2e12 / LAW.intensity)
    assert float(other.compute_s / one.compute_s) == pytest.approx(ratio)


def test_the_optimizer_reads_and_writes_the_state_that_a_device_holds() -> None:
    split = Layout(dp=2, fsdp=4, tp=2, gradient_accumulation_steps=8)
    plain, adamw = price(split), price(split, update_bytes=28.0)
    assert float(adamw.compute_s - plain.compute_s) == pytest.approx(WORK.parameters / 8 * 28 / MEMORY)
    assert adamw.total_s - plain.total_s == pytest.approx(adamw.compute_s - plain.compute_s)


def test_scores_that_lie_in_memory_take_their_traffic_and_the_whole_square() -> None:
    fused, whole = price(Layout(remat=REMAT_NONE)), price(Layout(remat=REMAT_NONE), fused_attention=False)
    square = 2 * 32 * 4 * 4096 * 4096 * 4096 / PEAK  # two matmuls, at half of the peak
    traffic = 32 * 32 * 4096 * 4096 * LAW.score_bytes / MEMORY
    assert float(whole.compute_s - fused.compute_s) == pytest.approx(3.5 * (square - ATTENTION) + traffic, rel=1e-3)


def test_a_third_of_what_runs_inside_a_host_is_waited_for_and_all_gradients_between_hosts() -> None:
    for layout, axis, operation in (
        (Layout(fsdp=8), "fsdp", None),
        (Layout(dp=8), "dp", "all_reduce"),
        (Layout(dp=16), "dp", "all_reduce"),
    ):
        step, spans = price(layout), lay_on_hosts(layout, A100, 8)
        parameters = WORK.parameters * 2
        if operation is None:
            moved = 2 * spans[axis].time("all_gather", parameters) + spans[axis].time("reduce_scatter", parameters)
        else:
            moved = spans[axis].time(operation, parameters)
        part = 1 if float(np.asarray(spans[axis].outer.size)) > 1 else 1 / 3
        assert float(step.communication_s[axis]) == pytest.approx(part * float(moved), rel=0.12)


def test_a_pipeline_waits_for_its_stages() -> None:
    """(p − 1) ÷ m of the steady part: Narayanan et al., arXiv:2104.04473, section 2.2."""
    step = price(Layout(pp=4, gradient_accumulation_steps=8))
    steady = float(step.compute_s + step.remat_s) + float(step.communication_s["pp"])
    assert float(step.bubble_s) == pytest.approx(steady * 3 / 8)


def test_experts_take_their_tokens_from_all_devices_and_longer_than_other_matmuls() -> None:
    assert float(price(Layout(ep=8), work=SPARSE).communication_s["ep"]) > 0
    assert float(price(Layout(), work=SPARSE).communication_s["ep"]) == 0
    alike, slower = (price(Layout(), work=SPARSE, law=replace(BARE, experts=each)).compute_s for each in (1.0, 2.0))
    routed = sum(block.count * block.expert_parameters_per_token for block in SPARSE.blocks)
    assert float(slower - alike) == pytest.approx(3 * 2 * routed * 4096 / PEAK)


@pytest.mark.parametrize(
    ("chip", "work", "layout", "spread", "words"),
    [
        ("v5p", WORK, Layout(fsdp=64), 1.09, "31 published runs"),
        ("v4", WORK, Layout(fsdp=64), 1.14, "no run on this chip"),
        ("h100", WORK, Layout(fsdp=64), 1.22, "five runs"),
        ("v5p", WORK, Layout(pp=2, cp=4), 1.25, "no run judges pp, cp"),
        ("v5p", WORK, Layout(cp=8), 1.3, "so few tokens"),
        ("v5p", SPARSE, Layout(ep=8), 1.5, "mixtures of experts"),
    ],
)
def test_an_interval_is_as_wide_as_what_is_known_least(
    chip: str, work: Any, layout: Layout, spread: float, words: str
) -> None:
    found = find_chip(chip)
    assert found is not None
    factor, reason = find_spread(found, work, layout)
    assert factor == spread
    assert words in reason

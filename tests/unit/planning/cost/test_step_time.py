"""What a step takes: parts that can be counted by hand, and how they move with the layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.gemm import find_curve
from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout
from meshwright.planning.cost.spans import lay_on_hosts
from meshwright.planning.cost.step_time import Execution, Machine, Practice, StepTime, price_step
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model

PEAK, MEMORY = 312e12, 2e12
MACHINE = Machine(PEAK, MEMORY, find_curve("a100"))
WORK = build_work(read_model("llama2-7b"), 4096)
SPARSE = build_work(read_model("qwen3-30b-a3b"), 4096)
BARE = Practice(
    matmul=1.0,
    attention=1.0,
    memory=1.0,
    traffic=0.0,
    traffic_cut=0.0,
    routed=0.0,
    logits_bytes=0.0,
    optimizer_bytes=0.0,
    tensor=1.0,
    network=1.0,
    tensor_latency_s=0.0,
    network_latency_s=0.0,
    hidden=1.0,
)
"""Nothing but matmuls, attention and what wires take; nothing hides."""


def price(
    layout: Layout, *, practice: Practice = BARE, work: Any = WORK, machine: Machine = MACHINE, **does: Any
) -> StepTime:
    spans = lay_on_hosts(layout, "a100", 8, 3e11, 25e9)
    return price_step(work, layout, machine, spans, practice, Execution(**does))


def test_parts_add_up() -> None:
    layout = Layout(dp=2, tp=2, pp=4, micro_batch=1, passes=8, remat=REMAT_FULL)
    step = price(layout, practice=Practice())

    parts = [step.compute_s, step.remat_s, step.bubble_s, step.optimizer_s, step.other_s]
    assert step.total_s == pytest.approx(sum(map(float, parts)) + sum(map(float, step.communication_s.values())))
    assert all(float(part) >= 0 for part in (*parts, *step.communication_s.values()))


def test_full_remat_computes_layers_once_more_and_minimal_only_what_is_no_matmul() -> None:
    practice = replace(BARE, traffic=8.0)
    full, minimal, none = (
        price(Layout(remat=remat), practice=practice) for remat in (REMAT_FULL, REMAT_MINIMAL, REMAT_NONE)
    )

    head = 3 * 2 * WORK.head.parameters * 4096 / (find_curve("a100").flops_per_s)
    assert float(full.remat_s) == pytest.approx((float(full.compute_s) - head) / 3, rel=0.02)
    assert none.remat_s == 0
    assert 0 < float(minimal.remat_s) < float(full.remat_s) / 4
    assert full.compute_s == minimal.compute_s == none.compute_s


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_a_pipeline_waits_for_its_stages(interleave: int) -> None:
    """(p − 1) ÷ (v·m) of the steady part: Narayanan et al., arXiv:2104.04473, section 2.2."""
    layout = Layout(pp=4, interleave=interleave, passes=8)
    step = price(layout, practice=replace(BARE, skew=0.0))

    steady = float(step.compute_s + step.remat_s) + float(step.communication_s["pp"])
    assert float(step.bubble_s) == pytest.approx(steady * 3 / (interleave * 8))


def test_experts_take_their_tokens_from_all_devices() -> None:
    step = price(Layout(ep=8), work=SPARSE)

    assert float(step.communication_s["ep"]) > 0
    assert float(price(Layout(ep=1), work=SPARSE).communication_s["ep"]) == 0
    waits = replace(BARE, launch_s=1e-3, dispatch_s=1e-2)
    assert price(Layout(ep=8), work=SPARSE, practice=waits, dispatch_waits=1.0).total_s > step.total_s


@pytest.mark.parametrize("name", ["matmul", "attention", "memory", "tensor", "network"])
def test_a_better_practice_is_never_slower(name: str) -> None:
    layout = Layout(dp=2, tp=4, pp=2, passes=4)
    times = [price(layout, practice=replace(Practice(), **{name: value})).total_s for value in (0.2, 0.4, 0.8)]

    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_candidates_are_priced_as_each_of_them() -> None:
    axes = [(1, 8, 4), (2, 4, 2), (8, 1, 1), (4, 2, 8)]
    tensor, data, micro = (np.array(column) for column in zip(*axes, strict=True))
    together = price(Layout(tp=tensor, dp=data, micro_batch=micro, passes=2), practice=Practice())

    alone = [price(Layout(tp=t, dp=d, micro_batch=m, passes=2), practice=Practice()).total_s for t, d, m in axes]
    assert together.total_s == pytest.approx(np.array(alone, float))

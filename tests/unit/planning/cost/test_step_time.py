"""What a step takes: parts that can be counted by hand, and how they move with the layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.gemm import find_curve
from meshwright.planning.cost.layer_time import time_collective
from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout
from meshwright.planning.cost.practice import Practice
from meshwright.planning.cost.spans import lay_on_hosts
from meshwright.planning.cost.step_time import Execution, Machine, StepTime, price_step
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


def test_one_device_computes_and_does_nothing_else() -> None:
    step = price(Layout(remat=REMAT_NONE))

    assert step.total_s == pytest.approx(float(step.compute_s))
    flops = WORK.flops_per_token * 4096
    assert flops / PEAK < step.total_s < 1.5 * flops / PEAK


def test_micro_batches_go_one_after_the_other() -> None:
    assert price(Layout(passes=6)).total_s == pytest.approx(6 * price(Layout()).total_s)


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


def test_what_a_policy_keeps_is_not_repeated() -> None:
    half = price(Layout(remat=REMAT_FULL), repeated_matmuls=0.5, repeated_attention=0.5)

    assert float(half.remat_s) == pytest.approx(float(price(Layout(remat=REMAT_FULL)).remat_s) / 2)


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_a_pipeline_waits_for_its_stages(interleave: int) -> None:
    """(p − 1) ÷ (v·m) of the steady part: Narayanan et al., arXiv:2104.04473, section 2.2."""
    layout = Layout(pp=4, interleave=interleave, passes=8)
    step = price(layout, practice=replace(BARE, skew=0.0))

    steady = float(step.compute_s + step.remat_s) + float(step.communication_s["pp"])
    assert float(step.bubble_s) == pytest.approx(steady * 3 / (interleave * 8))


def test_layers_that_do_not_fill_stages_count_as_the_fullest_stage() -> None:
    practice = replace(BARE, skew=0.0)
    four, five = (price(Layout(pp=pp), practice=practice) for pp in (4, 5))

    assert float(four.compute_s) / 8 == pytest.approx(float(five.compute_s) / 7)


def test_the_last_stage_waits_for_the_head_unless_it_has_a_layer_less() -> None:
    full, spare = (float(price(Layout(pp=pp)).compute_s) for pp in (4, 5))
    bare, lean = (float(price(Layout(pp=pp), practice=replace(BARE, skew=0.0)).compute_s) for pp in (4, 5))

    assert full > bare
    assert spare == lean


def test_kernels_that_a_host_starts_bound_small_layers() -> None:
    slow = replace(BARE, launch_s=0.1)
    step = price(Layout(remat=REMAT_NONE), practice=slow)

    assert step.total_s == pytest.approx(32 * (1 + slow.launch_backward) * 0.1, rel=0.05)
    assert (
        price(Layout(remat=REMAT_NONE), practice=slow, launched=0.0).total_s == price(Layout(remat=REMAT_NONE)).total_s
    )


def test_a_tensor_axis_sums_activations_twice_in_each_direction() -> None:
    layout = Layout(tp=8, remat=REMAT_NONE)
    spans = lay_on_hosts(layout, "a100", 8, 3e11, 25e9)
    one = time_collective(spans["tp"], "all_reduce", 2 * 4096 * 4096, BARE)

    assert float(price(layout).communication_s["tp"]) == pytest.approx(32 * 4 * one)
    assert float(price(replace(layout, remat=REMAT_FULL)).communication_s["tp"]) == pytest.approx(32 * 6 * one)


def test_what_runs_beside_compute_costs_less() -> None:
    practice = replace(BARE, hidden=3.0)
    layout = Layout(tp=8, pp=2, interleave=2, passes=4)
    plain, beside = (price(layout, practice=practice, tensor_overlap=on, send_overlap=on) for on in (0.0, 1.0))

    for axis in ("tp", "pp"):
        assert 0 < float(beside.communication_s[axis]) < float(plain.communication_s[axis]) / 2


def test_groups_that_cross_nodes_pay_the_network() -> None:
    slow = replace(BARE, network=0.5)

    def data(practice: Practice, **axes: int) -> float:
        return float(price(Layout(**axes), practice=practice).communication_s["dp"])

    assert data(slow, dp=8) == data(BARE, dp=8)
    assert data(slow, dp=16) == pytest.approx(2 * data(BARE, dp=16))
    part = replace(BARE, partial=0.5)
    assert data(part, tp=2, dp=16) == pytest.approx(2 * data(BARE, tp=2, dp=16))
    assert data(part, dp=16) == data(BARE, dp=16)


def test_a_sharded_optimizer_brings_weights_back_in_their_own_bytes() -> None:
    whole = float(price(Layout(dp=16), gradient_bytes=4.0).communication_s["dp"])
    sharded = float(price(Layout(dp=16), gradient_bytes=4.0, optimizer_sharded=True).communication_s["dp"])

    assert sharded == pytest.approx(whole * 3 / 4, rel=0.01)


def test_sharded_weights_are_gathered_for_each_pass_unless_they_are_kept() -> None:
    layout = Layout(fsdp=8, passes=4)
    again, kept = price(layout), price(layout, weights_kept=True)

    assert float(again.communication_s["fsdp"]) > 3 * float(kept.communication_s["fsdp"]) > 0


def test_experts_take_their_tokens_from_all_devices() -> None:
    step = price(Layout(ep=8), work=SPARSE)

    assert float(step.communication_s["ep"]) > 0
    assert float(price(Layout(ep=1), work=SPARSE).communication_s["ep"]) == 0
    waits = replace(BARE, launch_s=1e-3, dispatch_s=1e-2)
    assert price(Layout(ep=8), work=SPARSE, practice=waits, dispatch_waits=1.0).total_s > step.total_s


def test_tokens_that_go_to_a_node_once_cross_less() -> None:
    plain, once = (price(Layout(ep=16), work=SPARSE, dispatch_once=on) for on in (0.0, 1.0))
    inside = [price(Layout(ep=8), work=SPARSE, dispatch_once=on).total_s for on in (0.0, 1.0)]

    share = 2 * (1 - 0.5**8) / 8
    assert float(once.communication_s["ep"]) == pytest.approx(share * float(plain.communication_s["ep"]), rel=0.05)
    assert inside[0] == inside[1]


def test_narrow_matmuls_are_faster_but_for_the_head_and_attention() -> None:
    wide = Machine(989e12, 3.35e12, find_curve("h100"))
    narrow = Machine(1979e12, 3.35e12, find_curve("h100", "fp8"), 989e12, find_curve("h100"))
    practice = replace(BARE, narrow=1.0)

    fast, slow = (price(Layout(), machine=machine, practice=practice).total_s for machine in (narrow, wide))
    assert slow / 2 < fast < slow
    cast = price(Layout(), machine=narrow, practice=replace(practice, cast_bytes=4.0)).total_s
    assert fast < cast
    assert price(Layout(), machine=wide, practice=replace(practice, cast_bytes=4.0)).total_s == slow


def test_sizes_that_64_does_not_divide_are_slower() -> None:
    practice = replace(BARE, misaligned=0.1)

    assert price(Layout(tp=8), practice=practice).total_s > price(Layout(tp=8)).total_s
    assert price(Layout(tp=1), practice=practice).total_s == price(Layout(tp=1)).total_s


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

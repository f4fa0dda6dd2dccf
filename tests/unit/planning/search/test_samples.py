"""Models that are given by what a sample costs: prices by hand, what is chosen for them, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import DoesNotDivideError, InvalidRequestError, PlanInfeasibleError
from meshwright.planning.cost.gemm import find_curve
from meshwright.planning.cost.kept import read_keepings
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.practice import find_practice
from meshwright.planning.request import answer_request
from meshwright.planning.search.hardware import Hardware
from meshwright.planning.search.samples import SampleQuestion
from meshwright.planning.search.space import AXES, Bounds
from meshwright.topology.assemble import build_target
from meshwright.wire.cost import PlanMemory, PlanSchedule, PlanStepTime
from meshwright.wire.mesh import Plan, PlanRequest, Plans
from meshwright.wire.model import SampleModel, TrainingSpec

RESNET = {
    "name": "ResNet-50",
    "parameters": 25_600_000,
    "flops_per_sample": 2.46e10,
    "activation_bytes_per_sample": 4e7,
}
"""Parameters and FLOPs: torchvision's ResNet50_Weights, 25,557,032 and 4.09e9 multiply-adds of one image forward, which
are 8.2e9 FLOP, and three times that with the backward pass. The bytes are chosen so that FLOPs bound a step."""

LARGE = {
    "parameters": 30_000_000_000,
    "flops_per_sample": 1.8e14,
    "activation_bytes_per_sample": 4e9,
    "largest_layer_parameters": 1_000_000_000,
}
"""Of which no chip holds all: 16 bytes a parameter with AdamW in float32 are 480 GB."""

HIDDEN = find_practice("xla", "tpu", "tpu_v5e").practice.hidden
EXPOSED = find_practice("xla", "tpu", "tpu_v5e").practice.exposed
MEMORY_BYTES_PER_S = 8.19e11 * find_practice("xla", "tpu", "tpu_v5e").practice.memory
FLOPS_PER_S = find_curve("v5e").flops_per_s * find_practice("xla", "tpu", "tpu_v5e").practice.matmul


def ask(**fields: Any) -> Plans:
    asked = {"target": "v5e:4x4", "model": RESNET, "training": {"global_batch": 2048}, "include_devices": False}
    return answer_request(PlanRequest.model_validate({**asked, **fields}))


def read(plan: Plan) -> tuple[PlanStepTime, PlanMemory, PlanSchedule]:
    assert plan.step_time is not None
    assert plan.memory is not None
    assert plan.schedule is not None
    return plan.step_time, plan.memory, plan.schedule


def time_wires(axis: str, size: int, operation: Any, byte_count: float) -> float:
    """Returns the seconds of a collective over all devices of v5e:4x4, as a step reaches them."""
    span = Hardware.of(build_target("v5e:4x4"), 16).lay(Layout(**{axis: size}))[axis]
    practice = find_practice("xla", "tpu", "tpu_v5e").practice
    return float(span.time(operation, byte_count)) / practice.tensor + practice.tensor_latency_s


def add_exposed(compute_s: float, communication_s: float) -> float:
    """Returns what communication adds to compute that it can run beside."""
    together = (compute_s**HIDDEN + communication_s**HIDDEN) ** (1 / HIDDEN)
    return (1 - EXPOSED) * (together - compute_s) + EXPOSED * communication_s


# ---- one mesh, by hand ----------------------------------------------------------------------------------------------


def test_a_step_of_copies_takes_its_flops_and_what_sums_gradients_in_the_weights_dtype() -> None:
    (plan,) = ask(mesh="dp:16").plans
    step, _, _ = read(plan)
    compute_s = 2.46e10 * 2048 / (16 * FLOPS_PER_S)
    gradients_s = time_wires("dp", 16, "all_reduce", 4 * 25.6e6)
    assert step.compute_s == pytest.approx(compute_s)
    assert step.communication_s == {"dp": pytest.approx(add_exposed(compute_s * 2 / 3, gradients_s))}
    assert step.optimizer_s == pytest.approx(25.6e6 * 28 / MEMORY_BYTES_PER_S)
    assert (step.remat_s, step.bubble_s, step.other_s) == (0, 0, 0)
    total_s = step.compute_s + step.communication_s["dp"] + step.optimizer_s
    assert step.total_s == pytest.approx(total_s)
    assert plan.samples_per_s == pytest.approx(2048 / total_s)
    assert plan.mfu_ratio == pytest.approx(2.46e10 * 2048 / total_s / (16 * 1.97e14))


def test_activations_that_take_longer_to_write_and_read_than_the_flops_bound_a_step() -> None:
    (plan,) = ask(mesh="dp:16", model={**RESNET, "activation_bytes_per_sample": 1e8}).plans
    assert read(plan)[0].compute_s == pytest.approx(2 * 1e8 * 128 / MEMORY_BYTES_PER_S)


def test_the_memory_of_copies_is_state_and_the_activations_of_a_micro_batch() -> None:
    (plan,) = ask(mesh="dp:16").plans
    _, memory, schedule = read(plan)
    assert (schedule.micro_batch, schedule.passes, schedule.remat) == (128, 1, "none")
    assert memory.parts == {
        "parameters": 102_400_000,
        "gradients": 102_400_000,
        "optimizer": 204_800_000,
        "activations": 5_120_000_000,
    }
    assert memory.per_device_bytes == 5_529_600_000
    assert memory.fits


def test_several_passes_keep_fewer_activations_and_a_second_set_of_gradients() -> None:
    (plan,) = ask(mesh="dp:16", training={"global_batch": 2048, "gradient_accumulation": 4}).plans
    step, memory, schedule = read(plan)
    assert (schedule.micro_batch, schedule.passes) == (32, 4)
    assert memory.parts["activations"] == 32 * 4e7
    assert memory.parts["gradients"] == 2 * 102_400_000
    pass_s = 2.46e10 * 32 / FLOPS_PER_S
    gradients_s = time_wires("dp", 16, "all_reduce", 4 * 25.6e6)
    assert step.compute_s == pytest.approx(4 * pass_s)
    assert step.communication_s["dp"] == pytest.approx(add_exposed(pass_s * 2 / 3, gradients_s))


def test_narrow_weights_take_half_and_plain_descent_no_moments() -> None:
    (plan,) = ask(mesh="dp:16", training={"global_batch": 2048, "weight_dtype": "bfloat16", "optimizer": "sgd"}).plans
    step, memory, _ = read(plan)
    assert memory.parts["parameters"] == memory.parts["gradients"] == 51_200_000
    assert "optimizer" not in memory.parts
    gradients_s = time_wires("dp", 16, "all_reduce", 2 * 25.6e6)
    assert step.communication_s["dp"] == pytest.approx(add_exposed(step.compute_s * 2 / 3, gradients_s))


def test_fsdp_cuts_the_state_and_gathers_all_weights_where_no_layer_is_known() -> None:
    (plan,) = ask(mesh="fsdp:16").plans
    step, memory, _ = read(plan)
    assert memory.parts["parameters"] == memory.parts["gradients"] == 6_400_000
    assert memory.parts["optimizer"] == 12_800_000
    assert memory.parts["gathered"] == 2 * 25_600_000
    assert step.optimizer_s == pytest.approx(1.6e6 * 28 / MEMORY_BYTES_PER_S)
    gather_s = time_wires("fsdp", 16, "all_gather", 2 * 25.6e6)
    scatter_s = time_wires("fsdp", 16, "reduce_scatter", 4 * 25.6e6)
    forward_s = add_exposed(step.compute_s / 3, gather_s)
    backward_s = add_exposed(step.compute_s * 2 / 3, gather_s + scatter_s)
    assert step.communication_s == {"fsdp": pytest.approx(forward_s + backward_s)}


def test_weights_are_gathered_a_layer_at_a_time_where_the_largest_is_known() -> None:
    whole, layers = (ask(mesh="fsdp:16", model={**RESNET, **more}).plans[0] for more in ({}, LAYERED))
    held = read_keepings()["xla", "tpu"].gathered
    assert read(layers)[1].parts["gathered"] == pytest.approx(held * 2_560_000 * 2)
    assert read(layers)[1].parts["gathered"] < read(whole)[1].parts["gathered"]
    gather_s = 10 * time_wires("fsdp", 16, "all_gather", 2 * 2.56e6)
    scatter_s = 10 * time_wires("fsdp", 16, "reduce_scatter", 4 * 2.56e6)
    step = read(layers)[0]
    forward_s = add_exposed(step.compute_s / 3, gather_s)
    backward_s = add_exposed(step.compute_s * 2 / 3, gather_s + scatter_s)
    assert step.communication_s["fsdp"] == pytest.approx(forward_s + backward_s)


LAYERED = {"largest_layer_parameters": 2_560_000}
"""A tenth of the model."""


def test_passes_gather_anew_each() -> None:
    once, twice = (
        read(ask(mesh="fsdp:16", training={"global_batch": batch, "gradient_accumulation": passes}).plans[0])[0]
        for batch, passes in ((1024, 1), (2048, 2))
    )
    assert twice.communication_s["fsdp"] == pytest.approx(2 * once.communication_s["fsdp"])


def test_slices_whose_gradients_meet_wait_for_the_slowest() -> None:
    (plan,) = ask(target="2*v5e:4x4", mesh="dp:32", training={"global_batch": 4096}).plans
    step, _, _ = read(plan)
    straggle = find_practice("xla", "tpu", "tpu_v5e").practice.straggle
    assert step.other_s == pytest.approx(straggle * step.compute_s)
    assert straggle > 0
    parts = read(ask(target="2*v5e:4x4", mesh="dp:2,fsdp:16", training={"global_batch": 4096}).plans[0])[0]
    assert parts.other_s == pytest.approx(straggle * (parts.compute_s + parts.communication_s["fsdp"]))


def test_the_largest_batch_is_the_last_that_fits() -> None:
    (plan,) = ask(mesh="dp:16").plans
    _, memory, _ = read(plan)
    assert memory.capacity_bytes is not None
    state = 16 * 25_600_000
    assert plan.largest_batch == 16 * ((memory.capacity_bytes - state) // 40_000_000)


# ---- what a plan says -----------------------------------------------------------------------------------------------


def test_a_plan_says_what_is_known_and_that_no_run_was_measured() -> None:
    (plan, *_) = ask(top=1).plans
    step, _, schedule = read(plan)
    assert (step.low_s, step.high_s, plan.tokens_per_s, plan.price_per_million_tokens) == (None, None, None, None)
    assert step.basis == "xla/tpu/tpu_v5e; large matmuls assumed"
    assert schedule.sequence_length == TrainingSpec(global_batch=1).sequence_length
    assert plan.model is not None
    assert plan.model.name == "ResNet-50"
    assert plan.model.parameter_count == plan.model.active_parameter_count == 25_600_000
    assert "priced_by_samples" in {notice.code for notice in ask().warnings}
    assert "priced_by_samples" in {notice.code for notice in ask(mesh="dp:16").plans[0].warnings}


def test_a_price_of_devices_is_one_of_samples_and_not_of_tokens() -> None:
    (plan,) = ask(top=1, search={"price_per_device_hour": 1.2}).plans
    assert plan.price_per_million_tokens is None
    assert plan.samples_per_s is not None
    assert plan.price_per_million_samples == pytest.approx(16 * 1.2 / 3600 / plan.samples_per_s * 1e6)


def test_targets_are_compared_by_their_price_of_samples() -> None:
    prices = {"v5e:4x4": 0.1, "v5p:4x4x4": 100.0}
    found = ask(target=None, targets=tuple(prices), search={"price_per_device_hour": prices})
    dear, cheap = (each.price_per_million_samples or 0.0 for each in reversed(found.comparison))
    assert [each.target for each in found.comparison] == list(prices)
    assert found.comparison[0].message == "the least price of samples"
    assert f"{dear / cheap:.2f} times its price of samples" in found.comparison[1].message
    assert [each.samples_per_s for each in found.comparison] == [plan.samples_per_s for plan in found.plans]


def test_a_mesh_without_training_is_planned_without_a_price() -> None:
    (plan,) = ask(mesh="dp:4,fsdp:4", training=None).plans
    assert plan.memory is None
    assert plan.step_time is None
    assert plan.model is not None
    assert plan.model.parameter_count == 25_600_000


def test_figures_that_do_not_fit_are_told_with_what_would_help() -> None:
    (plan,) = ask(mesh="dp:16", training={"global_batch": 2**16}).plans
    assert read(plan)[1].fits is False
    (notice,) = (each for each in plan.warnings if each.code == "memory_does_not_fit")
    assert "fsdp" in notice.hint
    assert "tp" not in notice.hint.split("fsdp")[1]
    assert "remat" not in notice.hint


# ---- searches -------------------------------------------------------------------------------------------------------


def test_a_model_that_no_device_holds_gets_fsdp_and_copies_are_rejected_for_memory() -> None:
    found = ask(target="v5p:4x4x4", model=LARGE, training={"global_batch": 512}, top=3)
    assert found.plans
    for plan in found.plans:
        _, memory, _ = read(plan)
        assert plan.mesh_shape["fsdp"] >= 8
        assert memory.fits
        assert memory.parts["parameters"] == 4 * 30_000_000_000 / plan.mesh_shape["fsdp"]
    copies = next(each for each in found.rejected if each.mesh_shape == {"dp": 64})
    assert copies.reason == "memory"


def test_where_nothing_fits_that_is_said() -> None:
    found = ask(target="v5e:2x2", model=LARGE, training={"global_batch": 4})
    assert found.plans == ()
    assert [notice.code for notice in found.warnings] == ["nothing_fits"]
    assert "sequence" not in found.warnings[0].hint


def test_a_mesh_that_is_given_is_priced_as_the_search_prices_it() -> None:
    best = ask(top=1).plans[0]
    schedule = read(best)[2]
    training = {"global_batch": 2048, "gradient_accumulation": schedule.passes}
    again = ask(mesh=best.mesh_shape, training=training).plans[0]
    assert read(again) == read(best)


def test_of_equal_steps_the_one_with_fewest_passes_is_told() -> None:
    (plan,) = ask(target="v5e:1x1", training={"global_batch": 256}).plans
    assert read(plan)[2].passes == 1
    (plan,) = ask(target="v5e:1x1", training={"global_batch": 1024}).plans
    assert read(plan)[2].passes == 4  # 256 × 40 MB are 10 GB, and 512 would be 20 of the chip's 16


def test_a_search_keeps_to_its_bounds() -> None:
    assert {plan.mesh_shape.get("fsdp", 1) for plan in ask(top=8, search={"at_most": {"fsdp": 2}}).plans} <= {1, 2}
    assert [plan.mesh_shape for plan in ask(top=8, search={"axes": {"fsdp": 4, "tp": 1}}).plans] == [
        {"dp": 4, "fsdp": 4}
    ]
    training = {"global_batch": 2048, "gradient_accumulation": 8}
    assert all(read(plan)[2].passes == 8 for plan in ask(top=8, training=training).plans)
    plan = ask(top=1, search={"moment_dtypes": ["bfloat16"], "axes": {"dp": 16}}).plans[0]
    assert read(plan)[1].parts["optimizer"] == 4 * 25_600_000
    assert read(plan)[2].first_moment_dtype == "bfloat16"


def test_a_batch_that_no_mesh_divides_is_refused_with_one_that_it_does() -> None:
    with pytest.raises(PlanInfeasibleError) as refused:
        ask(training={"global_batch": 2047})
    assert "2048" in refused.value.hint
    assert ask(training={"global_batch": 2048}).plans


def test_targets_are_compared_and_a_lost_host_has_its_plan() -> None:
    found = ask(target=None, targets=["v5e:4x4", "v5p:2x2x4"])
    assert {each.target for each in found.comparison} == {"v5e:4x4", "v5p:2x2x4"}
    assert all(each.step_s is not None and each.tokens_per_s is None for each in found.comparison)
    fallback = ask(target="4*h100:8", fallback=True).fallback
    assert fallback is not None
    assert fallback.device_count in (16, 24)
    assert fallback.plans[0].model is not None


def test_equal_questions_get_equal_answers_whatever_the_models_name() -> None:
    assert ask().model_dump_json() == ask().model_dump_json()
    named, nameless = ask(), ask(model={**RESNET, "name": None})
    assert [read(plan) for plan in named.plans] == [read(plan) for plan in nameless.plans]


def test_a_search_over_512_devices_is_quick() -> None:
    began_s = time.monotonic()
    found = ask(target="64*h100:8", model=LARGE, training={"global_batch": 512 * 27_720}, top=3)
    assert found.plans
    assert time.monotonic() - began_s < 20, "a third of a second on a machine of its own"


@given(devices=st.sampled_from([1, 2, 12, 16, 64]), batch=st.integers(1, 600))
def test_candidates_use_each_device_and_each_sample_once(devices: int, batch: int) -> None:
    hardware = Hardware.of(build_target("8*h100:8"), devices)
    training = TrainingSpec(global_batch=batch, remat="none")
    layout = SampleQuestion(SampleModel.model_validate(RESNET), training, hardware, 0.75).list_space(Bounds()).layout
    rows = list(zip(*(getattr(layout, name) for name in (*AXES, "micro_batch", "passes")), strict=True))
    sizes = {(dp, fsdp, micro, passes) for _, dp, fsdp, _, _, _, micro, passes in rows}
    parts = [part for part in range(1, devices + 1) if devices % part == 0]
    shares = [share for share in range(1, batch + 1) if batch % devices == 0 and (batch // devices) % share == 0]
    assert len(rows) == len(sizes)
    assert sizes == {(devices // part, part, s, batch // devices // s) for part in parts for s in shares}
    assert all((pp, ep, cp, tp) == (1, 1, 1, 1) for pp, _, _, ep, cp, tp, _, _ in rows)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", ["tp:16", "dp:4,pp:4", "dp:2,cp:8", "ep:16", "dp:4,model:4"])
def test_an_axis_that_cuts_what_nobody_knows_is_refused(mesh: str) -> None:
    axis = mesh.rpartition(",")[2]
    with pytest.raises(InvalidRequestError, match=f"{axis}: of a model that is given by what a sample costs"):
        ask(mesh=mesh)


def test_an_axis_of_size_1_cuts_nothing() -> None:
    assert read(ask(mesh="dp:16,tp:1").plans[0]) == read(ask(mesh="dp:16").plans[0])


def test_a_batch_that_the_mesh_does_not_divide_is_refused_with_one_that_it_does() -> None:
    with pytest.raises(DoesNotDivideError, match="data:16 × gradient_accumulation 3 = 48") as refused:
        ask(mesh="data:16", training={"global_batch": 2048, "gradient_accumulation": 3})
    assert "2064" in refused.value.hint
    assert ask(mesh="data:16", training={"global_batch": 2064, "gradient_accumulation": 3}).plans

"""From a request to ranked plans: what is told adds up, order and reasons are right, and bad requests are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, RequestError
from meshwright.planning.compile_job import read_capacity
from meshwright.planning.cost.memory import count_pieces
from meshwright.planning.hardware import TRAINING_FRACTION
from meshwright.planning.models import read_model
from meshwright.planning.parallelism import check_divides
from meshwright.planning.request import Inventory, answer_request, reorder
from meshwright.planning.search.candidates import Bounds, Hardware, Question
from meshwright.planning.search.search import UNTESTED
from meshwright.testing import FakeAgent
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.base import DeviceSelection
from meshwright.wire.mesh import EQUAL_WITHIN, PlanRequest, SearchRequest
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.fakes.asking import ask_planner

TRAINING = {"seq_len": 4096, "global_batch_size": 256}
SGD = {"optimizer": "sgd", "global_batch_size": 64}
BATCH = {"seq_len": 8192, "global_batch_size": 64}
LONG = {"seq_len": 8192, "global_batch_size": 2048}


def ask(**fields: Any) -> Any:
    asked = {"target": "v5p:4x4x4", "model": "llama3-8b", "training": TRAINING, "include_devices": False, **fields}
    return ask_planner(**asked)


def is_tight(plan: Any) -> bool:
    return plan.memory.per_device_bytes > 0.92 * (plan.memory.capacity_bytes or 0)


def read_total(plan: Any) -> float:
    return plan.step_time.total_s


@pytest.mark.parametrize("target", ["v5p:4x4x4", "8*h100:8", "v5e:8x8", "2*v5e:4x8", "tpu7x:4x4x4"])
def test_the_best_meshes_come_first_equal_ones_with_the_fewest_axes_and_all_of_them_fit(target: str) -> None:
    found = ask(target=target, top=5)
    assert len(found.plans) == 5
    untested = {"tp"} if "h100" in target else set()
    seconds = [read_total(plan) * (1 + UNTESTED * bool(untested & {*plan.mesh_shape})) for plan in found.plans]
    near = found.plans[: sum(each <= (1 + EQUAL_WITHIN) * min(seconds) for each in seconds)]
    assert max(seconds[: len(near)]) <= (1 + EQUAL_WITHIN) * min(seconds)
    assert seconds[len(near) :] == sorted(seconds[len(near) :])
    extra = [len({"tp", "cp", "pp"} & {*plan.mesh_shape}) for plan in near if not is_tight(plan)]
    assert extra == sorted(extra)
    assert len({tuple(sorted(plan.mesh_shape.items())) for plan in found.plans}) == 5
    assert all(plan.memory.fits for plan in found.plans)
    assert all(plan.fingerprint.startswith("mw1-") and plan.axes for plan in found.plans)


def test_of_equal_meshes_the_one_with_the_smaller_handicap_comes_first() -> None:
    found = ask(target="v5p:4x4x12", training={"seq_len": 8192, "global_batch_size": 128}, top=2)
    assert [plan.mesh_shape for plan in found.plans] == [
        {"pp": 3, "fsdp": 8, "tp": 8}, {"pp": 3, "fsdp": 8, "cp": 8},  # 14 % faster, and cp for short sequences
    ]  # fmt: skip


def test_a_mesh_that_is_faster_than_the_first_by_an_axis_that_no_run_tests_is_named() -> None:
    found = ask(target="h100:8", model="gpt-oss-20b", training=BATCH)
    (notice,) = found.warnings
    first, best = found.plans[0], ask(target="h100:8", mesh="ep:4,tp:2", model="gpt-oss-20b", training=BATCH).plans[0]
    assert (notice.code, first.mesh_shape) == ("faster_untested", {"fsdp": 8})
    saved = 1 - read_total(best) / read_total(first)
    assert notice.message == f"ep:4 × tp:2 may save {saved:.0%}, by tp on GPUs, which no run tests"


def test_collectives_hide_behind_no_more_than_the_compute_there_is() -> None:
    asked = {"target": "v5e:4x4", "axes": {"fsdp": 16}}
    few, more = (ask(**asked, training={"seq_len": 512, "global_batch_size": size}).plans[0] for size in (16, 32))
    assert read_total(few) == pytest.approx(read_total(more))


def test_what_a_plan_tells_adds_up() -> None:
    (plan, *_) = ask().plans
    assert sum(plan.memory.parts.values()) == plan.memory.per_device_bytes <= (plan.memory.capacity_bytes or 0)
    step = plan.step_time
    parts = step.compute_s + step.remat_s + sum(step.communication_s.values()) + step.bubble_s
    assert parts == pytest.approx(step.total_s)
    assert step.low_s < step.total_s < step.high_s
    schedule = plan.schedule
    parts = math.prod(size for name, size in plan.mesh_shape.items() if name in ("dp", "fsdp", "ep"))
    assert schedule.micro_batch_size * schedule.gradient_accumulation_steps * parts == schedule.global_batch_size == 256
    assert plan.tokens_per_s == pytest.approx(256 * 4096 / step.total_s)
    # 6 FLOP a parameter and token, and attention on top; of 459 TFLOP/s on each of 64 chips.
    least = 6 * 7.5e9 * 256 * 4096 / step.total_s / 64 / 459e12
    assert least < plan.mfu < min(1.25 * least, 1)
    assert plan.largest_batch >= schedule.micro_batch_size * parts


@pytest.mark.parametrize(
    ("model", "target", "batch"),
    [("llama3-8b", "v5p:4x4x4", 256), ("llama3.2-1b", "h100:1", 64), ("llama3.1-70b", "tpu7x:4x4x4", 64)],
)
def test_a_mesh_that_is_given_is_priced_as_the_search_prices_it(model: str, target: str, batch: int) -> None:
    asked = {"model": model, "target": target, "training": {**TRAINING, "global_batch_size": batch}}
    for found in ask(**asked, top=4).plans:
        given = ask(**asked, mesh=found.mesh_shape or {"dp": 1}).plans[0]
        assert (given.step_time, given.memory, given.schedule) == (found.step_time, found.memory, found.schedule)
        assert given.warnings == found.warnings


@st.composite
def small_models(draw: st.DrawFn) -> ModelSpec:
    """Small models with few KV heads, odd vocabularies, learned positions, and mixtures with dense first layers."""
    pairs, layers = draw(st.sampled_from([1, 2, 3, 5])), draw(st.integers(2, 6))
    fields = read_model("mixtral-8x7b").model_dump(exclude_defaults=True) | {
        "vocab_size": draw(st.sampled_from([32_000, 50_257, 51_865])),
        "hidden_size": draw(st.sampled_from([512, 768, 1000])), "num_hidden_layers": layers, "head_dim": 64,
        "intermediate_size": draw(st.sampled_from([1001, 1024, 1536])), "num_key_value_heads": pairs,
        "num_attention_heads": pairs * draw(st.sampled_from([1, 4, 8])),
        "positions": draw(st.sampled_from(["rope", "learned"])),
        "max_position_embeddings": draw(st.sampled_from([2048, 4096])),
    }  # fmt: skip
    if draw(st.booleans()):
        return ModelSpec.model_validate(fields | dict.fromkeys(("num_experts", "num_experts_per_tok")))
    sizes = draw(st.sampled_from([6, 8])), draw(st.sampled_from([None, 768]))
    experts = dict(zip(("num_experts", "moe_intermediate_size"), sizes, strict=True))
    return ModelSpec.model_validate(fields | experts | {"num_expert_layers": draw(st.integers(1, layers))})


@given(small_models(), st.sampled_from(["h100:8", "v5e:2x4", "3*a100:2"]), st.sampled_from([12, 16, 30]))
@settings(max_examples=20)
def test_a_search_never_refuses_its_own_answer(model: ModelSpec, target: str, batch: int) -> None:
    asked = {"target": target, "model": model.model_dump(), "training": {"global_batch_size": batch}}
    try:
        found = ask(**asked, fallback=True)
    except RequestError:
        return  # no mesh divides this model, which a search may say
    for plan in (*found.plans, *(found.fallback.plans if found.fallback else ())):
        passes, length = plan.schedule.gradient_accumulation_steps, plan.schedule.seq_len
        training = TrainingSpec(global_batch_size=batch, gradient_accumulation_steps=passes, seq_len=length)
        check_divides(model, training, plan.mesh_shape)


def test_a_rejected_mesh_is_never_faster_than_the_best() -> None:
    training = {"seq_len": 4096, "global_batch_size": 64}
    found = ask(target="v5p:2x4x4", training=training, remat=["none"], top=1)
    assert found.rejected
    assert not any("-" in each.message.partition("% more")[0] for each in found.rejected if "more than" in each.message)


def test_communication_is_told_by_the_names_of_the_mesh() -> None:
    for mesh, target in (("data:2,shard:2,model:2", "h100:8"), ("expert:8", "h100:8"), ("cp:8", "v5e:2x4")):
        model = "mixtral-8x7b" if "expert" in mesh else "llama3-8b"
        (plan,) = ask(target=target, model=model, mesh=mesh).plans
        assert plan.step_time.communication_s
        assert set(plan.step_time.communication_s) <= set(plan.mesh_shape)


@pytest.mark.parametrize(("axes", "message"), [
    ({"tp": 3}, "tp:3 does not divide 64 devices"),
    ({"tp": 8, "fsdp": 16}, "fsdp:16 × tp:8 does not divide 64 devices"),
    ({"ep": 2}, "ep:2 does not divide num_experts 1"),
    ({"pp": 1, "dp": 2, "fsdp": 2, "ep": 1, "cp": 1, "tp": 1}, "are 4 devices of 64, and no axis is free"),
])  # fmt: skip
def test_given_axes_that_no_mesh_has_are_refused_by_their_own_field(axes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanInfeasibleError) as refused:
        ask(axes=axes)
    (error,) = refused.value.errors
    assert error["field"] == "axes"
    assert message in error["message"]


def test_sequences_beyond_learned_positions_are_refused_before_a_search() -> None:
    with pytest.raises(InvalidRequestError, match="max_position_embeddings 1024"):
        ask(target="h100:8", model="gpt2")


def test_a_plan_for_a_host_goes_by_the_memory_of_its_own_devices() -> None:
    known = build_target("h100:8")
    known_memory: Any = known.devices[0].memory
    less = known_memory.model_copy(update={"capacity_bytes": 20 * 2**30})
    host = replace(known, devices=(*known.devices[1:], known.devices[0].model_copy(update={"memory": less})))
    request = PlanRequest.model_validate({"mesh": "fsdp:8", "model": "llama3-8b", "training": TRAINING})
    plan: Any = answer_request(request, Inventory(host)).plans[0]
    assert plan.memory.capacity_bytes == read_capacity(plan) == int(0.92 * (20 * 2**30 - 768 * 2**20))


def test_times_of_another_dtype_are_told() -> None:
    training = {**TRAINING, "compute_dtype": "float32"}
    assert [notice.code for notice in ask(training=training).warnings] == ["priced_in_16_bits"]
    assert "priced_in_16_bits" in {
        each.code for each in ask(training={**TRAINING, "compute_dtype": "float16"}).warnings
    }
    (plan,) = ask(training=training, mesh="fsdp:64").plans
    assert "priced_in_16_bits" in {notice.code for notice in plan.warnings}
    assert ask().warnings == ()


def test_a_search_for_maxtext_finds_what_maxtext_can_run() -> None:
    for model, target, batch in (("llama3.1-405b", "2048*h100:8", 2048), ("deepseek3-671b", "256*h100:8", 8192)):
        asked: Any = {"model": model, "target": target, "training": {"seq_len": 4096, "global_batch_size": batch}}
        (best,), (runs,) = ask(**asked, top=1).plans, ask(**asked, top=1, exports=["maxtext"]).plans
        assert "maxtext" in runs.exports
        assert read_total(runs) > read_total(best)


def test_a_slice_of_one_chip_is_searched() -> None:
    (plan, *_) = ask(target="v6e:1x1", model="qwen3-0.6b", training={"seq_len": 2048, "global_batch_size": 8}).plans
    assert (plan.mesh_shape, plan.step_time.communication_s) == ({"dp": 1}, {})


def test_float32_takes_twice_the_time_of_matmuls_on_gpus_alone() -> None:
    for target, factor in (("h100:8", 2), ("v5p:2x2x2", 1)):
        asked: Any = {"target": target, "mesh": "fsdp:8", "model": "llama3-8b"}
        asked["training"] = {
            "seq_len": 8192,
            "global_batch_size": 64,
            "remat": "full",
            "gradient_accumulation_steps": 8,
        }
        half, whole = (
            ask(**asked | {"training": asked["training"] | {"compute_dtype": dtype}}).plans[0].step_time.compute_s
            for dtype in ("bfloat16", "float32")
        )
        assert whole / half == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize(("training", "hint"), [
    ({"remat": "none", "global_batch_size": 16}, "fsdp:4 × tp:2 fits"),
    ({"gradient_accumulation_steps": 1, "global_batch_size": 128}, "leave gradient_accumulation_steps free"),
])  # fmt: skip
def test_what_fits_in_the_place_of_a_mesh_keeps_what_is_given(training: dict[str, Any], hint: str) -> None:
    asked = {"target": "h100:8", "model": "llama3-8b", "training": {"seq_len": 8192, **training}}
    (plan,) = ask(**asked, mesh="fsdp:8").plans
    (notice,) = (each for each in plan.warnings if each.code == "memory_does_not_fit")
    assert notice.hint == hint
    if "fits" in hint:
        assert ask(**asked, mesh=hint.removesuffix(" fits").replace(" × ", ",")).plans[0].memory.fits


@pytest.mark.parametrize(("batch", "fits"), [(1536, True), (2048, False)])
def test_what_is_offloaded_has_room_in_the_hosts_memory(batch: int, fits: bool) -> None:
    training = {"seq_len": 8192, "global_batch_size": batch, "remat": "offload", "gradient_accumulation_steps": 1}
    (plan,) = ask(target="tpu7x:4x8x8", mesh="fsdp:512", model="llama3.1-405b", training=training).plans
    assert plan.memory.host_bytes == batch // 512 * 8192 * 16384 * 2 * 126
    assert plan.memory.per_device_bytes < plan.memory.capacity_bytes
    assert plan.memory.fits is fits  # three sequences a device, as published
    assert any("on its host" in notice.message for notice in plan.warnings) is not fits


def test_offload_is_chosen_only_where_the_hosts_memory_is_known() -> None:
    for target, is_known in (("v6e:8x8", True), ("32*h100:8", False)):
        best = ask(target=target, model="llama3.1-70b", training={"seq_len": 8192, "global_batch_size": 64}, top=8)
        assert ("offload" in {plan.schedule.remat for plan in best.plans}) is is_known


def test_what_may_be_chosen_is_kept() -> None:
    found = ask(axes={"tp": 4}, at_most={"pp": 1}, remat=["full"], top=8)
    assert {plan.mesh_shape.get("tp") for plan in found.plans} == {4}
    assert all("pp" not in plan.mesh_shape for plan in found.plans)
    assert {plan.schedule.remat for plan in found.plans if plan.schedule} == {"full"}


def test_moments_may_be_chosen_and_take_the_bytes_that_they_have() -> None:
    training = {**TRAINING, "remat": "full", "gradient_accumulation_steps": 1}
    whole, half = (
        ask(training={**training, "first_moment_dtype": dtype, "second_moment_dtype": dtype}).plans[0]
        for dtype in ("float32", "bfloat16")
    )
    # llama3-8b on 64 devices of fsdp: two moments of 4 or 2 bytes for each of 8.03e9 parameters.
    assert whole.memory.parts["optimizer"] == pytest.approx(8 * 8.03e9 / 64, rel=0.01)
    assert half.memory.parts["optimizer"] * 2 == pytest.approx(whole.memory.parts["optimizer"])
    chosen = ask(training=training, moment_dtypes=["float32", "bfloat16"]).plans[0]
    assert (chosen.schedule.first_moment_dtype, chosen.schedule.second_moment_dtype) == ("float32", "float32")
    assert chosen.memory == whole.memory


def test_moments_of_an_optimizer_that_has_none_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="optimizer is sgd"):
        ask(training={**TRAINING, "optimizer": "sgd"}, moment_dtypes=["bfloat16"])
    (plan, *_) = ask(training={**TRAINING, "optimizer": "sgd"}).plans
    assert plan.schedule.first_moment_dtype is None
    assert "optimizer" not in plan.memory.parts


def test_a_model_that_cannot_be_priced_is_no_search_and_a_warning_beside_a_mesh() -> None:
    config = {"model_type": "mamba", "hidden_size": 64}
    with pytest.raises(InvalidRequestError) as refused:
        ask(model=config)
    assert [error["field"] for error in refused.value.errors] == ["model"]
    (plan,) = ask(model=config, mesh="fsdp:64").plans
    assert (plan.model, [notice.code for notice in plan.warnings]) == (None, ["model_not_supported"])
    with pytest.raises(InvalidRequestError, match="mamba"):
        ask(model=config, mesh="fsdp:64", training=TRAINING, exports=["maxtext"])


@pytest.mark.parametrize("export", ["jax", "maxtext"])
def test_an_export_writes_batch_and_length_so_that_it_needs_them(export: str) -> None:
    with pytest.raises(InvalidRequestError, match="exports is about a model's step, and training is not given"):
        ask(mesh="fsdp:64", training=None, exports=[export])


@pytest.mark.parametrize(("batch", "is_told"), [(64, True), (8, False)])
def test_a_step_that_fills_a_device_but_for_the_estimates_error_is_told(batch: int, is_told: bool) -> None:
    training = {"seq_len": 8192, "global_batch_size": batch}
    (plan, *_) = ask(model="qwen3-14b", target="a100:8", axes={"fsdp": 8}, training=training).plans
    assert (is_tight(plan), "memory_is_tight" in [notice.code for notice in plan.warnings]) == (is_told, is_told)


@pytest.mark.parametrize(("fields", "hint"), [
    ({"training": {**TRAINING, "global_batch_size": 7}, "axes": {"fsdp": 64}}, "use a global_batch_size of 64"),
    ({"target": "h100:8", "devices": DeviceSelection(count=7)}, 'search on 4 of them, devices {"count": 4}'),
    ({"target": "h100:8", "model": "gpt2", "devices": DeviceSelection(count=7)}, "use a global_batch_size of 259"),
    ({"target": "h100:8", "training": {**TRAINING, "gradient_accumulation_steps": 3}}, "use a global_batch_size of 26"),
    ({"axes": {"tp": 8}, "at_most": {"tp": 4}}, "leave tp out of axes or of at_most"),
])  # fmt: skip
def test_what_no_mesh_cuts_is_refused_with_what_works(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(PlanInfeasibleError) as refused:
        ask(**{"training": {**TRAINING, "seq_len": 1024}, **fields})
    assert refused.value.hint.startswith(hint)


def test_a_batch_that_fits_is_told_where_the_given_one_does_not() -> None:
    found = ask(target="20*h100:8", model="llama3-70b", training={"global_batch_size": 1023})
    assert any("; 960 fits, on dp:5 × fsdp:32" in each.message for each in found.warnings)


def test_axes_of_size_one_and_two_of_a_role_do_not_change_the_price() -> None:
    asked = {"target": "16*v5e:4x4", "training": {"global_batch_size": 512, "seq_len": 4096}}
    meshes = ("fsdp:16,dp:16", "fsdp:16,fsdp_transpose:1,dp:16", "fsdp:16,replica:4,data:4")
    first, *others = (ask(mesh=mesh, **asked).plans[0].step_time.total_s for mesh in meshes)
    assert others == [pytest.approx(first)] * 2
    assert first > 2 * ask(mesh="dp:16,fsdp:16", **asked).plans[0].step_time.total_s  # fsdp inside of the slices


def test_a_search_cuts_weights_equally() -> None:
    found = ask(model="gpt-oss-20b", target="v5e:16x16", training={"global_batch_size": 1024, "seq_len": 4096}, top=5)
    for plan in found.plans:
        parts = [plan.mesh_shape.get(axis, 1) for axis in ("fsdp", "ep", "cp")]
        assert parts[0] == 1 or 2880 % math.prod(parts) == 0, plan.mesh_shape


def test_hardware_without_figures_is_refused_in_a_search_and_told_of_a_given_mesh() -> None:
    with pytest.raises(PlanInfeasibleError, match="here: the devices are cpu; no figures of it are known"):
        ask(target="cpu:8")
    (plan,) = ask(target="cpu:8", mesh="fsdp:8").plans
    assert (plan.step_time, plan.memory, [each.code for each in plan.warnings]) == (None, None, ["not_priced"])

    known = build_target("4*h100:8")
    unknown = replace(known, devices=tuple(d.model_copy(update={"kind": "NVIDIA H100 NVL"}) for d in known.devices))
    asked = {"mesh": "fsdp:32", "model": "llama3-8b", "training": TRAINING}
    (plan,) = ask_planner(Inventory(unknown), **asked).plans
    assert plan.step_time is None
    (notice,) = (each for each in plan.warnings if each.code == "not_priced")
    assert "NVIDIA H100 NVL" in notice.message


@pytest.mark.parametrize(("model", "target", "training", "mesh"), [
    ("llama3-8b", "h100:8", (64, 8192), {"fsdp": 8}),
    ("llama3-8b", "4*h100:8", (128, 8192), {"fsdp": 32}),
    ("llama2-13b", "4*h100:8", (256, 4096), {"fsdp": 32}),
    ("llama2-13b", "v5p:4x4x4", (256, 4096), {"fsdp": 64}),
    ("llama2-70b", "v5p:8x8x8", (512, 4096), {"fsdp": 512}),  # as published
    ("llama3-8b", "v5e:16x16", (512, 4096), {"fsdp": 256}),
    ("gpt2", "h100:8", (512, 1024), {"dp": 8}),
    ("llama3-70b", "8*h100:8", (256, 8192), {"fsdp": 64}),
    ("llama3-70b", "128*h100:8", (1024, 8192), {"fsdp": 512, "tp": 2}),  # not fsdp:1024: 9 % slower
    ("llama3-8b", "8*h100:8", (32, 8192), {"fsdp": 32, "tp": 2}),  # not cp: 2 % faster
    ("mixtral-8x7b", "8*h100:8", (1024, 4096), {"fsdp": 8, "ep": 8}),
    ("llama3-8b", "64*gb200:4", (512, 8192), {"fsdp": 256}),  # four domains of 64 GPUs
])  # fmt: skip
def test_the_best_is_what_people_run(model: str, target: str, training: tuple[int, int], mesh: dict[str, int]) -> None:
    asked = dict(zip(("global_batch_size", "seq_len"), training, strict=True))
    assert ask(model=model, target=target, training=asked).plans[0].mesh_shape == mesh


@pytest.mark.parametrize("target", ["t4:8", "v100:8"])
def test_a_gpu_without_bfloat16_is_said(target: str) -> None:
    steps = []
    for attention, dtype in (("flash", "bfloat16"), ("flash", "float16"), ("xla", "bfloat16"), ("xla", "float16")):
        training = {"seq_len": 1024, "global_batch_size": 32, "attention": attention, "compute_dtype": dtype}
        found = ask(target=target, model="llama3.2-1b", training=training)
        told = [notice.message for notice in found.warnings if notice.code == "no_bfloat16"]
        assert bool(told) == (attention == "flash" or dtype == "bfloat16")
        assert [("bfloat16" in each, "flash" in each) for each in told] in (
            [],
            [(dtype == "bfloat16", attention == "flash")],
        )
        steps.append(read_total(found.plans[0]))
    assert len(set(steps)) == 1, "flash is priced as what there is in its place"


def test_a_network_that_is_assumed_is_said_where_it_is_used() -> None:
    for target, is_said in (("8*l4:8", True), ("l4:8", False), ("8*h100:8", False)):
        found = ask(target=target, model="llama3.2-1b", training={"seq_len": 1024, "global_batch_size": 64})
        assert ("network_assumed" in {each.code for each in found.warnings}) is is_said, target


def test_hosts_that_give_different_numbers_of_devices_are_as_slow_as_the_one_with_the_fewest() -> None:
    def time(mesh: str, devices: list[str]) -> float:
        training = {"seq_len": 4096, "global_batch_size": 64, "gradient_accumulation_steps": 8, "remat": "minimal"}
        asked = {"model": "llama3-8b", "target": "2*h100:8", "training": training, "devices": devices}
        return read_total(ask(mesh=mesh, **asked).plans[0])

    first, second = ([f"host-{host}/{place}" for place in range(8)] for host in range(2))
    for mesh in ("tp:8", "fsdp:8", "dp:2,tp:4"):
        one, even, uneven = (time(mesh, each) for each in (first, first[:4] + second[:4], first[:7] + second[:1]))
        assert one <= even * 1.01 < uneven, mesh


def test_a_batch_goes_through_in_as_few_passes_as_its_memory_allows() -> None:
    found = ask(target="h100:8", model="gpt2", training={"seq_len": 1024, "global_batch_size": 512})
    assert found.plans[0].schedule.gradient_accumulation_steps == 1


@pytest.mark.parametrize(("fields", "field"), [
    ({"training": SGD, "moment_dtypes": ["bfloat16"]}, "moment_dtypes"),
    ({"training": {**SGD, "second_moment_dtype": "bfloat16"}}, "training.second_moment_dtype"),
    ({"training": {**TRAINING, "remat": "full"}, "remat": ["none"]}, "remat"),
])  # fmt: skip
def test_choices_that_contradict_the_training_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ask(**fields)
    assert [each["field"] for each in refused.value.errors] == [field]
    assert "leave out" in refused.value.hint


def test_a_batch_that_the_devices_do_not_divide_says_what_the_next_one_gives() -> None:
    found = ask(target="h100:8", model="llama3-8b", training={"seq_len": 8192, "global_batch_size": 1023})
    (notice,) = (each for each in found.warnings if each.code == "better_batch")
    assert "1024 has 1.09 times the tokens/s, on fsdp:8" in notice.message
    assert notice.hint == "use a global_batch_size of 1024"


@pytest.mark.parametrize(("target", "batch", "fewer", "mesh"), [
    ("17*gb200:4", 544, "16*gb200:4", "fsdp:32 × tp:2"), ("9*h100:8", 512, "8*h100:8", "fsdp:64"),
    ("17*h100:8", 544, "16*h100:8", "fsdp:32 × tp:4"),
])  # fmt: skip
def test_that_fewer_devices_take_less_time_is_said(target: str, batch: int, fewer: str, mesh: str) -> None:
    found = ask(target=target, model="llama3-70b", training={"seq_len": 8192, "global_batch_size": batch})
    (notice,) = (each for each in found.warnings if each.code == "fewer_is_faster")
    assert f" devices of {target} take " in notice.message
    assert notice.message.endswith(f"on {mesh}")
    assert notice.hint == f"search on {fewer} in its place"


def test_fewer_devices_that_are_faster_by_an_unusual_axis_alone_are_not_said() -> None:
    found = ask(target="9*h100:8", model="llama3-70b", training={"seq_len": 8192, "global_batch_size": 72})
    assert "fewer_is_faster" not in {notice.code for notice in found.warnings}  # 64 of them are, by tp:8


def test_where_nothing_fits_the_state_is_told_and_what_works() -> None:
    one = {"target": "h100:1", "training": {"seq_len": 8192, "global_batch_size": 1}}
    (notice,) = ask(**one).warnings
    assert "at least 124.9 GiB of a device's 72.6; weights, gradients and moments are 119.7" in notice.message
    assert notice.hint == "it fits with 2 such devices, or with weight_dtype bfloat16, or with optimizer sgd"
    for other in ({"weight_dtype": "bfloat16"}, {"optimizer": "sgd"}):
        assert ask(**one | {"training": {**one["training"], **other}}).plans
    moments = {"first_moment_dtype": "bfloat16", "second_moment_dtype": "bfloat16"}
    assert not ask(**one | {"training": {**one["training"], **moments}}).plans


@pytest.mark.parametrize(("given", "training", "hint"), [
    ({"axes": {"dp": 8}, "at_most": dict.fromkeys(("fsdp", "cp", "tp", "pp"), 1)}, {}, "leave axes and at_most free"),
    ({"axes": {"fsdp": 8}}, {"remat": "none", "seq_len": 32768}, "leave axes or remat free"),
    ({}, {"gradient_accumulation_steps": 1}, "leave gradient_accumulation_steps free"),
])  # fmt: skip
def test_a_choice_that_keeps_all_meshes_from_fitting_is_named(given: Any, training: Any, hint: str) -> None:
    training = {"seq_len": 8192, "global_batch_size": 512, **training}
    (notice, *_) = ask(target="h100:8", training=training, **given).warnings
    assert (notice.code, notice.hint) == ("nothing_fits", hint)
    assert notice.message.startswith("no mesh of 8 devices that may be chosen holds this training step")


def test_a_step_of_microseconds_is_said_to_lack_its_launches() -> None:
    tiny = read_model("llama3-8b").model_dump(exclude_defaults=True) | {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 256, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    few = {"seq_len": 128, "global_batch_size": 1}
    short, long = (ask(target="h100:1", model=model, training=few).plans[0] for model in (tiny, "llama3.2-1b"))
    assert short.step_time.total_s < 1e-3 < long.step_time.total_s
    assert "latency of launches, which is not priced" in short.step_time.basis
    assert "launches" not in long.step_time.basis


def test_offered_shapes_cut_the_model() -> None:
    asked = {"target": "2*gb200:72", "model": "llama3-70b", "training": {"seq_len": 8192, "global_batch_size": 128}}
    best = ask(**asked).plans[0]
    assert "axis_crosses" not in {each.code for each in best.warnings}  # a search has priced the others
    plan = ask(**asked, mesh=",".join(f"{name}:{size}" for name, size in best.mesh_shape.items())).plans[0]
    (notice,) = (each for each in plan.warnings if each.code == "axis_crosses")
    assert "crosses 2 NVLink domains" in notice.message
    assert notice.hint == "choose sizes whose outer axes take all 2 NVLink domains"  # cp:9 cuts no sequence of 8,192


@pytest.mark.parametrize(("target", "wire"), [("mi300x:8", "xgmi"), ("h100:8", "nvlink"), ("v5e:4x4", "ici")])
def test_a_rejected_mesh_names_the_wire_that_its_chips_have(target: str, wire: str) -> None:
    small = {"seq_len": 2048, "global_batch_size": 64}
    found = ask(model="llama3.2-1b", target=target, training=small, top=1)
    assert {each.reason for each in found.rejected} & {"xgmi", "nvlink", "pcie", "ici"} == {wire}
    assert any(f"over {wire}, " in each.message for each in found.rejected)


def test_what_no_run_tests_is_not_the_best_and_said_to_be_measured() -> None:
    found = ask(model="llama3-70b", target="v5p:8x8x8", training={"global_batch_size": 512, "seq_len": 8192})
    assert not any("cp" in plan.mesh_shape or "pp" in plan.mesh_shape for plan in found.plans)
    one_host = ask(model="mixtral-8x7b", target="h100:8", training=TRAINING | SGD, top=1)
    assert one_host.plans[0].mesh_shape == {"ep": 8}  # pp:8 and tp:8 are up to 12 % faster
    unusual = [each.message for each in found.rejected if each.reason == "unusual"]
    assert any("by cp for sequences of 8,192 tokens, which no run tests: measure it" in each for each in unusual)
    long = {"global_batch_size": 32, "seq_len": 131072}
    gpus = ask(model="llama3.1-405b", target="128*h100:8", training=long)
    assert gpus.plans[0].mesh_shape == {"fsdp": 32, "cp": 32}  # cp over 4 hosts, not over 16
    slices = ask(model="llama3.1-70b", target="tpu7x:4x8x8", training=long, axes={"cp": 8})
    assert not any(each.reason == "unusual" for each in slices.rejected)


@pytest.mark.parametrize(("target", "step_s", "runs"), [("2048*h100:8", 6.7, 1), ("1024*h100:8", 12.5, 2)])
def test_405b_is_a_pipeline_of_tensor_parallel_hosts_as_published(target: str, step_s: float, runs: int) -> None:
    """pp 16 × tp 8 in 6.7 s at 400 TFLOP/s a GPU, and on half of them at 430: arXiv:2407.21783, table 4."""
    plans = ask(model="llama3.1-405b", target=target, training=LONG | {"global_batch_size": 2048}).plans
    assert [plan.mesh_shape["tp"] for plan in plans] == [8, 8, 8]
    published = next(plan for plan in plans if plan.mesh_shape["pp"] == 16)
    assert published.step_time is not None
    assert published.step_time.total_s == pytest.approx(step_s, rel=0.05)
    assert (published.schedule.pipeline_repeats, published.schedule.pipeline_runs) == (8, runs)


def test_a_named_mesh_has_the_passes_and_remat_that_fit_it_and_those_that_are_said() -> None:
    def schedule(**training: Any) -> Any:
        asked = LONG | {"global_batch_size": 64, **training}
        told = ask(target="h100:8", mesh="fsdp:8", training=asked).plans[0].model_dump()
        return told["schedule"]["gradient_accumulation_steps"], told["schedule"]["remat"], told["memory"]["fits"]

    assert (schedule(), schedule(gradient_accumulation_steps=1)[2]) == ((8, "minimal", True), True)
    assert (schedule(remat="full")[1], schedule(gradient_accumulation_steps=2)[0]) == ("full", 2)


CHAINS = [
    ("llama3-8b", ("h100:8", "2*h100:8", "4*h100:8", "8*h100:8", "16*h100:8")),
    ("llama3-8b", ("v5e:4x4", "v5e:4x8", "v5e:8x8", "v5e:8x16", "v5e:16x16")),
    ("mixtral-8x7b", ("v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8", "v5p:4x8x8")),
    ("llama3-70b", ("4*h100:8", "4*h200:8")),  # the same chip with more memory
]


def build_question(model: str, training: TrainingSpec, topology: Topology) -> Question:
    hardware = Hardware.of(topology, len(topology.devices), range(len(topology.devices)))
    return Question(read_model(model), training, hardware, TRAINING_FRACTION)


def find_fastest(question: Question) -> float:
    """Returns the seconds of the fastest step that fits."""
    priced = question.price(question.list_space(Bounds()).layout)
    return float(priced.total_s[priced.fits].min(initial=math.inf))


@pytest.mark.parametrize(("model", "targets"), CHAINS)
def test_more_devices_and_more_memory_are_never_slower(model: str, targets: tuple[str, ...]) -> None:
    training = TrainingSpec(global_batch_size=512, seq_len=4096)
    topologies = [build_target(target) for target in targets]
    steps = [find_fastest(build_question(model, training, each)) for each in topologies]
    assert steps == sorted(steps, reverse=True)
    assert math.isfinite(steps[-1])


@pytest.mark.parametrize("target", ["4*h100:8", "v5p:4x4x4"])
def test_faster_links_are_never_slower(target: str) -> None:
    training, topology = TrainingSpec(global_batch_size=512, seq_len=4096), build_target(target)
    question = build_question("llama3-70b", training, topology)
    chip = question.hardware.chip
    for name in ("link_bytes_per_s", "scaleup_bytes_per_s", "scaleout_bytes_per_s"):
        if (rate := getattr(chip, name)) is not None:
            faster = replace(question.hardware, chip=replace(chip, **{name: 2 * rate}))
            assert find_fastest(replace(question, hardware=faster)) <= find_fastest(question)


def test_a_batch_that_one_device_cannot_cut_is_refused_with_what_to_leave_out() -> None:
    training = {"global_batch_size": 4, "gradient_accumulation_steps": 3}
    with pytest.raises(PlanInfeasibleError, match="no mesh of 1 devices") as caught:
        answer_request(
            SearchRequest.model_validate({"model": "llama3-8b", "targets": ["h100:1"], "training": training})
        )
    assert "leave gradient_accumulation_steps out" in caught.value.hint


@pytest.mark.parametrize("seq_len", [100_003, 16_777_213])
def test_a_prime_number_of_tokens_takes_no_longer_than_another(seq_len: int) -> None:
    assert count_pieces(seq_len, 2048.0) == seq_len  # in a loop over numbers of pieces, 60 s
    assert count_pieces(np.array([8192, 8191, 8190]), 2048.0).tolist() == [4, 8191, 5]


def test_devices_of_one_kind_of_a_mixed_fleet_are_priced_as_a_host_of_them() -> None:
    hosts = {name: FakeAgent(f"{name}:8", host=name).devices for name in ("a100", "h100")}
    for name, devices in hosts.items():
        asked = {"model": "llama3-8b", "training": TRAINING, "include_devices": False}
        chosen = {"topology": tuple(hosts.values()), "devices": [f"{name}/{index}" for index in range(8)], **asked}
        alone = answer_request(SearchRequest.model_validate({"topology": devices, **asked})).plans[0]
        mixed = answer_request(SearchRequest.model_validate(chosen)).plans[0]
        assert (mixed.mesh_shape, mixed.step_time) == (alone.mesh_shape, alone.step_time)
        given = answer_request(PlanRequest.model_validate({**chosen, "mesh": "fsdp:8"})).plans[0]
        assert given.step_time is not None


def test_a_target_in_two_spellings_is_one() -> None:
    found = ask(target=None, targets=("h100", "H100:8", "2*gb200:4"), training=TRAINING)
    assert sorted(row.target for row in found.comparison) == ["2*gb200:4", "h100:8"]
    turned = reorder(found, [1, 0])
    assert [plan.target for plan in turned.plans] == [row.target for row in turned.comparison]


def test_what_a_step_that_fits_nowhere_fits_with_is_a_smaller_batch_too() -> None:
    long = {"seq_len": 8192, "global_batch_size": 64}
    (notice,) = ask(target="b200:8", model="llama3-70b", training=long).warnings
    assert "or with global_batch_size 16" in notice.hint
    assert ask(target="b200:8", model="llama3-70b", training=long | {"global_batch_size": 16}).plans
    (notice,) = ask(target="h100:8", model="llama3.1-405b", training=long).warnings
    assert notice.hint.startswith("it fits with 128 such devices")


def test_a_named_mesh_that_does_not_fit_is_told_one_that_does() -> None:
    (plan,) = ask(target="h100:8", mesh="dp:8", training={"seq_len": 8192, "global_batch_size": 8}).plans
    assert [notice.hint for notice in plan.warnings] == ["fsdp:8 fits"]


def test_fewer_gpus_are_offered_beside_another_batch() -> None:
    with pytest.raises(PlanInfeasibleError) as refused:
        ask(target="gb200:72", training={"seq_len": 8192, "global_batch_size": 512})
    assert refused.value.hint.startswith("use a global_batch_size of 576")
    assert refused.value.hint.endswith('or search on 64 of them, devices {"count": 64}')


def test_a_batch_of_a_part_of_the_devices_is_offered() -> None:
    found = ask(target="v5p:4x4x12", training={"seq_len": 8192, "global_batch_size": 64})
    (notice,) = (notice for notice in found.warnings if notice.code == "better_batch")
    assert notice.hint == "use a global_batch_size of 96"

"""Bytes of a step by part: hand counts, published formulas, and what may never shrink or grow."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.memory import (
    MemoryConstants,
    PartBytes,
    StagePosition,
    StepMemory,
    read_memory_constants,
)
from meshwright.planning.cost.spans import REMAT_FULL, REMAT_NONE, Layout
from meshwright.planning.cost.work import Work, build_work
from meshwright.planning.models import read_model
from meshwright.topology.chips import read_chips
from meshwright.wire.model import TrainingSpec

TPU = read_chips()[0]
XLA = read_memory_constants()["tpu"]
LLAMA = build_work(read_model("llama2-7b"), 4096)
LLAMA_PARAMETERS = 6_738_415_616 - 4096
"""Published, without the norm behind all layers, which `Work` leaves out."""


def price(work: Work = LLAMA, constants: MemoryConstants = XLA, **axes: Any) -> PartBytes:
    """Returns the parts of a step with these axes."""
    return StepMemory(work, Layout(**axes), constants).price()


def add_up(parts: PartBytes) -> float:
    return float(sum(parts.values()))


# ---- state ---------------------------------------------------------------------------------------------


def test_state_of_seven_billion_parameters_over_four_devices() -> None:
    parts = price(fsdp=4)
    assert parts["parameters"] == LLAMA_PARAMETERS * 4 / 4
    assert parts["gradients"] == LLAMA_PARAMETERS * 4 / 4
    assert parts["optimizer"] == LLAMA_PARAMETERS * 8 / 4
    assert parts["parameters"] + parts["gradients"] + parts["optimizer"] == LLAMA_PARAMETERS * 16 / 4


def test_axes_that_do_not_divide_a_weight_leave_it_as_large() -> None:
    cut, whole = price(fsdp=4, cp=8), price(fsdp=4, cp=3)  # 4 × 3 do not divide 4096
    assert cut["parameters"] == LLAMA_PARAMETERS * 4 / 32
    assert whole["parameters"] == LLAMA_PARAMETERS * 4 / 4


def list_stages(step: StepMemory) -> list[Any]:
    """Returns the parts of a first, an inner and a last stage."""
    return [step.price_stage(position) for position in get_args(StagePosition)]


# ---- activations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "in_flight"), [(1, 1), (4, 64), (16, 64)])
def test_each_stage_keeps_all_micro_batches_of_its_layers_and_its_part_of_their_logits(pp: int, in_flight: int) -> None:
    """JAX differentiates the loop of a pipeline as a whole."""
    layout = Layout(pp=pp, gradient_accumulation_steps=64, remat=REMAT_FULL)
    for stage in list_stages(StepMemory(LLAMA, layout, XLA)):
        assert stage["activations"] == pytest.approx(in_flight * 32 / pp * 4096 * 4096 * 2)
        assert pp == 1 or stage["logits"] == XLA.logits_bytes * 64 * 4096 / pp * LLAMA.vocabulary


def test_several_runs_of_a_pipeline_keep_the_micro_batches_of_one_and_sum_their_gradients() -> None:
    whole, halves, half = (
        StepMemory(LLAMA, Layout(pp=4, gradient_accumulation_steps=steps, pipeline_runs=runs), XLA).price()
        for steps, runs in ((64, 1), (64, 2), (32, 1))
    )
    assert halves["activations"] == half["activations"] == whole["activations"] / 2
    assert halves["logits"] == half["logits"]
    assert halves["gradients"] == half["gradients"] * (1 + XLA.accumulated) > half["gradients"]


def test_heads_of_keys_and_values_are_repeated_over_more_tensor_parts_than_there_are() -> None:
    work = build_work(read_model("gemma-2b"), 4096)  # one such head
    few, many = (price(work, cp=8, tp=tp, remat=REMAT_NONE)["activations"] for tp in (4, 8))
    pairs = 18 * 2 * 512 * 512 * 8  # layers, bytes, tokens, elements of all parts of the sequence
    assert few > many > few / 2 + pairs / 2
    latent = build_work(read_model("deepseek-v3"), 4096).blocks[0].attention
    assert latent.kv_heads == latent.heads == 128  # each head has its own


def test_a_pipeline_that_gathers_once_holds_its_weights_and_gradients_whole() -> None:
    inner = list_stages(StepMemory(LLAMA, Layout(pp=4, fsdp=8, tp=2, gathers_once=True), XLA))[1]
    assert inner["gathered"] == 4 * (8 * LLAMA.blocks[0].dense_parameters) / 2
    ends = LLAMA.embedding_parameters + LLAMA.head.parameters  # which each stage has
    assert inner["parameters"] == 4 * (8 * LLAMA.blocks[0].dense_parameters + ends) / 16


def test_last_stage_has_the_experts_where_dense_layers_come_first() -> None:
    work = build_work(read_model("deepseek2-16b"), 4096)
    dense, experts = work.blocks
    first, _, last = list_stages(StepMemory(work, Layout(pp=3, gradient_accumulation_steps=8), XLA))
    each = experts.dense_parameters + experts.expert_parameters
    ends = work.embedding_parameters + work.head.parameters
    assert last["parameters"] == 4 * (9 * each + ends)
    assert first["parameters"] == 4 * ((9 - dense.count) * each + dense.count * dense.dense_parameters + ends)
    mixed = list_stages(StepMemory(work, Layout(pp=3, gradient_accumulation_steps=8), XLA, is_in_order=False))
    assert mixed[2]["parameters"] < last["parameters"]


def test_layers_with_heads_of_two_sizes_alternate_so_that_all_stages_are_alike() -> None:
    model = read_model("gemma4-31b")
    step = StepMemory.of(build_work(model, 4096), Layout(pp=2), model, TrainingSpec(global_batch_size=2), TPU)
    first, _, last = list_stages(step)
    assert first["parameters"] == pytest.approx(last["parameters"])


# ---- all of it -----------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 4, 8])


@given(fsdp=SIZES, tp=SIZES, cp=SIZES, micro_batch_size=SIZES, remat=st.sampled_from([REMAT_NONE, REMAT_FULL]))
def test_more_devices_never_need_more_and_larger_batches_never_less(**axes: Any) -> None:
    total = add_up(price(**axes))
    assert add_up(price(**{**axes, "micro_batch_size": 2 * axes["micro_batch_size"]})) > total
    assert add_up(price(**{**axes, "tp": 2 * axes["tp"]})) < total
    assert add_up(price(**{**axes, "cp": 2 * axes["cp"]})) <= total
    if axes["fsdp"] > 1:
        assert add_up(price(**{**axes, "fsdp": 2 * axes["fsdp"]})) < total

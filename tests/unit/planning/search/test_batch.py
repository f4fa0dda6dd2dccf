"""The recommended batch: it fits, is near the best of those that do, and says what other batches cost."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.hardware import TRAINING_FRACTION
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.planning.models import read_model
from meshwright.planning.search.batch import NEAR_BEST, estimate_batch, find_first_batch
from meshwright.planning.search.candidates import Hardware, Question
from meshwright.planning.search.search import read_layout
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest
from meshwright.wire.model import TrainingSpec

MESHES: list[tuple[str, dict[str, int], str]] = [
    ("v5e:4x4", {"fsdp": 16}, "llama3-8b"), ("v5e:4x4", {"fsdp": 4, "tp": 4}, "llama3-8b"),
    ("v5p:4x4x4", {"fsdp": 32, "cp": 2}, "llama3-70b"), ("8*h100:8", {"dp": 8, "fsdp": 8}, "llama3-8b"),
    ("8*h100:8", {"pp": 2, "fsdp": 32}, "llama3-70b"), ("8*h100:8", {"fsdp": 8, "ep": 8}, "mixtral-8x7b"),
]  # fmt: skip


def ask(target: str, model: str, **training: Any) -> Question:
    topology = build_target(target)
    hardware = Hardware.of(topology, len(topology.devices), range(len(topology.devices)))
    return Question(read_model(model), TrainingSpec(**training), hardware, TRAINING_FRACTION)


@functools.cache
def lay_out(target: str, mesh: str) -> Plan:
    return plan_mesh(PlanRequest(mesh=mesh, include_devices=False), build_target(target))


def estimate(target: str, mesh: dict[str, int], model: str = "llama3-8b", **training: Any) -> Any:
    question = ask(target, model, **{"global_batch_size": 2**24, **training})
    return estimate_batch(question, lay_out(target, ",".join(f"{axis}:{size}" for axis, size in mesh.items())))


def does_fit(target: str, mesh: dict[str, int], model: str, batch: int, **training: Any) -> bool:
    question = ask(target, model, **{**training, "global_batch_size": batch})
    trainings = (question.training.model_copy(update={"remat": remat}) for remat in question.remats)
    return any(question.price(read_layout(mesh, each)).fits[0] for each in trainings)


def test_a_small_model_needs_several_sequences_a_device_for_the_optimizer_and_the_gradients() -> None:
    found = estimate("h100:8", {"dp": 8}, "gpt2", seq_len=1024)
    assert [row.schedule.global_batch_size for row in found.batches] == [8, 16, 32, 64, 128, 256, 512]
    rates = [row.tokens_per_s for row in found.batches]
    assert rates == sorted(rates)
    assert found.recommended == 128
    assert rates[3] < NEAR_BEST * rates[-1] <= rates[4]
    assert found.message.startswith("128 sequences a step on dp:8, 16 for each of 8 data-parallel parts: the least")
    assert "compute takes" in found.message


def test_what_limits_a_step_is_its_largest_part() -> None:
    found = estimate("64*h100:8", {"fsdp": 512}, "llama3-8b", seq_len=256, gradient_accumulation_steps=1)
    assert found.batches[0].limit == "fsdp"
    assert found.batches[-1].limit == "compute"


def test_where_nothing_fits_the_answer_says_what_one_sequence_a_part_needs() -> None:
    found = estimate("v5e:2x2", {"fsdp": 4})
    assert (found.plan.largest_batch, found.recommended, found.batches) == (None, None, ())
    assert (found.plan.step_time, found.plan.schedule, found.plan.tokens_per_s) == (None, None, None)
    assert found.plan.memory.fits is False
    assert found.message.startswith("nothing fits: one sequence for each of 4 data-parallel parts needs about 31.")


@pytest.mark.parametrize(("target", "mesh", "model"), MESHES)
@pytest.mark.parametrize("passes", [1, 4])
def test_the_largest_fits_and_one_more_a_part_not(target: str, mesh: dict[str, int], model: str, passes: int) -> None:
    training = {"seq_len": 4096, "gradient_accumulation_steps": passes}
    found = estimate(target, mesh, model, **training)
    assert does_fit(target, mesh, model, found.plan.largest_batch, **training)
    more = found.plan.largest_batch + found.batches[0].schedule.global_batch_size
    assert not does_fit(target, mesh, model, more, **training)
    assert found.batches[-1].schedule.global_batch_size == found.plan.largest_batch


def test_a_pipeline_is_offered_micro_batches_that_fill_its_stages() -> None:
    found = estimate("3*h100:8", {"pp": 3, "fsdp": 8}, "llama3-70b", seq_len=4096, global_batch_size=96)
    rates = {each.schedule.global_batch_size: each.tokens_per_s for each in found.batches}
    assert set(rates) >= {8, 16, 24, 32, 48}
    assert rates[24] > 1.2 * rates[32]  # six layers go round each stage in turn, or none do


@settings(max_examples=40)
@given(
    case=st.sampled_from(MESHES),
    sequence=st.sampled_from([64, 96, 1000, 1024, 4096, 16384]),
    passes=st.sampled_from([None, 1, 2, 3]),
    units=st.integers(1, 400),
)
def test_what_is_recommended_is_whole_and_fits(case: Any, sequence: int, passes: int | None, units: int) -> None:
    target, mesh, model = case
    unit = math.prod(mesh.get(axis, 1) for axis in ("dp", "fsdp", "ep")) * (passes or 1)
    training = {} if passes is None else {"gradient_accumulation_steps": passes}
    found = estimate(target, mesh, model, seq_len=sequence, global_batch_size=unit * units, **training)
    if found.plan.largest_batch is None:
        assert found.recommended is None
        return
    assert found.batches[0].schedule.global_batch_size == unit
    assert found.recommended % unit == 0
    assert unit <= found.recommended <= unit * units
    assert found.plan.memory.fits
    assert all(row.memory_bytes <= found.plan.memory.capacity_bytes for row in found.batches)
    best = max(row.tokens_per_s for row in found.batches)
    assert found.plan.tokens_per_s >= NEAR_BEST * best
    lesser = [row for row in found.batches if row.schedule.global_batch_size < found.recommended]
    assert all(row.tokens_per_s < NEAR_BEST * best for row in lesser)


@pytest.mark.parametrize(("target", "model", "batch"), [
    ("h100:8", "llama3-8b", 8), ("32*h100:8", "llama3-70b", 128),  # fsdp:128,tp:2
])  # fmt: skip
def test_a_mesh_is_searched_for_few_sequences_where_they_are_a_million_tokens(
    target: str, model: str, batch: int
) -> None:
    question = ask(target, model, seq_len=8192)
    assert find_first_batch(question, question.hardware.devices) == batch

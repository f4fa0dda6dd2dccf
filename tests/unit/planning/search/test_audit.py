"""Audits: the best that is offered in a given mesh's place fits, costs what is told, and is called as the plan calls
it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.asking import ask_planner

TRAINING: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 256}


def ask(**fields: Any) -> Any:
    asked = {"target": "8*h100:8", "model": "llama3-70b", "include_devices": False, **fields}
    return ask_planner(**{**asked, "training": {**TRAINING, **fields.get("training", {})}}).plans[0]


def audit(**fields: Any) -> Any:
    """Returns the plan of a mesh, and the best of its devices."""
    plan = ask(audit=True, **fields)
    return plan, plan.audit


MESHES: tuple[dict[str, Any], ...] = (
    {"mesh": "fsdp:4,tp:16"}, {"mesh": "tp:16,fsdp:4", "training": {"gradient_accumulation_steps": 16}},
    {"mesh": "pp:8,tp:8", "training": {"gradient_accumulation_steps": 16}},
    {"mesh": "fsdp:64", "training": {"gradient_accumulation_steps": 2}}, {"mesh": "fsdp:64", "target": "v5p:4x4x4"},
    {"mesh": "fsdp:64", "target": "v5p:4x4x4", "training": {"gradient_accumulation_steps": 4, "remat": "minimal"}},
    {"mesh": "data:8,model:8", "target": "2*v5e:4x8", "model": "llama3-8b", "training": {"global_batch_size": 64}},
)  # fmt: skip


@pytest.mark.parametrize("fields", MESHES)
def test_the_best_takes_as_long_as_is_told_and_fits(fields: dict[str, Any]) -> None:
    plan, best = audit(**fields)
    passes, remat = best.schedule.gradient_accumulation_steps, best.schedule.remat
    training = {**fields.get("training", {}), "gradient_accumulation_steps": passes, "remat": remat}
    made = ask(**{**fields, "mesh": best.mesh_shape, "training": training})
    assert made.memory.fits
    assert made.step_time.total_s == pytest.approx(best.step_s, rel=0.02)
    assert best.schedule.micro_batch_size == made.schedule.micro_batch_size
    assert f"{best.step_s:.3g} s a step" in best.message or best.step_s == plan.step_time.total_s


def test_the_best_in_the_place_of_a_tensor_axis_that_crosses_hosts_does_not_cross_them() -> None:
    _, best = audit(mesh="fsdp:4,tp:16", training={"gradient_accumulation_steps": 16})
    crossing = {axis.name for axis in ask(mesh=best.mesh_shape).axes if axis.dcn_size > 1}
    assert not crossing & {"tp", "cp", "ep"}
    assert best.mesh_shape == {"fsdp": 64}  # as fast within 4 %, and what people run


def test_a_mesh_that_is_the_best_is_told_so() -> None:
    chosen = ask(target="v5p:4x4x4")
    schedule = chosen.schedule
    training = {"gradient_accumulation_steps": schedule.gradient_accumulation_steps, "remat": schedule.remat}
    plan, best = audit(target="v5p:4x4x4", mesh=chosen.mesh_shape, training=training)
    assert (best.mesh_shape, best.schedule) == (plan.mesh_shape, plan.schedule)
    assert best.message.startswith("this is the best")
    assert best.step_s == plan.step_time.total_s


def test_a_faster_mesh_that_no_run_tests_is_named_though_it_is_not_chosen() -> None:
    plan, best = audit(target="h100:8", mesh="fsdp:8", model="gpt-oss-20b", training={"global_batch_size": 64})
    assert best.mesh_shape == plan.mesh_shape
    assert "may save 11%, by tp on GPUs, which no run tests: measure it" in best.message


def test_a_mesh_that_no_search_looks_at_is_audited_too() -> None:
    fields = {"target": "h100:8", "mesh": "pp:8", "model": "gpt2"}
    plan, best = audit(**fields, training={"global_batch_size": 1, "seq_len": 1000})
    assert best.mesh_shape == plan.mesh_shape

"""What a request wants compiled: refused with the fields that are wrong, answered at once, or a job that is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.compile_job import (
    CompileJob,
    apply_schedule,
    bound_batch,
    check_axes,
    prepare_fit,
    prepare_verify,
)
from meshwright.planning.request import answer_request
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.mesh import Plan, PlanRequest, PlanSchedule
from meshwright.wire.model import BATCH_MAX, TrainingSpec
from meshwright.wire.verification import Verification

MODEL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
}  # fmt: skip
TRAINING = TrainingSpec(global_batch_size=8, seq_len=128)


def plan(mesh: str = "dp:4", target: str = "cpu:4") -> Plan:
    return answer_request(PlanRequest(mesh=mesh, target=target)).plans[0]


def test_a_pipeline_is_answered_at_once_in_the_words_of_the_step() -> None:
    found = prepare_verify(plan("pp:2,dp:2"), MODEL, TRAINING)
    assert isinstance(found, Verification)
    with pytest.raises(NotCompiledError) as caught:
        check_axes({"pp": 2, "dp": 2})
    assert (found.status, found.reason, found.target) == ("not_compiled", str(caught.value), "cpu:4")
    fitted = prepare_fit(plan("pp:2,dp:2"), MODEL, TRAINING)
    assert isinstance(fitted, CompiledBatch)
    assert (fitted.verification.status, fitted.per_replica_batch_size) == ("not_compiled", None)


def limit(asked: int | None) -> dict[str, int]:
    return {} if asked is None else {"global_batch_size": asked}


@pytest.mark.parametrize(("mesh", "passes", "asked", "greatest"), [
    ({"dp": 4}, 1, 6, 4), ({"dp": 4}, 1, 8, 8), ({"dp": 2, "tp": 4}, 3, 13, 12), ({"tp": 4}, 1, 1, 1),
    ({"dp": 3}, 1, None, BATCH_MAX - BATCH_MAX % 3), ({"dp": 256}, 2**16, None, BATCH_MAX),
])  # fmt: skip
def test_the_greatest_batch_divides(mesh: dict[str, int], passes: int, asked: int | None, greatest: int) -> None:
    training = TrainingSpec(**limit(asked), gradient_accumulation_steps=passes, seq_len=64)
    assert bound_batch(training, mesh) == training.model_copy(update={"global_batch_size": greatest})


@pytest.mark.parametrize(("passes", "asked", "field", "hint"), [
    (2**16, None, "gradient_accumulation_steps", "use gradient_accumulation_steps 32768 or less"),
    (1, 511, "global_batch_size", "use 512 or more"), (2, 1023, "global_batch_size", "use 1024 or more"),
])  # fmt: skip
def test_a_search_without_any_batch_is_refused(passes: int, asked: int | None, field: str, hint: str) -> None:
    training = TrainingSpec(**limit(asked), gradient_accumulation_steps=passes)
    with pytest.raises(InvalidRequestError) as caught:
        bound_batch(training, {"dp": 512})
    assert caught.value.errors[0]["field"] == f"training.{field}"
    assert hint in caught.value.hint


@pytest.mark.parametrize(("preset", "reason"), [
    ("qwen3-next-80b-a3b", "linear attention"), ("deepseek3-671b", "kv_lora_rank (latent attention)"),
])  # fmt: skip
def test_a_preset_that_cannot_be_described_or_compiled_is_answered_and_no_error(preset: str, reason: str) -> None:
    [plan] = answer_request(PlanRequest(mesh="fsdp:4", target="v5e:2x2")).plans
    for prepare in (prepare_verify, prepare_fit):
        found = prepare(plan, preset, TrainingSpec(global_batch_size=8))
        answer = found.verification if isinstance(found, CompiledBatch) else found
        assert isinstance(answer, Verification)
        assert answer.status == "not_compiled"
        assert reason in (answer.reason or "")


def test_what_a_search_chose_is_what_is_compiled() -> None:
    asked = {"target": "v5e:2x2", "model": "llama3-8b", "training": {"global_batch_size": 16, "seq_len": 1024}}
    made = answer_request(PlanRequest.model_validate({**asked, "mesh": "fsdp:4"})).plans[0]
    schedule = PlanSchedule(
        micro_batch_size=1, gradient_accumulation_steps=4, remat="none", global_batch_size=16, seq_len=1024
    )
    training = TrainingSpec(global_batch_size=16, seq_len=1024, remat="full")
    job = prepare_verify(made.model_copy(update={"schedule": schedule}), "llama3-8b", training)
    assert isinstance(job, CompileJob)
    assert (job.training.gradient_accumulation_steps, job.training.remat) == (4, "none")
    bare = prepare_verify(made.model_copy(update={"schedule": None}), "llama3-8b", training)
    assert isinstance(bare, CompileJob)
    assert bare.training == training


@pytest.mark.parametrize(("chosen", "compiled"), [("bfloat16", "bfloat16"), ("float32", None), (None, None)])
def test_moments_that_a_search_chose_are_compiled_and_others_stay(chosen: Any, compiled: str | None) -> None:
    schedule = PlanSchedule(
        micro_batch_size=2, gradient_accumulation_steps=4, remat="minimal", global_batch_size=64, seq_len=512,
        first_moment_dtype=chosen, second_moment_dtype=chosen,
    )  # fmt: skip
    asked = TrainingSpec(global_batch_size=64, seq_len=512)
    found = apply_schedule(asked, schedule)
    assert (found.gradient_accumulation_steps, found.remat) == (4, "minimal")
    assert (found.first_moment_dtype, found.second_moment_dtype) == (compiled, compiled)
    assert apply_schedule(asked, None) == asked

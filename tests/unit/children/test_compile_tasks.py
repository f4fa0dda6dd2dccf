"""Tasks for the compiler: made in the planner from a request, complete, and refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, ProblemError
from meshwright.planning.compile_job import CompileJob
from meshwright.planning.request import answer_request
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.mesh import Plan, PlanRequest
from meshwright.wire.verification import Verification
from meshwright_agent.children.child import CallContext
from meshwright_agent.children.compile_tasks import CompileTask, build_verify_task
from meshwright_agent.children.planner import describe_request, fit

MODEL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TRAINING = {"global_batch_size": 4, "seq_len": 16}


def ask(**fields: Any) -> PlanRequest:
    known = {"mesh": "dp:2,tp:2", "target": "cpu:4", "model": MODEL, "training": TRAINING, "compile": True}
    return PlanRequest.model_validate(known | fields)


def task_of(request: PlanRequest) -> CompileTask:
    (plan,) = answer_request(request).plans
    return build_verify_task(plan, request)


def ask_batch(here: str | None = None, plan: Plan | None = None, **fields: Any) -> CompileTask:
    """Returns the task after both ways through JSON."""
    known = {"mesh": "dp:2,tp:2", "model": MODEL, "training": {"seq_len": 16}, "compile": True}
    request = BatchSizeRequest.model_validate({**({} if plan else known), **fields})
    told = None if here is None else {"target": here, "health": {}, "notices": []}
    arguments = {"request": request.model_dump_json(), "plan": plan and plan.model_dump_json(), "here": told}
    answer = fit(json.loads(json.dumps(arguments)), CallContext(1, lambda _: None))
    return CompileTask(**json.loads(json.dumps(answer)))


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_the_memory_strategy_says_what_a_job_may_use_of_a_gpu() -> None:
    sizes = [
        CompileJob.model_validate_json(
            task_of_any_gpu(ask(mesh="dp:4,tp:2", target="h100:8", memory_strategy=each)).job
        ).capacity_bytes
        for each in ("conservative", "balanced", "aggressive")
    ]
    assert None not in sizes
    assert sizes == sorted(sizes)  # type: ignore[type-var]
    assert len(set(sizes)) == 3


def task_of_any_gpu(request: PlanRequest) -> CompileTask:
    """Returns the task where a CUDA compiler is installed; else skips."""
    task = task_of(request)
    if task.answer is not None:
        pytest.skip(str(Verification.model_validate_json(task.answer).reason))
    return task


# ---- what the planner writes ----------------------------------------------------------------------------------------


def test_a_run_shows_what_is_large_in_a_request_by_its_digest() -> None:
    """1,000 runs are kept: with a `config.json` of 10 MB each they would have 10 GB."""
    labels = {str(number): "x" * 1000 for number in range(100)}
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 128, "vocab_size": 256}
    small, large = (describe_request(ask(model=each)) for each in (config, config | {"id2label": labels}))
    assert small["model"] == config
    assert len(large["model"].pop("sha256")) == 64
    assert not large["model"]
    assert {**small, "model": None} == {**large, "model": None}


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_on_target", [True, False])
def test_a_target_beside_a_stored_plan_must_be_the_one_that_it_was_last_made_on(is_on_target: bool) -> None:
    (plan,) = answer_request(PlanRequest(mesh="dp:8", target="h100:8")).plans
    (newer,) = answer_request(PlanRequest(mesh="dp:8", target="a100:8")).plans
    assert plan.fingerprint == newer.fingerprint
    fields: dict[str, Any] = {"target": "H100", "model": MODEL, "training": {}}
    stored = [each if is_on_target else each.model_copy(update={"target": None}) for each in (plan, newer)]
    assert ask_batch(plan=stored[0], **fields).chip == "h100"
    with pytest.raises(InvalidRequestError, match=r"'H100' stands beside plan .*a100:8") as caught:
        ask_batch(plan=stored[1], **fields)
    assert caught.value.errors[0]["field"] == "target"


def test_a_mesh_beside_a_stored_plan_is_refused_since_the_plan_has_one() -> None:
    (plan,) = answer_request(ask()).plans
    with pytest.raises(InvalidRequestError, match=f"'dp:4' stands beside plan {plan.fingerprint}") as caught:
        ask_batch(plan=plan, mesh="dp:4", model=MODEL, training={})
    assert caught.value.errors[0]["field"] == "mesh"


@pytest.mark.parametrize(("hardware", "target", "is_refused"), [
    ("h100", "cpu:4", True),
    ("cpu", "cpu:4", False),
    ("h100", "h100-pcie:4", False),  # the type, of which there are two chips
    ("h100-pcie", "h100:4", True),
    ("NVIDIA H100 80GB HBM3", "h100:4", False),
    ("tpu_v5e", "v5e:2x2", False),
    ("v5p", "v5e:2x2", True),
])  # fmt: skip
def test_the_table_is_of_the_chip_that_is_compiled_for(hardware: str, target: str, is_refused: bool) -> None:
    def asking() -> CompileTask:
        return ask_batch(hardware=hardware, target=target)

    if not is_refused:
        assert asking().op == "fit"
        return
    with pytest.raises(InvalidRequestError, match=f"'{hardware}' stands beside {target}") as caught:
        asking()
    assert caught.value.errors[0]["field"] == "hardware"


def test_a_batch_is_looked_for_at_the_models_own_length_where_no_training_is_given() -> None:
    assert ask_batch(training=None, target="cpu:4").op == "fit"


@pytest.mark.parametrize(("fields", "field"), [
    ({"mesh": None, "target": "cpu:4"}, "mesh"), ({"model": None, "target": "cpu:4"}, "model"),
    ({"target": "v5q:1"}, "target"),
])  # fmt: skip
def test_a_batch_that_cannot_be_looked_for_is_refused_by_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ProblemError) as caught:
        ask_batch(**fields)
    assert caught.value.errors[0]["field"] == field
    assert caught.value.hint

"""Requests answered without an agent: what is refused, and what is an answer although nothing was compiled."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.compiling.request import answer_batch, answer_plans
from meshwright.errors import InvalidRequestError
from meshwright.planning.request import answer_request
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.mesh import PlanRequest

MODEL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8,
}  # fmt: skip
AT_ONCE_S = 0.01
"""No compile is over so soon: what comes after it can be seen without waiting for one."""


def ask(**fields: Any) -> PlanRequest:
    given = {"mesh": "dp:2,tp:2", "target": "cpu:4", "model": MODEL, "training": {"global_batch_size": 8}}
    return PlanRequest.model_validate({**given, "compile": True, **fields})


def fit(**fields: Any) -> BatchSizeRequest:
    given = {"mesh": "fsdp:4", "target": "cpu:4", "model": MODEL, "training": {"seq_len": 128}}
    return BatchSizeRequest.model_validate({**given, "compile": True, **fields})


def test_a_compile_that_was_not_over_in_time_is_aborted_and_the_plan_stays() -> None:
    request = ask()
    plan: Any = answer_plans(request, limit_s=AT_ONCE_S).plans[0]
    assert (plan.verification.status, plan.verification.target) == ("aborted", "cpu:4")
    assert plan.model_copy(update={"verification": None}) == answer_request(request).plans[0]


@pytest.mark.parametrize(("fields", "field"), [
    ({"model": None}, "training"), ({"training": None}, "training"), ({"model": None, "training": None}, "model"),
])  # fmt: skip
def test_a_compile_without_a_step_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not given") as caught:
        answer_plans(ask(**fields), limit_s=AT_ONCE_S)
    assert caught.value.errors[0]["field"] == field


@pytest.mark.parametrize(("fields", "said"), [
    ({"mesh": None}, "no mesh is given"), ({"mesh": None, "plan": "mw1-0123456789abcdef"}, "only its agent knows"),
    ({"model": None}, "model is not given"), ({"target": None}, "no hardware is named"),
])  # fmt: skip
def test_a_batch_that_cannot_be_looked_for_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        answer_batch(fit(**fields), limit_s=AT_ONCE_S)


def test_a_search_that_gave_no_answer_finds_nothing() -> None:
    reply: Any = answer_batch(fit(), limit_s=AT_ONCE_S)
    assert reply.table.min_batch_size == 1
    assert (reply.compiled.per_replica_batch_size, reply.compiled.tried) == (None, ())
    assert reply.compiled.verification.status == "aborted"

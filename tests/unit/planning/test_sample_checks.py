"""What a request may ask of a model that is given by what a sample costs, and what is said where it asks more."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.sample_checks import check_sample_request, keep_activations
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import TrainingSpec

MODEL = {"parameters": 25_600_000, "flops_per_sample": 2.46e10, "activation_bytes_per_sample": 1e8}


def build(**fields: Any) -> PlanRequest:
    asked = {"target": "v5e:4x4", "model": MODEL, "training": {"global_batch": 64}}
    return PlanRequest.model_validate({**asked, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"training": {"global_batch": 64, "remat": "none", "gradient_accumulation": 2}},
        {"search": {"remat": ["none"], "axes": {"tp": 1, "fsdp": 8}, "at_most": {"tp": 8, "pp": 2}}},
        {"mesh": "dp:16", "training": None},
    ],
)
def test_what_such_a_model_can_answer_passes(fields: dict[str, Any]) -> None:
    check_sample_request(build(**fields))


@pytest.mark.parametrize(
    ("fields", "field", "rule"),
    [
        ({"mesh": "dp:16", "audit": True}, "audit", "needs a model's dimensions"),
        ({"exports": ["jax"]}, "exports", "needs a model's dimensions"),
        ({"training": {"global_batch": 64, "remat": "full"}}, "training.remat", "kept as they are given"),
        ({"search": {"remat": ["none", "minimal"]}}, "search.remat", "remat is minimal; activation_bytes_per_sample"),
        ({"search": {"axes": {"tp": 4}}}, "search.axes.tp", "tp:4: of a model that is given by what a sample costs"),
        ({"search": {"axes": {"pp": 2}}}, "search.axes.pp", "only its batch"),
        ({"search": {"axes": {"cp": 2}}}, "search.axes.cp", "only its batch"),
        ({"search": {"axes": {"ep": 2}}}, "search.axes.ep", "only its batch"),
    ],
)
def test_what_needs_layers_is_refused_with_the_field_and_the_rule(
    fields: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(InvalidRequestError, match=rule) as refused:
        check_sample_request(build(**fields))
    assert [error["field"] for error in refused.value.errors] == [field]
    assert refused.value.hint


def test_nothing_is_computed_again_whatever_the_default_is() -> None:
    training = TrainingSpec(global_batch=64)
    assert training.remat == "full"
    assert keep_activations(training) == TrainingSpec(global_batch=64, remat="none")

"""Which distributions compile for a platform; and a command where none is installed says so, and how to have one."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright._verify import ask
from meshwright.compiling import child
from meshwright.compiling.compilers import COMPILERS, explain_missing
from meshwright.compiling.request import answer_plans
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.verification import Verification

TRAINING = {"sequence_length": 128, "global_batch": 8}
TARGETS = [("cpu:4", "cpu"), ("v5e:2x2", "compile-tpu"), ("h100:4", "compile-cuda")]


@pytest.mark.parametrize(
    ("versions", "platform", "words"),
    [
        ({"jax": "1", "jaxlib": "1"}, "cpu", None),
        ({"jax": "1", "jaxlib": "1", "libtpu": "1"}, "tpu", None),
        ({"jax": "1", "jaxlib": "1", "jax-cuda12-pjrt": "1"}, "gpu", None),
        ({"jax": "1", "jaxlib": "1", "jax-cuda13-pjrt": "1"}, "gpu", None),
        ({"jax": "1", "jaxlib": "1"}, "tpu", "pip install 'meshwright[compile-tpu]'"),
        ({"jax": "1", "jaxlib": "1", "libtpu": "1"}, "gpu", "pip install 'meshwright[compile-cuda]'"),
        ({}, "cpu", "jax is not installed, without which nothing compiles; pip install 'meshwright[cpu]'"),
        ({"jax": "1", "libtpu": "1"}, "tpu", "jaxlib is not installed, without which nothing compiles; pip install"),
        ({"jaxlib": "1"}, "gpu", "pip install 'meshwright[compile-cuda]'"),
    ],
)
def test_a_missing_compiler_is_named_with_the_line_that_adds_it(
    versions: dict[str, str], platform: Any, words: str | None
) -> None:
    reason = explain_missing(versions, platform)
    assert reason is None if words is None else words in (reason or "")


def test_each_extra_is_one_that_the_distribution_has() -> None:
    from importlib.metadata import metadata

    assert {each.extra for each in COMPILERS.values()} <= set(metadata("meshwright").get_all("Provides-Extra") or ())


@pytest.mark.parametrize(("target", "extra"), TARGETS)
def test_without_jax_a_plan_is_not_compiled_and_says_what_to_install(
    target: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "read_versions", lambda platform: {"meshwright": "1"})
    asked = PlanRequest.model_validate(
        {"mesh": "fsdp:4", "target": target, "model": "llama3-8b", "training": TRAINING, "verify": "compile"}
    )
    (plan,) = answer_plans(asked).plans
    assert _is_told(plan.verification, extra, target)
    assert plan.mesh_shape == {"fsdp": 4}


def test_without_jax_a_users_own_step_is_not_compiled_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "read_versions", lambda platform: {})
    plan = answer_plans(PlanRequest.model_validate({"mesh": "fsdp:4", "target": "v5e:2x2"})).plans[0]
    assert _is_told(ask.ask_child(plan, ask.parse_step("train:build")), "compile-tpu", "v5e:2x2")


def _is_told(found: Verification | None, extra: str, target: str) -> bool:
    assert found is not None
    assert (found.status, found.target) == ("not_compiled", target)
    return f"pip install 'meshwright[{extra}]'" in (found.reason or "")

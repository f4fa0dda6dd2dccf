"""What a compiler is asked about a plan, and what the plan itself says of a model."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.environment import MEM_FRACTION, NEW_MEM_FRACTION
from meshwright.errors import InvalidRequestError, NotCompiledError, PlanInfeasibleError
from meshwright.planning.compile_job import CompileJob, build_compile_target, build_job, read_memory_fraction
from meshwright.planning.mesh_plan import plan_mesh
from meshwright.planning.request import answer_request
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.fakes.codes import has_code
from tests.unit.planning.models import PLAIN

MODEL = ModelSpec(**PLAIN)
TRAINING = TrainingSpec(global_batch_size=64, seq_len=64)


def plan(target: str | Topology, mesh: str = "dp:-1", **fields: Any) -> Plan:
    """Returns the plan on a target as a request for it is answered, or on this host's devices."""
    if isinstance(target, Topology):
        return plan_mesh(PlanRequest.model_validate({"mesh": mesh, **fields}), target)
    return answer_request(PlanRequest.model_validate({"mesh": mesh, "target": target, **fields})).plans[0]


def ask(target: str, mesh: str, **fields: Any) -> CompileJob:
    return build_job(plan(target, mesh, **fields), MODEL, TRAINING)


def change(made: Plan, **fields: Any) -> Plan:
    """Returns the plan with other facts of its last granule."""
    *others, last = made.granules
    return made.model_copy(update={"granules": (*others, last.model_copy(update=fields))})


# ---- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "platform", "chip", "shape", "granules"), [
    ("v5e:4x4", "tpu", "v5e", (4, 4), 1), ("2*v5p:2x2x2", "tpu", "v5p", (2, 2, 2), 2),
    ("v3:2x2", "tpu", "v3", (2, 2), 1), ("64*h100:8", "gpu", "h100", (8,), 64), ("cpu:8", "cpu", "cpu", (8,), 1),
])  # fmt: skip
def test_hardware_is_told_as_compilers_know_it(name: str, platform: str, chip: str, shape: Any, granules: int) -> None:
    found = build_compile_target(plan(name))
    assert (found.platform, found.chip, found.granules, found.name) == (platform, chip, granules, name)
    assert found.shape[: len(shape)] == shape
    assert set(found.shape[len(shape) :]) <= {1}


def test_wrap_and_twist_of_slices_go_to_the_compiler() -> None:
    twisted, plain = (build_compile_target(plan(f"v5p:4x4x8{end}")) for end in ("_twisted", ""))
    assert (twisted.twisted, plain.twisted) == (True, False)
    assert plain.wrap == (True, True, True)
    assert build_compile_target(plan("v5p:2x2x2")).wrap == build_target("v5p:2x2x2").granules[0].wrap


# ---- what cannot be asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "fields", "words"), [
    ("2*h100:8", {"device_kind": None}, "not all of one kind that it names"),
    ("2*h100:8", {"device_kind": "NVIDIA A100-SXM4-80GB"}, "not all of one kind that it names"),
    ("h100:8", {"device_kind": "NVIDIA Z9"}, "no chip of the table is called 'NVIDIA Z9'"),
    ("v5e:4x4", {"shape": None}, "the slices have no shape, or not the same one"),
    ("2*v5e:4x4", {"shape": (2, 8, 1)}, "the slices have no shape, or not the same one"),
    ("2*v5p:2x2x2", {"wrap": (True, True, True)}, "the slices have no shape, or not the same one"),
    ("2*h100:8", {"device_count": 4}, "compilers take hosts of one size, and these have 4 or 8 devices"),
    ("2*v5e:4x4", {"device_count": 15}, "a slice of 4x4x1 chips has 16 devices, and one here lacks some"),
])  # fmt: skip
def test_hardware_that_no_compiler_knows_is_refused_with_a_way(target: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(NotCompiledError) as refused:
        build_compile_target(change(plan(target), **fields))
    assert words in str(refused.value)
    assert "plan on a target instead, such as v5p:4x4x4" in str(refused.value)


def test_a_plan_that_does_not_divide_its_model_is_refused_before_any_compiler_is_asked() -> None:
    rule = "tp:16 does not divide num_attention_heads 8"
    with pytest.raises(PlanInfeasibleError, match=rule, check=has_code("does_not_divide")):
        ask("v5e:4x4", "tp:16")
    with pytest.raises(InvalidRequestError, match="x:16 has no known role"):
        ask("v5e:4x4", "x:16")


# ---- the mesh and the memory ----------------------------------------------------------------------------------------


def test_the_fraction_is_the_environments_under_either_name_and_jaxs_own_without_one() -> None:
    made = plan("h100:8")
    environments = ({}, {MEM_FRACTION: "0.5"}, {NEW_MEM_FRACTION: "0.25", MEM_FRACTION: "0.5"})
    jobs = [made.model_copy(update={"environment": each}) for each in environments]
    assert [read_memory_fraction(job) for job in jobs] == [0.75, 0.5, 0.25]


# ---- what a plan says of a model ------------------------------------------------------------------------------------


def answer(mesh: str, model: Any, target: str = "v5e:4x4", **fields: Any) -> Plan:
    request = PlanRequest.model_validate({"mesh": mesh, "target": target, "model": model, **fields})
    return answer_request(request).plans[0]


def test_a_model_that_cannot_be_described_is_planned_with_a_warning_that_says_why() -> None:
    found = answer("fsdp:16", "qwen3-next-80b-a3b")
    assert found.model is None
    (notice,) = [each for each in found.warnings if each.code == "model_not_supported"]
    assert "linear attention" in notice.message


def test_a_model_that_the_step_has_not_is_no_job_and_the_field_says_why() -> None:
    made = plan("v5e:4x4", "fsdp:16")
    with pytest.raises(NotCompiledError, match=r"final_logit_softcapping \(capped logits\)"):
        build_job(made, ModelSpec(**PLAIN, final_logit_softcapping=30.0), TRAINING)
    with pytest.raises(PlanInfeasibleError, check=has_code("does_not_divide")):
        build_job(made, ModelSpec(**{**PLAIN, "hidden_size": 40, "final_logit_softcapping": 30.0}), TRAINING)

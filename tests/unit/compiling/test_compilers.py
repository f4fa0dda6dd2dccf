"""Which distributions compile for a platform; and a command where none is installed says so, and how to have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright._verify import ask
from meshwright.compiling import compilers
from meshwright.compiling.compilers import COMPILERS, explain_missing
from meshwright.compiling.request import answer_plans
from meshwright.wire.mesh import PlanRequest

CUDA_12 = {"jax": "1", "jaxlib": "0.12.0", "jax-cuda12-plugin": "0.12.0", "nvidia-cuda-nvcc-cu12": "12.9"}
CUDA_13 = {"jax": "1", "jaxlib": "0.12.0", "jax-cuda13-plugin": "0.12.0", "nvidia-cuda-nvcc": "13.0"}
TRAINING = {"seq_len": 128, "global_batch_size": 8}
TARGETS = [("cpu:4", "cpu"), ("v5e:2x2", "compile-tpu"), ("h100:4", "compile-cuda")]


@pytest.mark.parametrize(("versions", "platform", "words"), [
    ({"jax": "1", "jaxlib": "1"}, "cpu", None),
    ({"jax": "1", "jaxlib": "1", "jax-cuda12-plugin": "1", "nvidia-cuda-nvcc-cu12": "12.9"}, "gpu", None),
    ({"jax": "1", "jaxlib": "1", "jax-cuda13-plugin": "1", "nvidia-cuda-nvcc": "13.0"}, "gpu", None),
    ({"jax": "1", "jaxlib": "1"}, "tpu", "pip install 'meshwright[compile-tpu]'"),
    ({"jax": "1", "jaxlib": "1", "libtpu": "1"}, "gpu", "pip install 'meshwright[compile-cuda]'"),
    ({}, "cpu", "jax is not installed, without which nothing compiles; pip install 'meshwright[cpu]'"),
    ({"jax": "1", "libtpu": "1"}, "tpu", "jaxlib is not installed, without which nothing compiles; pip install"),
    ({"jaxlib": "1"}, "gpu", "pip install 'meshwright[compile-cuda]'"),
])  # fmt: skip
def test_a_missing_compiler_is_named_with_its_line(versions: dict[str, str], platform: Any, words: str | None) -> None:
    reason = explain_missing(platform, versions)
    assert reason is None if words is None else words in (reason or "")


@pytest.mark.parametrize(("installed", "wanted", "matches"), [
    ("0.0.42.1", "0.0.42.*", True), ("0.0.42", "0.0.42.*", True), ("0.0.421", "0.0.42.*", False),
    ("0.0.51", "0.0.42.*", False), ("0.0.42.1", "0.0.42.1", True), ("0.0.51", None, True),
])  # fmt: skip
def test_another_libtpu_is_told(installed: str, wanted: Any, matches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [] if wanted is None else ["numpy>=2", f'libtpu=={wanted}; extra == "tpu"']
    monkeypatch.setattr(compilers, "requires", lambda name: lines)
    reason = explain_missing("tpu", {"jax": "1", "jaxlib": "1", "libtpu": installed})
    assert (reason is None) == matches
    if reason is not None:
        assert f"libtpu {installed} is here with jaxlib 1" in reason
        assert f"pip install 'libtpu=={wanted}'" in reason


def test_the_libtpu_that_is_here_is_the_one_that_jax_wants() -> None:
    assert explain_missing("tpu") is None


def test_an_assembler_of_the_machines_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compilers, "_PTXAS_PLACES", ())
    bare = {name: CUDA_12[name] for name in ("jax", "jaxlib", "jax-cuda12-plugin")}
    reason = explain_missing("gpu", bare) or ""
    assert "ptxas, which is not installed; pip install 'meshwright[compile-cuda]'" in reason
    (tmp_path / "ptxas").touch(mode=0o755)
    assert explain_missing("gpu", bare) is None


@pytest.mark.parametrize(("chip", "versions", "words"), [
    ("h100", {**CUDA_12, "jaxlib": "0.10.2"}, "jax-cuda12-plugin 0.12.0 is here with jaxlib 0.10.2"),
    ("v100", CUDA_13, "pip install 'meshwright[compile-cuda12]'"),
    ("mi300x", CUDA_12, "XLA's ROCm compiler is not supported"),
])  # fmt: skip
def test_a_compiler_that_does_not_match_is_explained(chip: str, versions: dict[str, str], words: str) -> None:
    assert words in (explain_missing("gpu", versions, chip=chip) or "")


def test_each_extra_is_one_that_the_distribution_has() -> None:
    from importlib.metadata import metadata

    assert {each.extra for each in COMPILERS.values()} <= set(metadata("meshwright").get_all("Provides-Extra") or ())


@pytest.mark.parametrize(("target", "extra"), TARGETS)
def test_without_jax_a_plan_says_what_to_install(target: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "read_versions", lambda platform: {"meshwright": "1"})
    asked = {"mesh": "fsdp:4", "target": target, "model": "llama3-8b", "training": TRAINING, "compile": True}
    (plan,) = answer_plans(PlanRequest.model_validate(asked)).plans
    assert _is_told(plan.verification, extra, target)
    assert plan.mesh_shape == {"fsdp": 4}


def test_without_jax_a_users_own_step_is_not_compiled_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "read_versions", lambda platform: {})
    plan = answer_plans(PlanRequest.model_validate({"mesh": "fsdp:4", "target": "v5e:2x2"})).plans[0]
    assert _is_told(ask.ask_child(plan, ask.parse_step("train:build")), "compile-tpu", "v5e:2x2")


def _is_told(found: Any, extra: str, target: str) -> bool:
    assert (found.status, found.target) == ("not_compiled", target)
    return f"pip install 'meshwright[{extra}]'" in (found.reason or "")

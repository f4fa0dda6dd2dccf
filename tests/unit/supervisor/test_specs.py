from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.specs import (
    build_device_spec,
    build_planner_spec,
    explain_not_started,
    has_accelerators,
)
from tests.fakes.machines import plant_machine

BASE = {"PATH": "/usr/bin", "HOME": "/root"}


def build_environment(settings: Settings, base: dict[str, str] | None = None) -> dict[str, str]:
    return dict(build_device_spec(settings, BASE if base is None else base, stays=False).environment())


# ---- the device worker ----------------------------------------------------------------------------------------------


def test_on_virtual_devices_an_operators_platform_does_not_lead_to_the_accelerators() -> None:
    environment = build_environment(Settings(cpu_devices=2), {"JAX_PLATFORMS": "cuda", "JAX_NUM_CPU_DEVICES": "64"})
    assert (environment["JAX_PLATFORMS"], environment["JAX_NUM_CPU_DEVICES"]) == ("cpu", "2")


def test_on_accelerators_jax_chooses_or_the_operator_does() -> None:
    assert not {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"} & set(build_environment(Settings()))
    assert build_environment(Settings(), {"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cuda"


def test_a_worker_goes_when_idle_unless_it_may_stay() -> None:
    settings = Settings(idle_release_s=7)
    held = settings.model_copy(update={"hold": "always"})
    assert build_device_spec(held, BASE, stays=False).idle_release_s is None
    assert build_device_spec(settings, BASE, stays=False).idle_release_s == 7
    assert build_device_spec(settings, BASE, stays=True).idle_release_s is None


# ---- the planner ----------------------------------------------------------------------------------------------------


def test_the_planner_goes_when_idle_and_starts_no_threads_for_matrices() -> None:
    spec = build_planner_spec(Settings(idle_release_s=7, start_timeout_s=3), BASE)
    assert (spec.name, spec.module) == ("planner", "meshwright_agent.children.planner")
    assert (spec.idle_release_s, spec.start_timeout_s) == (7, 3)
    assert spec.environment()["OPENBLAS_NUM_THREADS"] == "1"
    assert build_planner_spec(Settings(), {"OPENBLAS_NUM_THREADS": "4"}).environment()["OPENBLAS_NUM_THREADS"] == "4"


# ---- who may be disturbed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("modes", "environment", "may"), [
    (("default", "exclusive_process", None), {}, True), (("default", "prohibited"), {}, False),
    (("default", "prohibited"), {"CUDA_VISIBLE_DEVICES": "0"}, True),
])  # fmt: skip
def test_jax_is_not_started_unasked_where_a_gpu_that_it_sees_lets_no_process_in(
    tmp_path: Path, modes: tuple[Any, ...], environment: dict[str, str], may: bool
) -> None:
    facts = plant_machine("dgx-h100", tmp_path).read()
    gpus = tuple(replace(gpu, compute_mode=mode) for gpu, mode in zip(facts.gpus, modes, strict=False))
    facts = replace(facts, gpus=gpus, holders=(), environment=environment)
    assert (explain_not_started(facts) == "") is may
    said = "" if may else "GPU 1 is in compute mode prohibited; `nvidia-smi -i 1 -c DEFAULT` opens it"
    assert explain_not_started(facts) == said


# ---- device files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "found"), [
    ([], False), (["null", "tty0", "dri", "kvm"], False), (["nvidiactl", "nvidia-uvm", "nvidia-caps"], False),
    (["vfio/vfio"], False), (["accel", "nvidia0.old", "my-nvidia0"], False), (["nvidia0"], True),
    (["nvidiactl", "nvidia15"], True), (["accel0"], True), (["accel/accel0"], False),
    (["vfio/vfio", "vfio/3"], True), (["vfio/devices/vfio0", "vfio/12"], True), (["kfd"], True),
])  # fmt: skip
def test_accelerators_are_known_by_the_names_of_their_files(tmp_path: Path, files: list[str], found: bool) -> None:
    for name in files:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    assert has_accelerators(Settings(host_root=tmp_path)) is found


def test_a_device_file_is_not_opened_to_see_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/nvidia0")  # whoever opens it waits for ever
    assert has_accelerators(Settings(host_root=tmp_path))

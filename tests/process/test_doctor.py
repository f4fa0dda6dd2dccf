"""`meshwright-agent doctor` as an operator runs it, on this machine and in front of recorded ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden.hosts import Host, build_environment
from tests.process.living import plant_jax

Said = dict[str, dict[str, Any]]
"""What it found, by subject."""


def run_doctor(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright_agent", "doctor", *flags]
    own = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=own, check=False)


def examine(folder: Path, *flags: str, host: Host | None = None, **environ: str) -> tuple[int, Said]:
    """Returns the exit status and the findings, on this machine or in front of a recorded one."""
    recorded = build_environment(host, folder) if host else {}
    said = run_doctor("--state-dir", str(folder / "state"), "--json", *flags, **recorded, **environ)
    return said.returncode, {finding["subject"]: finding for finding in json.loads(said.stdout)}


def test_this_machine_with_two_virtual_devices_is_well_and_nothing_is_made(tmp_path: Path) -> None:
    status, said = examine(tmp_path, "--cpu-devices", "2")
    assert (status, said["device worker"]["seen"]) == (0, "JAX sees 2 cpu devices")
    assert {finding["level"] for finding in said.values()} == {"ok"}
    assert "plans can be verified for CPU and TPU targets" in said["compilers"]["seen"]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("host", "environ", "wrong"), [
    (Host("dgx-h100"), {"CUDA_VISIBLE_DEVICES": "-1"}, {"CUDA_VISIBLE_DEVICES": "hides every GPU"}),
    (Host("tpu-v5p-4"), {"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "ignores the accelerators"}),
], ids=lambda value: value.machine if isinstance(value, Host) else " ".join(value.values()))  # fmt: skip
def test_a_variable_that_hides_the_devices_or_names_others_is_named(
    host: Host, environ: dict[str, str], wrong: dict[str, str], tmp_path: Path
) -> None:
    status, said = examine(tmp_path, host=host, **environ)
    assert status == 1
    for subject, words in wrong.items():
        assert (said[subject]["level"], f"unset {subject}" in said[subject]["fix"]) == ("wrong", True)
        assert words in said[subject]["seen"]


@pytest.mark.exhaustive
def test_a_driver_that_does_not_answer_is_named_with_its_own_words(tmp_path: Path) -> None:
    _, broken = examine(tmp_path / "a", host=Host("dgx-h100", fail={"nvmlInit": 9}))
    assert (broken["probe"]["level"], "NVML" in broken["probe"]["seen"]) == ("wrong", True)
    hanging = Host("dgx-h100", hang=("proc/cpuinfo",), settings={"PROBE_TIMEOUT_S": "3"})
    status, silent = examine(tmp_path / "b", host=hanging)
    assert (status, silent["probe"]["level"]) == (1, "wrong")
    assert "did not answer" in silent["probe"]["seen"]
    assert "not known who holds the devices" in silent["device worker"]["seen"]


def test_a_platform_that_is_not_here_is_said_without_a_traceback_in_the_way_to_mend_it(tmp_path: Path) -> None:
    status, said = examine(tmp_path, JAX_PLATFORMS="tpu")
    worker = said["device worker"]
    assert (status, said["JAX_PLATFORMS"]["level"]) == (1, "wrong")
    assert worker["seen"].startswith("JAX does not start: RuntimeError: Unable to initialize backend 'tpu'")
    assert "  File" not in worker["fix"]
    assert 0 < len(worker["log"]) <= 8


def test_a_broken_jax_is_named_with_its_own_words_and_the_exit_status_is_1(tmp_path: Path) -> None:
    path = plant_jax(tmp_path / "broken", "raise ImportError('libcudart.so.12 is not here')\n")
    said = run_doctor("--cpu-devices", "2", "--state-dir", str(tmp_path), PYTHONPATH=path)
    assert said.returncode == 1
    assert "WRONG  device worker: JAX does not start" in said.stdout
    assert "libcudart.so.12 is not here" in said.stdout
    assert "ok     state directory" in said.stdout


def test_settings_with_which_no_agent_starts_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    open_to_all = {"MESHWRIGHT_HOST": "0.0.0.0", "MESHWRIGHT_TOKENS_FILE": str(tmp_path / "none")}
    status, said = examine(tmp_path, "--simulate", "h100:8", **open_to_all)
    assert (status, said["simulated"]["level"]) == (1, "note")
    assert (said["state directory"]["level"], said["access"]["level"]) == ("wrong", "wrong")
    assert str(tmp_path / "none") in said["access"]["seen"]


def test_a_host_of_amd_whose_jax_runs_on_the_cpu_is_wrong(tmp_path: Path) -> None:
    environ = build_environment(Host("cpu-vm"), tmp_path)
    root = Path(environ["MESHWRIGHT_HOST_ROOT"])
    for folder in ("dev/kfd", "sys/class/kfd/kfd/proc"):
        (root / folder).mkdir(parents=True)
    done = run_doctor("--state-dir", str(tmp_path / "state"), **environ)
    assert (done.returncode, "the host has AMD's driver (/dev/kfd)" in done.stdout) == (1, True), done.stdout

"""The step that ours is weighed against: its mathematics, and both of them through the compilers."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.wire.model import TrainingSpec
from tests.compiler.steps.answers import ask_child
from tests.compiler.steps.cases import DENSE, Case
from tests.compiler.steps.weigh import Row

ROOT = Path(__file__).parents[2]

needs_compiler = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="libtpu has wheels for Linux on x86-64 only"
)

CASE = Case("v5e:2x2", "fsdp:4", DENSE, TrainingSpec(global_batch=4, sequence_length=1024, attention="xla"))
"""Large enough that the state weighs most: with 15M parameters the two steps' working memory differs by more."""


@needs_compiler
@pytest.mark.timeout(1200)
def test_peak_memory_and_parameters_of_both_steps_agree() -> None:
    job = CASE.build_job()
    row = Row(CASE, ask_child("ours", job), ask_child("other", job))
    assert row.list_complaints() == []
    assert row.ratio is not None


@pytest.mark.timeout(900)
def test_every_split_of_the_other_step_has_the_gradients_of_one_device() -> None:
    """In a process of its own, which starts JAX with 8 devices."""
    command = [sys.executable, "-m", "tests.process.other_step_job"]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == 4
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}

"""The step that ours is weighed against: its mathematics, and both of them through the compilers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_every_split_of_the_other_step_has_the_gradients_of_one_device() -> None:
    """In a process of its own, which starts JAX with 8 devices."""
    command = [sys.executable, "-m", "tests.compiler.other_step_job"]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == 4
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}

"""The environment in which XLA's TPU compiler describes slices that are not here, and opens no device."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

needs_tpu_compiler = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="libtpu has wheels for Linux on x86-64 only"
)

SLICE_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled", "TPU_MIN_LOG_LEVEL": "1", "TPU_STDERR_LOG_LEVEL": "1", "TF_CPP_MIN_LOG_LEVEL": "1",
}  # fmt: skip


def run_on_slices(program: Path, cases: list[Any], limit_s: float) -> list[Any]:
    """Returns what a program that reads cases as JSON prints of them in its last line, one answer a case."""
    done = subprocess.run(
        [sys.executable, str(program)], input=json.dumps(cases), env={**os.environ, **SLICE_ENVIRONMENT},
        capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers

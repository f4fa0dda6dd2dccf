"""The environment in which XLA's TPU compiler describes slices that are not here, and opens no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from meshwright.compiling.environment import COMPILE_ENVIRONMENT

SLICE_ENVIRONMENT = dict(COMPILE_ENVIRONMENT)


def run_on_slices(program: Path, cases: list[Any], limit_s: float) -> list[Any]:
    """Returns what a program that reads cases as JSON prints of them in its last line, one answer a case."""
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(cases),
        env={**os.environ, **SLICE_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers

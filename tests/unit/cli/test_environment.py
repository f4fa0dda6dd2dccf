from __future__ import annotations

import os
import subprocess

from tests.unit.cli.conftest import CommandLine


def test_a_shell_can_evaluate_what_is_printed(meshwright: CommandLine) -> None:
    printed = meshwright("env", "--memory-strategy", "aggressive")
    script = f'{printed.out}\nprintf %s "$XLA_PYTHON_CLIENT_MEM_FRACTION"'
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert done.stdout == "0.9"
    assert (printed.code, printed.err) == (0, "")

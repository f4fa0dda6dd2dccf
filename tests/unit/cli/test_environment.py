from __future__ import annotations

import os
import subprocess

import pytest

from meshwright.wire.base import Notice
from meshwright.wire.environment import Environment
from tests.unit.cli.conftest import CommandLine


def test_a_shell_can_evaluate_what_is_printed(meshwright: CommandLine) -> None:
    printed = meshwright("environment", "--memory-strategy", "aggressive")
    script = f'{printed.out}\nprintf %s "$XLA_PYTHON_CLIENT_MEM_FRACTION"'
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert done.stdout == "0.9"
    assert (printed.code, printed.err) == (0, "")


def test_long_lines_are_never_folded(meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"export XLA_FLAGS='{'--xla_flag=1 ' * 50}'"
    reply = Environment(memory_strategy="balanced", memory_fraction=0.75, variables={}, exports=(line,))
    meshwright.fake.answer("GET", "/environment", reply)
    monkeypatch.setenv("COLUMNS", "40")
    assert meshwright("environment").out == f"{line}\n"


def test_warnings_go_to_stderr_so_that_the_shell_does_not_see_them(meshwright: CommandLine) -> None:
    reply = Environment(
        memory_strategy="balanced",
        memory_fraction=0.75,
        variables={},
        exports=("export A=1",),
        warnings=(Notice(code="w", message="no GPU here"),),
    )
    meshwright.fake.answer("GET", "/environment", reply)
    printed = meshwright("environment")
    assert (printed.out, printed.err) == ("export A=1\n", "warning: no GPU here\n")


def test_a_strategy_that_is_none_is_2(meshwright: CommandLine) -> None:
    assert meshwright("environment", "--memory-strategy", "greedy").code == 2

"""The real probe, on recorded machines and on this one."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["meshwright_agent.children.probe", "meshwright_agent.host.topology"])
def test_neither_probe_nor_view_imports_jax_or_a_driver_before_it_is_asked(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'jaxlib', 'pynvml', 'numpy') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"

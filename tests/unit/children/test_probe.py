"""The real probe, on recorded machines and on this one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent.clock import SystemClock
from meshwright_agent.facts.model import HostFacts, parse_host_facts
from meshwright_agent.facts.probe import read_host_facts
from meshwright_agent.supervisor.supervisor import ChildSpec, Supervisor
from tests.fakes.machines import plant_machine

LIMIT_S = 30.0


def ask(op: str, arguments: dict[str, Any], **variables: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        spec = ChildSpec("probe", "meshwright_agent.children.probe", lambda: {**os.environ, **variables})
        probe = Supervisor(spec, clock=SystemClock())
        try:
            return (await probe.call(op, arguments, deadline_s=LIMIT_S)).result
        finally:
            await probe.close()

    return asyncio.run(run())


def build_arguments(folder: Path) -> dict[str, str]:
    return {"root": str(folder)}


def test_it_reads_a_recorded_machine_as_the_reader_does_in_this_process(tmp_path: Path) -> None:
    machine = plant_machine("tpu-v5e-8", tmp_path)
    told = parse_host_facts(ask("facts", build_arguments(tmp_path), **machine.roots.environ))
    assert told == read_host_facts(machine.roots)


def test_it_tells_who_holds_the_chips_of_a_recorded_machine(tmp_path: Path) -> None:
    plant_machine("tpu-v5e-8", tmp_path)
    (holder,) = ask("holders", build_arguments(tmp_path))["holders"]
    assert (holder["pid"], holder["name"], len(holder["devices"])) == (3110, "python", 8)


def test_holders_that_cannot_be_known_are_null(tmp_path: Path) -> None:
    plant_machine("tpu-v5p-4", tmp_path)
    (tmp_path / "proc/2/comm").write_text("sh")
    assert ask("holders", build_arguments(tmp_path))["holders"] is None


def test_this_host_reads_without_arguments() -> None:
    facts: HostFacts = parse_host_facts(ask("facts", {}))
    assert facts.machine.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.cpu.memory_bytes
    assert facts.cpu.usable_threads is not None
    assert facts.cpu.usable_threads <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("module", ["meshwright_agent.children.probe", "meshwright_agent.host.topology"])
def test_neither_probe_nor_view_imports_jax_or_a_driver_before_it_is_asked(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'jaxlib', 'pynvml', 'numpy') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"

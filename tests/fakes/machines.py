"""Recorded machines: `tests/recorded/<name>/` planted into a folder, with NVML and JAX's view where it has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from meshwright.wire.devices import Devices, Worker
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.facts.probe import read_host_facts
from meshwright_agent.facts.sysfs import Roots
from meshwright_agent.host.snapshot import HostSnapshot, JaxReport
from tests.fakes.nvml import FakeNvml
from tests.fakes.tree import RECORDED, plant

NAMES = tuple(sorted(path.name for path in RECORDED.iterdir() if (path / "tree.txt").exists()))
WITH_MATRIX = tuple(name for name in NAMES if (RECORDED / name / "topo.txt").exists())
READ_AT = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
JAX_AT = READ_AT + timedelta(seconds=20)
NOW = READ_AT + timedelta(seconds=30)
WORKER = Worker(state="ready", generation=1, pid=77, since=READ_AT)


@dataclass(frozen=True)
class Machine:
    """A recorded machine, planted."""

    roots: Roots
    nvml: FakeNvml | None = None
    jax: Mapping[str, Any] | None = field(default=None)

    def read(self) -> HostFacts:
        return read_host_facts(self.roots, nvml=self.nvml)

    def view(self, *, with_jax: bool = True, cpu_devices: int | None = None) -> Devices:
        jax = JaxReport(self.jax, JAX_AT) if self.jax and with_jax else None
        return show(self.read(), jax, cpu_devices=cpu_devices)


def show(facts: HostFacts | None, jax: JaxReport | None = None, **known: Any) -> Devices:
    """Returns what `/devices` shows of a host whose worker is up."""
    return HostSnapshot(**{"worker": WORKER, "facts": facts, "facts_at": READ_AT, "jax": jax, **known}).devices(NOW)


def plant_machine(name: str, folder: Path, *, fail: Mapping[str, int] | None = None) -> Machine:
    """Returns a recorded machine, planted below `folder`; `fail` as in FakeNvml."""
    recorded = RECORDED / name
    plant((recorded / "tree.txt").read_text(), folder)
    document, jax, environ = (_load(recorded / f"{part}.json") for part in ("nvml", "jax", "environ"))
    nvml = FakeNvml(document, fail) if document else None
    return Machine(build_roots(folder, environ or {}), nvml, jax)


def read_published_matrix(name: str) -> list[list[str]]:
    """Returns the words of each line of `topo.txt`: what `nvidia-smi topo -m` printed on such a machine, GPUs only."""
    return [line.split() for line in (RECORDED / name / "topo.txt").read_text().splitlines()]


def build_roots(folder: Path, environ: Mapping[str, str] | None = None) -> Roots:
    """Returns the roots of a tree planted below `folder`."""
    return Roots(folder, environ=environ or {}, machine="x86_64")


def _load(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None

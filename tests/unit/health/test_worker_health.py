"""The state of the device worker, by what its supervisor and JAX say of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.health.test_monitor import Scene

LAST_LINE = "SIGSEGV in libtpu"
STARTED = {"has_started": True}


@pytest.mark.parametrize(("worker", "said", "state", "words"), [
    ({"state": "failed", "last_error": LAST_LINE}, {}, "unhealthy", f"does not start: {LAST_LINE}"),
    ({"state": "stopped"}, {"failure": "no backend"}, "unhealthy", "does not start: no backend"),
    ({"state": "stopped", "last_error": LAST_LINE}, {"failure": "timed out"}, "unhealthy", LAST_LINE),
    ({"state": "stopped"}, {"failure": "timed out", **STARTED}, "degraded", "its last call failed: timed out"),
    ({"state": "stopped", "last_error": LAST_LINE}, {"failure": "late", **STARTED}, "degraded", "call failed: late"),
    ({"state": "ready"}, {"failure": "timed out"}, "degraded", "timed out"),
    ({"state": "busy"}, {"failure": "timed out", "has_started": True}, "degraded", "timed out"),
    ({"state": "stopped", "has_crashed": True, "last_error": LAST_LINE}, STARTED, "degraded", f"died: {LAST_LINE}"),
    ({"state": "ready", "has_crashed": True}, STARTED, "healthy", "generation 2 answers"),
    ({"state": "ready"}, {"mismatch": "JAX has 7 of 8", "has_started": True}, "degraded", "JAX has 7 of 8"),
    ({"state": "busy", "silent_s": 61.0}, STARTED, "degraded", "silent for 61 s"),
    ({"state": "busy", "silent_s": 60.0}, STARTED, "healthy", "generation 2 is at work"),
    ({"state": "stopped"}, STARTED, "healthy", "released on purpose after generation 2"),
    ({"state": "stopped"}, {"not_started": "another process has it"}, "initializing", "another process has it"),
    ({"state": "stopped"}, {}, "initializing", "not checked yet"),
    ({"state": "starting"}, {"not_started": "another process has it"}, "initializing", "not checked yet"),
])  # fmt: skip
def test_the_worker_is_as_its_supervisor_and_jax_say(
    tmp_path: Path, worker: dict[str, Any], said: dict[str, Any], state: str, words: str
) -> None:
    usual = {"generation": 2, "last_error": "", "has_crashed": False, "silent_s": 0.0}
    supervisor: Any = SimpleNamespace(**(usual | worker))
    told: dict[str, Any] = {"has_started": False, "failure": "", "mismatch": "", **said}
    scene = Scene(tmp_path)
    scene.monitor.report_worker(supervisor, **told, at=scene.clock.now())
    seen = scene.component("worker")
    assert seen.state == state
    assert words in seen.reason

"""Two agents on one host: the second refuses and names the first, also with a state directory and a port of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agents import start_agent
from tests.fakes.tree import plant_host
from tests.faults.causing import serve_and_leave
from tests.process.living import ask, stopped

pytestmark = pytest.mark.exhaustive


def test_a_second_agent_on_a_hosts_devices_leaves_and_names_the_process_of_the_first(tmp_path: Path) -> None:
    host = plant_host("tpu-v5p-4", tmp_path / "host")
    with start_agent(cpu_devices=None, ready=False, state_dir=tmp_path / "first", **host) as first:
        second = serve_and_leave(tmp_path / "second", **host)
        assert second.returncode == 1
        assert f"belongs to process {first.pid} of user {os.getuid()}; one agent owns a host" in second.stderr
        assert "--cpu-devices" in second.stderr
        assert "Traceback" not in second.stderr
        with stopped(first.pid):  # one that hangs is still the owner
            hung = serve_and_leave(tmp_path / "second", **host)
        assert (hung.returncode, f"process {first.pid}" in hung.stderr) == (1, True)
        assert ask(first, "/health")["components"]
        with start_agent(cpu_devices=1, **host) as virtual:  # it owns no device
            assert ask(virtual, "/devices")["platform"] == "cpu"
        first.kill()
    with start_agent(cpu_devices=None, ready=False, state_dir=tmp_path / "first", **host) as again:
        assert ask(again, "/health")["components"]

"""Network ports of a living agent, on a recorded DGX H100 whose files change as a driver changes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from tests.agents import start_agent, wait_for
from tests.fakes.tree import plant_host
from tests.process.living import ask, await_state, read_component
from tests.process.test_agent_health import OFTEN

PORT, SIBLING = "nic:mlx5_5:1", "nic:mlx5_6:1"


@pytest.mark.exhaustive
def test_a_port_that_goes_down_is_degraded_until_it_is_back_and_each_change_is_an_event(tmp_path: Path) -> None:
    settings = plant_host("dgx-h100", tmp_path / "host")
    folder = tmp_path / "host/sys/class/infiniband/mlx5_5/ports/1"
    with start_agent(cpu_devices=2, **OFTEN, **settings) as agent:
        assert await_state(agent, PORT, "healthy")["reason"] == "up at 400 Gb/s"
        (folder / "state").write_text("1: DOWN\n")
        (folder / "phys_state").write_text("2: Polling\n")
        seen = await_state(agent, PORT, "degraded")
        assert "7 of its 7 siblings are up" in seen["reason"]
        assert "mlxlink -d mlx5_5" in seen["action"]
        (nic,) = [nic for nic in ask(agent, "/devices")["nics"] if nic["name"] == "mlx5_5:1"]
        assert (nic["state"], nic["rate_bytes_per_s"]) == ("DOWN", None)

        (folder / "state").write_text("4: ACTIVE\n")
        (folder / "phys_state").write_text("5: LinkUp\n")
        await_state(agent, PORT, "healthy")
        (folder / "rate").write_text("200 Gb/sec (4X HDR)\n")
        assert "its siblings at 400 Gb/s" in await_state(agent, PORT, "degraded")["reason"]
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
        await_state(agent, PORT, "healthy")

        (folder / "state").unlink()
        (folder / "state").mkdir()  # it exists, and reading it is an error
        await_state(agent, PORT, "unknown")
        shutil.rmtree(folder / "state")
        (folder / "state").write_text("4: ACTIVE\n")
        await_state(agent, PORT, "healthy")
        (folder / "counters/link_downed").write_text("1\n")
        assert "link_downed +1" in await_state(agent, PORT, "degraded")["reason"]
        assert read_component(agent, SIBLING)["state"] == "healthy"

        wait_for(lambda: len(ask(agent, f"/events?component={PORT}")["events"]) >= 8, agent)
        changes = [event["state"] for event in ask(agent, f"/events?component={PORT}")["events"]]
        assert changes == ["healthy", *["degraded", "healthy"] * 2, "unknown", "healthy", "degraded"]
        reply = httpx.post(
            f"{agent.url}/health/acknowledge", json={"component": PORT, "reason": "new cable"}, timeout=30
        )
        assert reply.json()["state"] == "healthy"

"""A host whose processes cannot be looked at: an agent without the right to, or in a container."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from tests.agents import start_agent, wait_for
from tests.fakes.tree import plant_host
from tests.process.living import read_component


def test_devices_that_may_be_in_use_are_not_opened_and_who_holds_them_is_null(tmp_path: Path) -> None:
    settings = plant_host("tpu-v5e-8", tmp_path)
    for process in (tmp_path / "proc").glob("[0-9]*"):
        shutil.rmtree(process)
    with start_agent(cpu_devices=None, **settings) as agent:
        devices = wait_for(lambda: httpx.get(f"{agent.url}/devices").json().get("devices"), agent)
        refused = httpx.post(f"{agent.url}/placement/bench", json={})
        worker = httpx.get(f"{agent.url}/devices").json()["worker"]
        release = httpx.post(f"{agent.url}/devices/release")
        component = read_component(agent, "worker")
    assert {device["processes"] for device in devices} == {None}
    assert (refused.status_code, refused.json()["code"]) == (409, "device_busy")
    assert "device 0 (TPU v5 lite), which may be in use" in refused.json()["detail"]
    assert "owners.conf" in refused.json()["hint"]
    assert (worker["state"], worker["generation"]) == ("stopped", 0)
    assert release.status_code == 200, release.text
    assert release.json()["holders"] is None
    assert "not started: the devices were released; a bench starts it" in component["reason"]

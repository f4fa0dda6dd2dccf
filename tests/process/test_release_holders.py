"""A release on a host whose processes cannot be looked at: an agent without the right to, or in a container."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from tests.agents import start_agent
from tests.fakes.tree import plant

TPU_HOST = Path(__file__).parents[1] / "recorded" / "tpu-v5e-8" / "tree.txt"


def test_who_holds_a_device_is_null_when_no_process_could_be_looked_at(tmp_path: Path) -> None:
    plant(TPU_HOST.read_text(), tmp_path)
    shutil.rmtree(tmp_path / "proc")
    for folder in ("dev", "proc"):
        (tmp_path / folder).mkdir(exist_ok=True)
    with start_agent(cpu_devices=2, MESHWRIGHT_HOST_ROOT=str(tmp_path)) as agent:
        answer = httpx.post(f"{agent.url}/devices/release")
    assert answer.status_code == 200, answer.text
    assert answer.json()["released"] is True
    assert answer.json()["holders"] is None

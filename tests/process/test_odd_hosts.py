"""Hosts whose driver and JAX do not agree, and the labels of a node whose folder comes late.

Everything is real but the driver, and that a CPU device of JAX stands for a card.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.agents import start_agent, wait_for
from tests.fakes.node_labels import read_feature_file
from tests.fakes.tree import plant_host
from tests.process.cards import DOCUMENT, plant_cards
from tests.process.living import ask, await_end, await_state, submit
from tests.process.test_agent_health import silence
from tests.process.test_verified_plans import MODEL

NAMESPACE = "meshwright.feature.node.kubernetes.io"
STEP = {"model": MODEL, "training": {"seq_len": 64}, "mesh": "dp:2", "target": "cpu:2", "compile": True}


def build_host(folder: Path, cards: int, seen: int) -> dict[str, str]:
    """Returns the settings of a host whose driver lists so many idle cards; JAX sees `seen`, or only CPUs."""
    return plant_cards(folder, [{**gpu, "processes": []} for gpu in DOCUMENT["gpus"][:cards]], seen=seen)


@pytest.mark.parametrize(("cards", "seen", "code", "words"), [
    (1, 0, "jax_sees_no_gpu", "the driver lists 1 GPU(s); the agent's JAX runs on cpu and sees none of them"),
    (2, 1, "devices_hidden", "listed by the driver, not shown to the agent's JAX: device 1"),
    (1, 2, "jax_device_unmatched", "2 of JAX's GPUs cannot be told apart from here: their jax view is null"),
])  # fmt: skip
def test_cards_that_driver_and_jax_do_not_both_see_are_a_warning(
    tmp_path: Path, cards: int, seen: int, code: str, words: str
) -> None:
    with start_agent(cpu_devices=None, **build_host(tmp_path, cards, seen)) as agent:
        found = wait_for(lambda: [each for each in ask(agent, "/devices")["warnings"] if each["code"] == code], agent)
        devices = ask(agent, "/devices")["devices"]
    assert (found[0]["message"], bool(found[0]["hint"])) == (words, True)
    assert [device["jax_id"] for device in devices] == {"devices_hidden": [0, None]}.get(code, [None])


def test_amds_cards_are_listed_once_jax_has_seen_them(tmp_path: Path) -> None:
    settings = build_host(tmp_path, 0, 2)
    for folder in ("dev/kfd", "sys/class/kfd/kfd/proc"):
        (tmp_path / "host" / folder).mkdir(parents=True)
    with start_agent(cpu_devices=None, ready=False, **settings) as agent:
        await_state(agent, "worker", "healthy", limit_s=60)
        reply = ask(agent, "/devices")
        labels = [(each["platform"], each["uuid"], each["processes"], each["basis"]) for each in reply["devices"]]
    assert labels == [("gpu", None, [], "live")] * 2
    assert [each["code"] for each in reply["warnings"]] == []


@pytest.mark.exhaustive
def test_many_cpus_beside_a_driver_that_hangs_are_listed_without_links_and_facts(tmp_path: Path) -> None:
    settings = plant_host("cpu-vm", tmp_path) | {"MESHWRIGHT_PROBE_TIMEOUT_S": "2"}
    fix = silence(tmp_path / "proc/cpuinfo")
    with start_agent(cpu_devices=65, MESHWRIGHT_COMPILE_TIMEOUT_S="0.2", **settings) as agent:
        reply = ask(agent, "/devices")
        late = httpx.post(f"{agent.url}/batch-size", json=STEP, timeout=60)
        assert late.status_code == 202, late.text
        result = await_end(agent, late.json()["id"])["result"]
        fix()
    assert (len(reply["devices"]), reply["links"]) == (65, [])
    assert [each["code"] for each in reply["warnings"]] == ["facts_missing", "links_left_out"]
    assert "65 CPU devices have 2080 links" in reply["warnings"][1]["message"]
    assert result["compiled"]["verification"]["status"] == "aborted"
    assert result["compiled"]["per_replica_batch_size"] is None


def test_labels_wait_for_their_folder_and_have_the_measured_all_reduce(tmp_path: Path) -> None:
    path = tmp_path / "features.d" / "meshwright"
    settings = {"MESHWRIGHT_LABEL_FILE": str(path), "MESHWRIGHT_PROBE_INTERVAL_S": "0.5"}

    def read() -> dict[str, str]:
        return read_feature_file(path.read_text(), now=datetime.now(UTC)) if path.exists() else {}

    with start_agent(cpu_devices=2, **settings) as agent:
        run = await_end(agent, submit(agent, {"cases": ["all_reduce"], "sizes_bytes": [65536], "samples": 3}))
        wait_for(lambda: "cannot be written" in agent.log_text(), agent)
        path.parent.mkdir()
        rate = wait_for(lambda: read().get(f"{NAMESPACE}/all-reduce-busbw-bytes-per-s"), agent)
        assert agent.log_text().count("cannot be written") == 1
    (record,) = run["result"]["records"]
    assert rate[:2] + "0" * (len(rate) - 2) == rate
    assert 0 <= record["busbw_bytes_per_s"] - int(rate) < 10 ** (len(rate) - 2)
    assert read()[f"{NAMESPACE}/device-count"] == "2"

"""Questions to NVML without an answer, in a living agent: `check` fails, and Slurm's health check does not pass.

Everything is real but the driver, whose document says which questions fail. All questions and all errors are tried in
process: `tests/unit/health/test_question_matrix.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.deploy.slurm_node import build_node
from tests.fakes.well import write_record
from tests.process.cards import DOCUMENT, plant_cards
from tests.process.living import ask, await_state, read_component
from tests.process.test_cli_exit_codes import _run
from tests.process.test_health_events import QUICK

UUID = DOCUMENT["gpus"][0]["uuid"]


def build_host(folder: Path) -> dict[str, str]:
    """Returns the settings of a recorded host with a driver and a kernel log, both of which are files."""
    write_record(folder / "kmsg", 0, "Linux version 6.12")
    cards = plant_cards(folder, [{**gpu, "processes": []} for gpu in DOCUMENT["gpus"]])
    return {**QUICK, **cards, "MESHWRIGHT_KERNEL_LOG": str(folder / "kmsg")}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningAgent, Path]]:
    """An agent on a host of eight cards that are well."""
    folder = tmp_path_factory.mktemp("host")
    with start_agent(cpu_devices=2, **build_host(folder)) as running:
        await_state(running, f"memory:{UUID}", "healthy")
        yield running, folder


def fail(folder: Path, failing: dict[str, int]) -> None:
    path, new = folder / "nvml.json", folder / "nvml.new"
    new.write_text(json.dumps({**json.loads(path.read_text()), "fail": failing}))
    new.rename(path)


@pytest.mark.parametrize(("failing", "component", "words"), [
    ({f"nvmlDeviceGetRemappedRows:{UUID}": 10}, f"memory:{UUID}", "NVML_ERROR_TIMEOUT"),
    ({f"nvmlDeviceGetHandleByIndex:{UUID}": 4}, "inventory", "7 of 8 devices are here; not readable: "),
    ({"nvmlInit": 4}, "driver", "Insufficient Permissions"),  # the agent's own fault drains nothing
])  # fmt: skip
def test_a_card_that_does_not_answer_passes_no_check(
    host: tuple[RunningAgent, Path], tmp_path: Path, failing: dict[str, int], component: str, words: str
) -> None:
    agent, folder = host
    fail(folder, failing)
    try:
        wait_for(lambda: words in read_component(agent, component)["reason"], agent)
        assert read_component(agent, component)["state"] in ("unknown", "unhealthy")
        assert ask(agent, "/health")["state"] in ("unknown", "unhealthy")
        assert _run(agent, "health").returncode == 1
        node = build_node(tmp_path, agent.url)
        done = node.run("healthcheck.sh")
        drains = component not in ("driver", "inventory")
        assert (done.returncode, "state=drain" in node.told()) == (0 if drains else 1, drains)
    finally:
        fail(folder, {})
        await_state(agent, f"memory:{UUID}", "healthy")


@pytest.mark.exhaustive
def test_cards_that_the_agent_never_could_look_at_drain_nothing_and_pass_no_check(tmp_path: Path) -> None:
    settings = build_host(tmp_path)
    fail(tmp_path, {"nvmlInit": 4})
    with start_agent(cpu_devices=2, **settings) as agent:
        await_state(agent, "driver", "unknown")
        assert _run(agent, "health").returncode == 1
        node = build_node(tmp_path, agent.url)
        done = node.run("healthcheck.sh")
        assert (done.returncode, node.told()) == (1, "")
        assert "this node was not checked: driver unknown: " in done.stderr

"""Leases, health's history and requirements: the client and its command against a real agent."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright import AsyncClient, Client
from meshwright.errors import MeshwrightError, NotFoundError
from meshwright.testing import FakeAgent
from tests.agents import MESHWRIGHT, RunningAgent, start_agent, wait_for
from tests.contract.client.both import Kind, both
from tests.process.living import LONG

LIMIT_S = 120.0


pytestmark = pytest.mark.usefixtures("no_leases")


def _behave(client: Client) -> list[Any]:
    """What a caller sees of leases: the same from an agent and from its fake."""
    seen: list[Any] = []

    def note(question: Any) -> Any:
        try:
            answer = question()
        except MeshwrightError as error:
            seen.append(type(error).__name__)
            return None
        seen.append(type(answer).__name__)
        return answer

    first = note(lambda: client.lease([0, 1], purpose="a"))
    note(lambda: client.lease([1], purpose="b", preemptible=True))
    note(lambda: client.lease([1, 2], purpose="c"))
    note(lambda: client.get_lease(first))
    third = note(lambda: client.lease([3], purpose="e"))
    seen.append([device.local_index for lease in client.leases().leases for device in lease.devices])
    seen.append([device.lease is not None for device in client.devices().devices])
    note(lambda: client.lease([99], purpose="f"))
    counted = note(lambda: client.lease({"count": 2}, purpose="g"))
    seen.append([device.local_index for device in counted.devices])
    note(lambda: client.lease({"count": 4}, purpose="h"))
    note(lambda: client.lease({"count": 9}, purpose="j"))
    seen.append([device.local_index for device in client.plan("x:-1").devices])
    seen.append([device.local_index for device in client.plan("x:-1", lease=counted).devices])
    client.end_lease(counted)
    note(lambda: client.get_lease(counted))
    note(lambda: client.renew_lease(third, 10))
    for lease in client.leases().leases:
        note(lambda lease=lease: client.end_lease(lease))
    seen.append(len(client.leases().leases))
    return seen


def test_the_fake_agent_leases_as_the_real_one_does(agent: RunningAgent) -> None:
    with Client(agent.url, timeout=LIMIT_S) as real, FakeAgent("cpu:8").client() as fake:
        assert _behave(real) == _behave(fake)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Exception ignored in.*socket")  # httpcore 1.0.9 leaves one to the collector
def test_a_held_lease_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    """Same state, same socket, another process: the holder does not notice."""
    state, socket = tmp_path / "state", tmp_path / "agent.sock"
    with start_agent(state_dir=state, uds=socket) as before:
        client = Client(f"unix://{socket}", timeout=LIMIT_S)
        held_by = client.hold(purpose="train", ttl_s=20)
        held = held_by.__enter__()
        before.stop()
    with start_agent(state_dir=state, uds=socket):
        renewed = held.lease
        wait_for(lambda: held.lease is not renewed or held.lost is not None)
        held.check()
        assert [lease.id for lease in client.leases().leases] == [renewed.id]
        held_by.__exit__(None, None, None)
        assert client.leases().leases == ()
        client.close()
    gc.collect()


@pytest.fixture
def held(agent: RunningAgent, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that runs under a preemptible lease of an hour and would not end."""
    up = tmp_path / "up"
    code = f"import time; open({str(up)!r}, 'w').close(); time.sleep(600)"
    options = ("--purpose", "train", "--preemptible", "--ttl", "1h", "--", sys.executable, "-c", code)
    environment = {**os.environ, "MESHWRIGHT_URL": agent.url}
    command = [*MESHWRIGHT, "lease", "run", *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(up.exists)
        yield process
        process.kill()


def test_a_command_is_held_and_a_signal_ends_its_lease(agent: RunningAgent, held: subprocess.Popen[str]) -> None:
    with Client(agent.url, timeout=LIMIT_S) as client:
        assert [lease.purpose for lease in client.leases().leases] == ["train"]
        held.send_signal(signal.SIGTERM)
        assert held.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert client.leases().leases == ()


def test_a_schedulers_signal_reaches_the_command_and_one_that_nohup_ignores_ends_neither(
    agent: RunningAgent, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    code = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5)); "
    code += f"open({str(up)!r}, 'w').close(); time.sleep(600)"
    command = ["env", "--ignore-signal=HUP", *MESHWRIGHT, "--url", agent.url, "lease", "run", "--purpose", "train"]
    with subprocess.Popen([*command, "--", sys.executable, "-c", code]) as process:
        wait_for(up.exists)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(LIMIT_S) == 5
    with Client(agent.url, timeout=LIMIT_S) as client:
        assert client.leases().leases == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_gives_back_what_it_has(agent: RunningAgent, number: signal.Signals) -> None:
    alone = ["env", "--default-signal", "--unset=COVERAGE_PROCESS_CONFIG"]  # coverage has a handler of its own
    command = [*alone, *MESHWRIGHT, "--url", agent.url, "bench", "--request", "-"]
    with Client(agent.url, timeout=LIMIT_S) as client:
        before = {run.id for run in client.runs().runs}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(LONG))
            process.stdin.close()
            wait_for(lambda: [run for run in client.runs().runs if run.progress and run.id not in before])
            process.send_signal(number)
            assert process.wait(LIMIT_S) == 128 + number
        (run,) = (run for run in client.runs().runs if run.id not in before)
        wait_for(lambda: client.run(run.id).state == "cancelled")


def test_a_lease_whose_id_nobody_reads_is_not_kept(agent: RunningAgent) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*MESHWRIGHT, "--url", agent.url, "lease", "create", "--purpose", "x"]
    for more in (["--id-only"], ["--format=json"], []):
        done = subprocess.run([*command, *more], stdout=writing, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, "choose the id with --id" in done.stderr) == (2, True)
    assert subprocess.run([*command, "--id", "mine"], stdout=writing).returncode == 0
    os.close(writing)
    with Client(agent.url, timeout=LIMIT_S) as client:
        assert [lease.id for lease in client.leases().leases] == ["mine"]


@both
def test_a_holder_learns_long_before_its_next_renewal_that_its_lease_was_taken_over(
    agent: RunningAgent, kind: Kind
) -> None:
    lost: list[MeshwrightError] = []

    def take_over(held: Any) -> None:
        with Client(agent.url, timeout=LIMIT_S) as other:
            other.lease([0], purpose="job 7")
        wait_for(lambda: lost, limit_s=LIMIT_S)
        assert held.lost is lost[0]

    options = {"purpose": "train", "preemptible": True, "ttl_s": 10 * 3 * LIMIT_S, "on_lost": lost.append}
    if kind == "sync":
        with Client(agent.url, timeout=LIMIT_S) as client, client.hold(**options) as held:
            take_over(held)
    else:

        async def hold() -> None:
            async with AsyncClient(agent.url, timeout=LIMIT_S) as client, client.hold(**options) as held:
                await asyncio.to_thread(take_over, held)

        asyncio.run(hold())
    assert isinstance(lost[0], NotFoundError)
    assert "(job 7)" in str(lost[0])


def test_a_held_command_ends_with_75_long_before_the_next_renewal(
    agent: RunningAgent, held: subprocess.Popen[str]
) -> None:
    with Client(agent.url, timeout=LIMIT_S) as client:
        client.lease([0], purpose="job 7")
        _, said = held.communicate(timeout=LIMIT_S)
        assert held.returncode == 75
        assert "the lease is lost, the command is ended: lease" in said
        assert "(job 7)" in said
        assert [lease.purpose for lease in client.leases().leases] == ["job 7"]


def test_the_history_can_be_asked_and_followed(agent: RunningAgent) -> None:
    with Client(agent.url, timeout=LIMIT_S) as client:
        history = client.events(limit=1000).events
        assert [event.seq for event in history] == sorted({event.seq for event in history})
        assert history, "an agent that started has come into some state"
        named = client.events(history[0].component, limit=1000).events
        assert {event.component for event in named} == {history[0].component}
        followed = client.follow_events(after=history[0].seq - 1)
        assert next(followed) == history[0]
        followed.close()  # type: ignore[attr-defined]

"""Exit codes of `meshwright` that scripts rely on, each caused against a real agent; the documents list no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from meshwright import Client
from meshwright.cli import main
from tests.agents import MESHWRIGHT, RunningAgent
from tests.documents import Document

LIMIT_S = 120.0
FAR = ("--url", "http://127.0.0.1:9")
STEP = ("--model", "gpt2", "--global-batch-size", "64", "--seq-len", "1024")


pytestmark = pytest.mark.usefixtures("no_leases")


def _run(agent: RunningAgent, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT_")}
    environment["MESHWRIGHT_URL"] = agent.url
    return subprocess.run([*MESHWRIGHT, *arguments], env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def _code(*arguments: str) -> Callable[[RunningAgent], int]:
    """Returns what gives the exit code of a command, run in this process: a start of Python takes a second."""

    def run(agent: RunningAgent) -> int:
        with patch.dict(os.environ, MESHWRIGHT_URL=agent.url), pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def _lease_away(agent: RunningAgent, *devices: int) -> None:
    with Client(agent.url) as client:
        client.lease(list(devices), purpose="job 9")


def _interrupt_follow(agent: RunningAgent) -> int:
    """SIGINT reaches the command as from a terminal's Ctrl-C."""
    command = ["env", "--default-signal=INT", *MESHWRIGHT, "events", "--follow", "--since", "1h"]  # tests may ignore it
    environment = {**os.environ, "MESHWRIGHT_URL": agent.url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        return process.wait(LIMIT_S)


def _end_hold(agent: RunningAgent, script: str) -> int:
    return _run(agent, "lease", "run", "--purpose", "x", "--", "sh", "-c", script).returncode


def _hold_away(agent: RunningAgent) -> int:
    _lease_away(agent, 0)
    return _code("lease", "run", "--purpose", "x", "--", "true")(agent)


def _hold_lost(agent: RunningAgent) -> int:
    """The command ends its own lease, as another client would."""
    end = "import os; from meshwright.cli import main; main(['lease', 'end', os.environ['MESHWRIGHT_LEASE']])"
    return _run(agent, "lease", "run", "--purpose", "x", "--", sys.executable, "-c", end).returncode


def _lease_twice(agent: RunningAgent) -> int:
    _lease_away(agent, 0)
    return _code("lease", "create", "0", "--purpose", "x")(agent)


CAUSES: dict[str, dict[str, Callable[[RunningAgent], int]]] = {
    "plan": {"0": _code("plan", "dp:8"), "1": _code("plan", "dp:9"), "2": _code("plan", "dp:8", *FAR)},
    "search": {
        "0": _code("search", "--target", "h100:8", *STEP),
        "1": _code("search", "--target", "v5q:4x4", *STEP),
        "2": _code("search", *STEP, *FAR),
    },
    "health": {
        "0": _code("health", "--expect", "cpu:8"),
        "1": _code("health", "--expect", "cpu:9"),
        "2": _code("health", *FAR),
    },
    "lease create": {
        "0": _code("lease", "create", "0", "--purpose", "x"),
        "1": _lease_twice,
        "2": _code("lease", "create", "99", "--purpose", "x"),
    },
    "lease end": {
        "0": _code("lease", "end", "--purpose", "none"),
        "1": _code("lease", "end", "lease-0123456789abcdef"),
        "2": _code("lease", "end"),
    },
    "lease run": {
        "the command's": lambda agent: _end_hold(agent, "exit 7"),
        "128 + n": lambda agent: _end_hold(agent, "kill -TERM $$"),
        "75": _hold_lost,
        "1": _hold_away,
        "2": _code("lease", "run", "--purpose", "x"),
        "126": _code("lease", "run", "--purpose", "x", "--", str(Path(__file__))),
        "127": _code("lease", "run", "--purpose", "x", "--", "/no/such/command"),
    },
    "events": {"0": _code("events"), "2": _code("events", "--since", "5"), "130": _interrupt_follow},
    "health ack": {
        "0": _code("health", "ack", "driver", "--reason", "looked"),
        "1": _code("health", "ack", "device:99", "--reason", "looked"),
        "2": _code("health", "ack", "driver"),
    },
}
WANTED = {"the command's": 7, "128 + n": 128 + signal.SIGTERM}


@pytest.mark.parametrize(("command", "code"), [(command, code) for command, codes in CAUSES.items() for code in codes])
def test_each_exit_code_that_is_documented_happens(agent: RunningAgent, command: str, code: str) -> None:
    assert CAUSES[command][code](agent) == (WANTED[code] if code in WANTED else int(code))


def test_the_tutorial_lists_the_exit_codes_that_happen_and_no_others() -> None:
    rows = Document.read("docs/reference/cli.md").table("Exit codes", "command")
    documented = {row[0]: [code for code, said in zip(HEADS, row[1:], strict=True) if said] for row in rows}
    assert documented == {command: sorted(codes, key=HEADS.index) for command, codes in CAUSES.items()}


HEADS = ["0", "1", "2", "75", "126", "127", "130", "the command's", "128 + n"]


def test_under_a_held_lease_a_plan_is_made_on_its_devices(agent: RunningAgent) -> None:
    inner = (*MESHWRIGHT, "--format=json", "plan", "dp:2")
    done = _run(agent, "lease", "run", "--purpose", "x", "--devices", "5,6", "--", *inner)
    assert [device["local_index"] for device in json.loads(done.stdout)["plans"][0]["devices"]] == [5, 6]


@pytest.mark.parametrize(("command", "code", "words"), [
    ("hardware", 0, "h100"), ("hardware h100", 0, "by NVSwitch"), ("hardware v5q", 2, "v5p"),
    ("hardware v5p --format json", 0, "4x4x4"),
    ("runs list", 0, "succeeded"), ("runs show RUN", 0, "succeeded"), ("runs show run-none", 1, "there is no run"),
    ("runs cancel RUN", 0, "succeeded"), ("runs list --format json", 0, '"kind":"bench"'),
    ("devices --topology", 0, "host"), ("devices --hosts URL", 0, "8"), ("env --format json", 0, "JAX_NUM_CPU_DEVICES"),
    ("batch-size --hardware h100", 0, "tokens a device"), ("batch-size --hardware h999", 2, "h999"),
    ("batch-size --hardware h100 --per-device-batch-size 4", 1, "below minimum"),
    ("batch-size --model gpt2 --target h100:8 --mesh dp:8 --seq-len 128", 0, "sequences"),
    ("lease list --format json", 0, '"leases":[]'), ("plan dp:2 --devices 0,x", 1, "x"),
    ("plan dp:8 --request /x", 2, "/x"),
])  # fmt: skip
def test_what_a_command_prints_answers_and_its_exit_code_is_the_documented_one(
    agent: RunningAgent, capfd: pytest.CaptureFixture[str], command: str, code: int, words: str
) -> None:
    with Client(agent.url) as client:
        if not (done := client.runs(state="succeeded").runs):
            client.bench(cases=["host_to_device"], sizes_bytes=[4096])
            done = client.runs(state="succeeded").runs
        arguments = command.replace("RUN", done[0].id).replace("URL", agent.url).split()
    assert (_code(*arguments)(agent), words in "".join(capfd.readouterr())) == (code, True)

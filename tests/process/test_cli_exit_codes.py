"""Exit codes of `meshwright` that scripts rely on, each caused against a real agent; the documents list no others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from meshwright import Client
from meshwright.cli import main
from tests.agents import RunningAgent, start_agent, wait_for
from tests.documents import Document
from tests.process.living import end_leases
from tests.tokens import add_token

LIMIT_S = 120.0
COMMAND = (sys.executable, "-c", "from meshwright.cli import main; main()")
FAR = ("--url", "http://127.0.0.1:9")
STEP = ("--model", "gpt2", "--global-batch-size", "64", "--seq-len", "1024")
INDIVISIBLE_MODEL = (
    "--model",
    '{"vocab_size": 64, "hidden_size": 60, "intermediate_size": 60, "num_hidden_layers": 1, "num_attention_heads": 3}',
    "--global-batch-size",
    "8",
    "--seq-len",
    "64",
)


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    with start_agent() as running:
        yield running


@pytest.fixture(autouse=True)
def no_leases(host: RunningAgent) -> Iterator[None]:
    yield
    end_leases(host)


def _run(host: RunningAgent, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT_")}
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**environment, "MESHWRIGHT_URL": host.url},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def _lease_away(host: RunningAgent, *devices: int) -> str:
    with Client(host.url) as client:
        return client.lease(list(devices), purpose="job 9").id


@contextlib.contextmanager
def _running(host: RunningAgent, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yields a command that goes on; SIGINT reaches it as from a terminal's Ctrl-C."""
    with subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, *arguments],  # a test run in the background ignores it
        env={**os.environ, "MESHWRIGHT_URL": host.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _interrupt_follow(host: RunningAgent) -> int:
    with _running(host, "events", "--follow", "--since", "1h") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        return process.wait(LIMIT_S)


def _end_hold(host: RunningAgent, script: str) -> int:
    return _run(host, "lease", "run", "--purpose", "x", "--", "sh", "-c", script).returncode


def _hold_away(host: RunningAgent) -> int:
    _lease_away(host, 0)
    return _run(host, "lease", "run", "--purpose", "x", "--", "true").returncode


def _hold_lost(host: RunningAgent) -> int:
    """The command ends its own lease, as another client would."""
    end = "import os; from meshwright.cli import main; main(['lease', 'end', os.environ['MESHWRIGHT_LEASE']])"
    return _run(host, "lease", "run", "--purpose", "x", "--", sys.executable, "-c", end).returncode


def _hold_plain_file(host: RunningAgent) -> int:
    return _run(host, "lease", "run", "--purpose", "x", "--", str(Path(__file__))).returncode


def _lease_twice(host: RunningAgent) -> int:
    _lease_away(host, 0)
    return _run(host, "lease", "create", "0", "--purpose", "x").returncode


def _code(*arguments: str) -> Callable[[RunningAgent], int]:
    """Returns what gives the exit code of a command, run in this process: a start of Python takes a second."""

    def run(host: RunningAgent) -> int:
        with patch.dict(os.environ, MESHWRIGHT_URL=host.url), pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


CAUSES: dict[str, dict[str, list[Callable[[RunningAgent], int]]]] = {
    "plan": {
        "0": [_code("plan", "dp:8"), _code("plan", "dp:2,tp:2", "--count", "4")],
        "1": [_code("plan", "dp:9"), _code("plan", "dp:3"), _code("plan", "tp:8", *INDIVISIBLE_MODEL)],
        "2": [
            _code("plan"),
            _code("plan", "dp:x"),
            _code("plan", "dp:8", "--request", "/no/such/file"),
            _code("plan", "dp:8", *FAR),
        ],
    },
    "search": {
        "0": [_code("search", "--target", "h100:8", *STEP)],
        "1": [_code("search", *STEP), _code("search", "--target", "v5q:4x4", *STEP)],
        "2": [_code("search"), _code("search", *STEP, *FAR), _code("search", "--model", "gpt2")],
    },
    "health": {
        "0": [_code("health", "--expect", "8*cpu")],
        "1": [_code("health", "--expect", "9*cpu")],
        "2": [_code("health", *FAR), _code("health", "--nope")],
    },
    "lease create": {
        "0": [_code("lease", "create", "0", "--purpose", "x")],
        "1": [_lease_twice],
        "2": [
            _code("lease", "create", "99", "--purpose", "x"),
            _code("lease", "create"),
            _code("lease", "create", "--purpose", "x", *FAR),
        ],
    },
    "lease end": {
        "0": [_code("lease", "end", "--purpose", "none"), _code("lease", "list")],
        "1": [_code("lease", "end", "lease-0123456789abcdef"), _code("lease", "renew", "lease-0123456789abcdef")],
        "2": [_code("lease", "end"), _code("lease", "list", *FAR)],
    },
    "lease run": {
        "the command's": [lambda host: _end_hold(host, "exit 7")],
        "128 + n": [lambda host: _end_hold(host, "kill -TERM $$")],
        "75": [_hold_lost],
        "1": [_hold_away],
        "2": [_code("lease", "run", "--purpose", "x"), _code("lease", "run", "--purpose", "x", *FAR, "--", "true")],
        "126": [_hold_plain_file],
        "127": [_code("lease", "run", "--purpose", "x", "--", "/no/such/command")],
    },
    "events": {
        "0": [_code("events"), _code("events", "--component", "none")],
        "2": [_code("events", "--since", "5"), _code("events", *FAR)],
        "130": [_interrupt_follow],
    },
    "health ack": {
        "0": [_code("health", "ack", "driver", "--reason", "looked")],
        "1": [_code("health", "ack", "device:99", "--reason", "looked")],
        "2": [_code("health", "ack", "driver"), _code("health", "ack", "driver", "--reason", "x", *FAR)],
    },
}
WANTED = {"the command's": 7, "128 + n": 128 + signal.SIGTERM}


@pytest.mark.parametrize(("command", "code"), [(command, code) for command, codes in CAUSES.items() for code in codes])
def test_each_exit_code_that_is_documented_happens(host: RunningAgent, command: str, code: str) -> None:
    for cause in CAUSES[command][code]:
        assert cause(host) == (WANTED[code] if code in WANTED else int(code))


def test_the_tutorial_lists_the_exit_codes_that_happen_and_no_others() -> None:
    rows = Document.read("docs/reference/cli.md").table("Exit codes", "command")
    documented = {row[0]: [code for code, said in zip(HEADS, row[1:], strict=True) if said] for row in rows}
    assert documented == {command: sorted(codes, key=HEADS.index) for command, codes in CAUSES.items()}


HEADS = ["0", "1", "2", "75", "126", "127", "130", "the command's", "128 + n"]


@pytest.mark.parametrize("command", list(CAUSES))
def test_help_names_the_exit_codes_that_happen(
    host: RunningAgent, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert _code(*command.split(), "--help")(host) == 0
    said = " ".join(capsys.readouterr().out.split()).partition("Exit codes")[2]
    for code in CAUSES[command]:
        assert re.search(rf"(?<!\d){re.escape(code)}\b", said), (command, code)


def test_under_a_held_lease_a_plan_is_made_on_its_devices(host: RunningAgent) -> None:
    inner = (*COMMAND, "--format=json", "plan", "dp:2")
    done = _run(host, "lease", "run", "--purpose", "x", "--devices", "5,6", "--", *inner)
    assert [device["local_index"] for device in json.loads(done.stdout)["plans"][0]["devices"]] == [5, 6]


def test_who_shows_no_token_is_2_and_no_verdict(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    secret = add_token(tokens, "prolog", "read")
    with start_agent(ready=False, MESHWRIGHT_TOKENS_FILE=str(tokens)) as guarded:
        wait_for(lambda: _run(guarded, "health", "--format", "nagios").stdout, guarded)
        for command in (("lease", "list"), ("events",), ("health",), ("plan", "dp:8")):
            assert _run(guarded, *command).returncode == 2
        assert _run(guarded, "health", "--format", "nagios").stdout.startswith("MESHWRIGHT UNKNOWN - no verdict: ")
        with Client(guarded.url, token=secret) as client:
            wait_for(lambda: client.ready().ready, guarded)
            assert client.leases().leases == ()

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import typer

from meshwright import errors
from meshwright.cli import app, session
from meshwright.cli.session import FAILED, NO_ANSWER
from tests.unit.cli.conftest import CommandLine

COMMANDS = tuple(cast(Any, typer.main.get_command(app)).commands)


@pytest.mark.parametrize(("name", "code"), [
    ("plan_infeasible", FAILED), ("devices_unused", FAILED), ("does_not_divide", FAILED), ("bench_too_large", FAILED),
    ("device_busy", FAILED), ("device_leased", FAILED), ("not_found", FAILED), ("run_failed", FAILED),
    ("run_cancelled", FAILED), ("worker_failed", FAILED), ("internal", FAILED), ("invalid_mesh", NO_ANSWER),
    ("invalid_request", NO_ANSWER), ("unknown_hardware", NO_ANSWER), ("unauthorized", NO_ANSWER),
    ("queue_full", NO_ANSWER), ("not_ready", NO_ANSWER), ("store_unavailable", NO_ANSWER),
])  # fmt: skip
def test_infeasible_is_1_and_a_wrong_value_or_no_answer_2(meshwright: CommandLine, name: str, code: int) -> None:
    meshwright.fake.fail_next(errors.CODES[name].error("asked for", code=name), times=3)
    assert meshwright("devices").code == code


def test_a_group_of_commands_names_them(meshwright: CommandLine) -> None:
    printed = meshwright("lease", "-h")
    assert (printed.code, printed.out) == (0, "lease has: create, list, renew, end, run; each has a help of its own\n")
    assert meshwright("lease").code == NO_ANSWER


def test_with_json_an_error_is_a_problem_document_on_stderr(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(errors.PlanInfeasibleError("too many", hint="use dp:2"))
    printed = meshwright("--format=json", "devices")
    problem = json.loads(printed.err)
    assert (printed.code, printed.out) == (1, "")
    assert (problem["code"], problem["detail"], problem["hint"]) == ("plan_infeasible", "too many", "use dp:2")


def test_text_of_an_agent_cannot_steer_the_terminal(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(errors.PlanInfeasibleError("\x1b]0;pwned\x07[red]", hint="\x9b2J"))
    printed = meshwright("devices")
    assert "[red]" in printed.err
    assert not set(printed.err) & {"\x1b", "\x07", "\x9b"}


def test_the_time_limit_is_of_the_whole_command_even_where_an_answer_drips() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(100):
                    connection.send(b"H")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", "from meshwright.cli import main; main()", "devices", "--url", url]
        done = subprocess.run([*command, "--timeout", "0.5"], capture_output=True, text=True, timeout=8, check=False)
    assert (done.returncode, "not done within 0.5 s" in done.stderr) == (2, True)


def test_an_end_that_python_dropped_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AGAIN_S", 0.05)
    with pytest.raises(session.LateError), session.limit_time(0.01):  # noqa: PT012 - the first of two
        with contextlib.suppress(session.LateError):  # as in a finalizer
            time.sleep(20)
        time.sleep(20)


@pytest.mark.parametrize("arguments", [
    ("nonsense",), ("devices", "--nonsense"), ("plan",), ("runs", "cancel"),
    *(("devices", "--timeout", timeout_s) for timeout_s in ("0", "nan", "inf", "soon")),
])  # fmt: skip
def test_usage_errors_are_2_and_ask_nobody(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    printed = meshwright(*arguments)
    assert (printed.code, meshwright.fake.requests) == (2, [])
    assert "--timeout" not in arguments or "--timeout" in printed.err


def test_help_names_every_command_and_every_exit_code(meshwright: CommandLine) -> None:
    text = meshwright("--help").out
    assert all(f"\n  {command} " in text for command in COMMANDS)
    assert all(f"\n    {code} " in text for code in (0, 1, 2, 70, 130))


def test_the_version_is_that_of_the_distribution(meshwright: CommandLine) -> None:
    assert meshwright("--version").out == f"meshwright {metadata.version('meshwright')}\n"


def test_a_bug_is_70_with_its_traceback(meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshwright.fake, "client", lambda **_: 1 / 0)
    printed = meshwright("devices")
    assert (printed.code, "ZeroDivisionError" in printed.err) == (70, True)


TABLE = {"min_batch_size": 1, "optimal_batch_size": 32, "critical_batch_size": 16, "why": "new"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "env": ("/environment", {"memory_fraction": 0.75, "variables": {"É": "1"}, "since": [1]}),
    "runs list": ("/runs", {"runs": [], "total": 0}),
    "health": ("/health", {"state": "healthy", "components": [{"name": "store", "state": "healthy", "extra": None}]}),
    "batch-size": ("/batch-size", {"hardware_type": "cpu", "basis": "live", "table": TABLE}),
    "devices release": ("/devices/release", {"released": True, "worker_killed": False, "worker": {"state": "stopped"}}),
}


@pytest.mark.parametrize("command", BODIES)
def test_json_is_what_the_agent_sent_with_fields_of_newer_ones_and_without_defaults(
    meshwright: CommandLine, command: str
) -> None:
    path, body = BODIES[command]
    meshwright.fake.fail_next(httpx.Response(200, json=body), path=path)
    printed = meshwright(*command.split(), "--format=json")
    sent = json.loads(json.dumps(body).replace("+00:00", "Z"))
    assert (printed.json, printed.err, printed.code) == (sent, "", 0)


def run_into(stdout: int, arguments: tuple[str, ...]) -> tuple[int, str]:
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}; from meshwright.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)
    return done.returncode, done.stderr


BATCH = ("batch-size", "--offline", "--hardware", "h100", "--per-device-batch-size", "1")
"""Its answer is a no."""


@pytest.mark.parametrize(("options", "code"), [(BATCH[:-2], 0), (("--format=json", *BATCH), 1)])
def test_a_reader_that_goes_away_leaves_the_verdict_as_it_is(options: tuple[str, ...], code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run_into(writing, options) == (code, "")
    finally:
        os.close(writing)


@pytest.mark.parametrize(("arguments", "code"), [
    (BATCH, 1), (("--format=json", *BATCH), 1), (("lease", "create", "--purpose", "x"), 2),
])  # fmt: skip
def test_a_stdout_that_was_closed_leaves_the_verdict_as_it_is(arguments: tuple[str, ...], code: int) -> None:
    """As under cron or a supervisor that closes descriptors. A lease whose id would be lost is not made."""
    start = f"import sys; sys.argv[1:] = {list(arguments)!r}; from meshwright.cli import main; main()"
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, start]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr, "stdout is closed" in done.stderr) == (code, False, code == 2)


def test_a_stdout_without_room_is_2_and_no_bug() -> None:
    with Path("/dev/full").open("w") as full:
        code, said = run_into(full.fileno(), BATCH)
    assert (code, "Traceback" in said) == (2, False)
    assert "stdout cannot be written: No space left on device" in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_a_question_mark(
    encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    with (tmp_path / "out").open("w") as out:
        asked = ("search", "--offline", "--model", "gpt2", "--target", "h100:8", "--global-batch-size", "64")
        assert run_into(out.fileno(), asked) == (0, "")
    assert "?" in (tmp_path / "out").read_text(encoding, errors="ignore")  # what click prints stays UTF-8 in ASCII


def test_a_stderr_without_room_leaves_the_exit_code_as_it_is() -> None:
    code = "import sys; sys.argv[1:] = ['preflight', '--hosts', '127.0.0.1:1']; from meshwright.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=full).returncode == 2


@pytest.mark.parametrize(("command", "left_out"), [
    (["plan", "dp:8", "--offline", "--target", "h100:8"], {"httpx", "numpy", "meshwright.compiling.request"}),
    (["health", "--url", "http://127.0.0.1:1"], {"numpy", "meshwright.wire.mesh", "meshwright.topology.chips"}),
])  # fmt: skip
def test_a_command_imports_only_what_it_needs(command: list[str], left_out: set[str]) -> None:
    code = f"import sys; from meshwright.cli import main\ntry: main({command})\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == (0 if command[0] == "plan" else NO_ANSWER), done.stderr
    assert not left_out.intersection(done.stdout.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_a_commands_module_is_imported_ends_it_as_later(number: signal.Signals) -> None:
    code = f"""
import os, signal, sys
from meshwright.cli import main
signal.signal({number}, signal.default_int_handler if {number} == signal.SIGINT else signal.SIG_DFL)  # not nohup's

class Finder:
    def find_spec(self, name, *_):
        if name == "meshwright.cli.hardware":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
main(["hardware"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (session.SIGNALLED + number, "", False)

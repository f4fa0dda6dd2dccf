"""The child that compiles: whatever it does, there is an answer in bounded time, and nothing of it is left.

The child is a real process that speaks the real protocol; what it does is that of tests/fakes/compiler.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshwright.compiling.child import LOG_LINES, Ended, build_aborted, describe_status, run_child
from meshwright.errors import InternalError, InvalidRequestError
from meshwright.wire.runs import Progress
from tests.agents import wait_for
from tests.fakes.compiler import MODULE, check_fake
from tests.process.living import is_alive, list_children, list_own_children

ROOT = Path(__file__).parents[3]


def run(does: str = "", **options: Any) -> dict[str, Any] | Ended:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = {"does": does, "target": "v5e:2x2", **options.pop("job", {})}
    return run_child(MODULE, {"operation": "behave", "job": job}, environ=environ, **{"limit_s": 60.0, **options})


def end(does: str, **options: Any) -> Ended:
    found = run(does, **options)
    assert isinstance(found, Ended)
    return found


def test_the_answer_and_the_progress_come_beside_what_is_printed() -> None:
    heard: list[Progress] = []
    answer = run(on_progress=heard.append)
    assert isinstance(answer, dict)
    check_fake(answer)
    assert answer["target"] == "v5e:2x2"
    starting = Progress(message="starting the compiler", done=0, total=1)
    assert heard == [starting, Progress(message="tracing", done=1, total=4)]


def test_an_abort_is_told_with_its_last_lines() -> None:
    ended = end("abort")
    assert ended.reason == "the compiler aborted (SIGABRT)"
    assert "F0000 Check failed: the mesh is shuffled" in ended.log
    assert "libtpu writes to stdout" in ended.log
    assert build_aborted(ended, "v5e:2x2").status == "aborted"


def test_a_child_that_ends_without_an_answer_says_its_status() -> None:
    assert end("exit").reason == "the compiler ended with status 3 before it answered"


def test_one_that_hangs_is_killed_when_its_time_is_over() -> None:
    before = list_own_children(os.getpid())
    began_s = time.monotonic()
    assert "did not end within 4 s" in end("hang", limit_s=4.0).reason
    assert time.monotonic() - began_s < 8.0
    assert list_own_children(os.getpid()) <= before


def test_one_that_leaks_is_ended_at_its_limit() -> None:
    ended = end("leak", memory_limit_bytes=400_000_000)
    assert ended.reason == "the compiler used more than 400,000,000 bytes of the host's memory and was ended"
    assert any("it may have 400000000" in line for line in ended.log)


def test_a_bug_is_an_error_with_its_traceback_and_no_verdict() -> None:
    with pytest.raises(InternalError, match="a bug of ours") as caught:
        run("raise")
    assert any("KeyError" in line for line in caught.value.log)


def test_a_job_that_cannot_be_is_refused_with_its_hint() -> None:
    with pytest.raises(InvalidRequestError, match="step x:y is none") as caught:
        run("refuse")
    assert caught.value.hint == "use a:b"


def test_no_output_blocks_it_and_the_log_has_an_end() -> None:
    assert isinstance(run("shout"), dict)
    with pytest.raises(InternalError) as caught:
        run_child(
            MODULE,
            {"operation": "no such", "job": {}},
            environ={**os.environ, "PYTHONPATH": str(ROOT)},
            limit_s=60.0,
        )
    assert 0 < len(caught.value.log) <= LOG_LINES


def test_what_the_compiler_started_goes_with_it() -> None:
    heard: list[str] = []
    end("fork", on_progress=lambda progress: heard.append(progress.message))
    sleeper = int(heard[-1].split()[1])
    wait_for(lambda: not is_alive(sleeper), limit_s=5.0)


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "3",
        "[]",
        '"text"',
        "{}",
        '{"type": 4}',
        '{"type": []}',
        '{"type": "answers"}',
        '{"type": "progress"}',
    ],
)
def test_a_line_that_is_no_frame_is_told_and_no_traceback(line: str) -> None:
    ended = end("meddle", job={"bytes": line})
    assert "a line that is none of ours" in ended.reason
    assert ended.log[-1] == line
    assert build_aborted(ended, None).status == "aborted"


def test_a_callback_that_raises_kills_it() -> None:
    before = list_own_children(os.getpid())

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("hang", on_progress=interrupt)
    assert list_own_children(os.getpid()) <= before


@pytest.mark.parametrize(
    ("name", "expected"), [("JAX_PLATFORMS", "cpu"), ("CUDA_VISIBLE_DEVICES", ""), ("MESHWRIGHT_TOKEN", "unset")]
)
def test_the_child_opens_no_device_and_has_no_token(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setenv("MESHWRIGHT_TOKEN", "secret")
    run("environment", job={"name": name}, on_progress=lambda progress: heard.append(progress.message))
    assert heard[-1] == expected


PARENT = """
import os
from tests.fakes.compiler import MODULE
from meshwright.compiling.child import run_child
run_child(MODULE, {"operation": "behave", "job": {"does": "hang"}}, on_progress=lambda p: print("up", flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_compile_outlives_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        (child,) = list_children(parent.pid)
        parent.send_signal(number)
        parent.wait(10)
        wait_for(lambda: not is_alive(child), limit_s=5.0)
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-6, "the compiler aborted (SIGABRT)"),
        (-11, "the compiler crashed (SIGSEGV)"),
        (-9, "the compiler was killed (SIGKILL), most likely since the host had no memory left"),
        (-99, "the compiler crashed (signal 99)"),
        (1, "the compiler ended with status 1 before it answered"),
        (None, "the compiler closed its connection, did not end, and was killed"),
    ],
)
def test_an_ending_is_said_in_words(status: int | None, said: str) -> None:
    assert describe_status(status) == said

"""The supervisor with real children: everything that `tests.fakes.faulty_child` can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from meshwright.errors import (
    DeviceBusyError,
    InternalError,
    RunFailedError,
    WorkerCrashedError,
    WorkerFailedError,
    WorkerTimeoutError,
)
from meshwright_agent.clock import SystemClock
from meshwright_agent.worker.process import spawn_child
from meshwright_agent.worker.protocol import Frame, FrameError, Hello
from meshwright_agent.worker.supervisor import CallCancelled, ChildSpec, Supervisor
from tests.process.living import TRIES

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0


def build_environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **variables}


def supervise(scenario: Callable[[Supervisor], Awaitable[T]], *, fault: str = "", **spec: Any) -> T:
    """Runs a scenario against a supervisor of faulty children, and closes it."""

    failed: list[Any] = []

    async def run() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
        supervisor = Supervisor(
            ChildSpec(
                name="faulty",
                module="tests.fakes.faulty_child",
                environment=lambda: build_environment(
                    MESHWRIGHT_FAULT=fault, NOTIFY_SOCKET="/run/x", WATCHDOG_USEC="1"
                ),
                **{"backoff_initial_s": 0.01, **spec},
            ),
            clock=SystemClock(),
        )
        try:
            return await asyncio.wait_for(scenario(supervisor), 60)
        finally:
            await supervisor.close()

    result = asyncio.run(run())
    assert not failed
    return result


async def call(supervisor: Supervisor, op: str, **arguments: Any) -> dict[str, Any]:
    return (await supervisor.call(op, arguments, deadline_s=DEADLINE_S)).result


async def begin(supervisor: Supervisor, op: str, *, deadline_s: float = DEADLINE_S) -> asyncio.Task[Any]:
    """Starts a call in a task of its own and waits until the handler has told its first progress."""
    working = asyncio.Event()
    listener: Callable[[dict[str, Any]], None] = lambda _value: working.set()  # noqa: E731
    task = asyncio.create_task(supervisor.call(op, {}, deadline_s=deadline_s, on_progress=listener))
    await asyncio.wait_for(working.wait(), DEADLINE_S)
    return task


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def read_stdin(pid: int) -> str:
    return str(Path(f"/proc/{pid}/fd/0").readlink())


def read_descriptors(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed between the listing and the look
            found.append(str(entry.readlink()))
    return found


async def leave_state(supervisor: Supervisor, state: str) -> None:
    end = time.monotonic() + DEADLINE_S
    for _ in iter(lambda: supervisor.state == state and time.monotonic() < end, False):
        await asyncio.sleep(0.005)
    assert supervisor.state != state


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# the ordinary life


def test_a_call_starts_the_child_and_the_reply_carries_its_generation() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        assert (supervisor.state, supervisor.generation, supervisor.pid, supervisor.hello) == (
            "stopped",
            0,
            None,
            None,
        )
        answer = await supervisor.call("echo", {"x": [1, None, "é"]}, deadline_s=DEADLINE_S)
        assert answer.result == {"arguments": {"x": [1, None, "é"]}, "generation": 1, "pid": supervisor.pid}
        assert answer.generation == supervisor.generation == 1
        assert supervisor.state == "ready"
        assert supervisor.hello == {"jax": "0.0", "platform": "cpu", "device_count": 2}
        view = supervisor.view()
        assert (view.state, view.generation, view.pid, view.last_error) == ("ready", 1, supervisor.pid, None)

    supervise(scenario)


def test_start_brings_it_to_ready_and_twice_is_once() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        await asyncio.gather(supervisor.start(), supervisor.start())
        await supervisor.start()
        assert (supervisor.state, supervisor.generation) == ("ready", 1)

    supervise(scenario)


def test_calls_are_served_one_at_a_time_in_the_order_they_came() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        ended: list[int] = []

        async def one(number: int) -> None:
            assert (await call(supervisor, "echo", number=number))["arguments"] == {"number": number}
            ended.append(number)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert ended == list(range(20))
        assert supervisor.generation == 1

    supervise(scenario)


def test_progress_arrives_in_order_and_before_the_answer() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        told: list[int] = []
        answer = await supervisor.call(
            "count",
            {"to": 500},
            deadline_s=DEADLINE_S,
            on_progress=lambda value: told.append(value["number"]),
        )
        assert answer.result == {"counted": 500}
        assert told == list(range(500))

    supervise(scenario)


def test_a_listener_that_fails_harms_neither_call_nor_child(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_value: dict[str, Any]) -> None:
        raise ValueError("a bug in the listener")

    async def scenario(supervisor: Supervisor) -> None:
        answer = await supervisor.call("count", {"to": 2}, deadline_s=DEADLINE_S, on_progress=fail)
        assert answer.result == {"counted": 2}

    supervise(scenario)
    assert "a listener failed on progress" in caplog.text


def test_the_child_has_a_session_of_its_own_no_stdin_and_no_words_for_systemd() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        told = await call(supervisor, "environment", names=["NOTIFY_SOCKET", "WATCHDOG_USEC", "MESHWRIGHT_FAULT"])
        assert told == {"NOTIFY_SOCKET": None, "WATCHDOG_USEC": None, "MESHWRIGHT_FAULT": ""}
        assert supervisor.pid is not None
        assert os.getsid(supervisor.pid) == os.getpgid(supervisor.pid) == supervisor.pid
        assert read_stdin(supervisor.pid) == "/dev/null"

    supervise(scenario)


def test_the_environment_is_built_anew_at_each_spawn() -> None:
    async def scenario() -> None:
        built: list[int] = []

        def build() -> dict[str, str]:
            built.append(len(built))
            return build_environment(MESHWRIGHT_FAULT=f"number {len(built)}")

        supervisor = Supervisor(ChildSpec("faulty", "tests.fakes.faulty_child", build), clock=SystemClock())
        for number in (1, 2):
            told = await call(supervisor, "environment", names=["MESHWRIGHT_FAULT"])
            assert told == {"MESHWRIGHT_FAULT": f"number {number}"}
            await supervisor.release()
        await supervisor.close()

    asyncio.run(scenario())


def test_output_is_kept_and_never_blocks_the_child(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "meshwright.worker")

    async def scenario(supervisor: Supervisor) -> None:
        await call(supervisor, "chatter", bytes=41_000, lines=0)
        await supervisor.release()
        assert [len(line) for line in supervisor.log_tail] == [*[4096] * 10, 40]
        await call(supervisor, "chatter", bytes=1_000_000, lines=5000)
        await supervisor.release()
        assert len(supervisor.log_tail) == 200
        assert supervisor.log_tail[-1] == "line 4999"
        assert max(map(len, supervisor.log_tail)) <= 4096

    supervise(scenario)
    assert "line 4999" in caplog.text


# errors of handlers


def test_a_problem_of_the_handler_is_the_same_class_at_the_caller_and_the_child_lives_on() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(DeviceBusyError, match="gpu 0 is held by 123") as caught:
            await call(supervisor, "raise_problem")
        assert (caught.value.hint, caught.value.status) == ("stop 123", 409)
        assert caught.value.errors == ({"field": "devices", "message": "held"},)
        assert (await call(supervisor, "echo"))["generation"] == 1

    supervise(scenario)


def test_any_other_exception_is_a_failed_run_with_its_traceback_and_the_child_lives_on() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(
            RunFailedError, match="raise_other raised ZeroDivisionError: a bug in the handler"
        ) as caught:
            await call(supervisor, "raise_other")
        assert any("faulty_child.py" in line for line in caught.value.log)
        with pytest.raises(RunFailedError, match="SystemExit: 4"):
            await call(supervisor, "exit_politely")
        with pytest.raises(RunFailedError, match="JSON cannot say"):
            await call(supervisor, "answer_nan")
        with pytest.raises(InternalError, match="'no_such_thing' was asked; this child knows echo, "):
            await call(supervisor, "no_such_thing")
        assert (await call(supervisor, "echo"))["generation"] == 1

    supervise(scenario)


def test_arguments_that_json_cannot_say_are_refused_before_anything_starts() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(FrameError):
            await call(supervisor, "echo", value=float("nan"))
        assert (supervisor.state, supervisor.generation) == ("stopped", 0)

    supervise(scenario)


# death


@pytest.mark.parametrize(
    ("op", "ending"),
    [
        ("abort", "killed by SIGABRT"),
        ("segfault", "killed by SIGSEGV"),
        ("kill_self", "killed by SIGKILL"),
        ("leave", "exited with status 3"),
    ],
)
def test_a_crash_names_how_the_child_ended_and_the_next_call_gets_a_new_one(op: str, ending: str) -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(
            WorkerCrashedError, match=rf"{op} was asked of the faulty worker \(generation 1, pid .*{ending}"
        ) as caught:
            await call(supervisor, op, status=3)
        if op == "abort":
            assert "last words before the abort" in caught.value.log
        if op in ("abort", "segfault"):  # faulthandler's
            assert any("faulty_child.py" in line for line in caught.value.log)
        assert supervisor.last_error == caught.value.detail
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario)


def test_an_idle_child_that_dies_is_noticed_without_a_call() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        await supervisor.start()
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        await leave_state(supervisor, "ready")
        assert (await call(supervisor, "echo"))["generation"] == 2
        assert supervisor.last_error is not None
        assert "killed by SIGKILL" in supervisor.last_error

    supervise(scenario)


def test_only_the_call_under_way_fails_when_the_child_dies() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        first, second = await asyncio.gather(
            call(supervisor, "abort"), call(supervisor, "echo", x=1), return_exceptions=True
        )
        assert isinstance(first, WorkerCrashedError)
        assert isinstance(second, dict)
        assert second["generation"] == 2

    supervise(scenario)


def test_what_the_child_started_dies_with_it() -> None:
    async def scenario(supervisor: Supervisor) -> int:
        grandchild: int = (await call(supervisor, "start_grandchild"))["pid"]
        assert is_alive(grandchild)
        assert not any("socket:" in name for name in read_descriptors(grandchild))
        outcome = await supervisor.release()
        assert outcome.took_s < 2
        return grandchild

    grandchild = supervise(scenario)
    assert wait_until(lambda: not is_alive(grandchild))


def test_a_fork_that_holds_the_socket_does_not_hide_the_childs_death() -> None:
    async def scenario(supervisor: Supervisor) -> int:
        with pytest.raises(WorkerCrashedError, match="it ended and exited with status 3") as caught:
            await call(supervisor, "fork_and_leave")
        return next(int(line.split()[1]) for line in caught.value.log if line.startswith("forked"))

    fork = supervise(scenario)
    assert wait_until(lambda: not is_alive(fork))


def test_nothing_is_heard_of_a_child_before_it_is_listened_to() -> None:
    async def scenario() -> None:
        frames: list[Frame] = []
        spec = ChildSpec("faulty", "tests.fakes.faulty_child", lambda: build_environment(MESHWRIGHT_FAULT="speak"))
        child = await spawn_child(spec, 1, frames.append, lambda _words: None)
        end = time.monotonic() + DEADLINE_S
        for _ in iter(lambda: not child.log_tail and time.monotonic() < end, False):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert frames == []
        child.listen()
        for _ in iter(lambda: not frames and time.monotonic() < end, False):
            await asyncio.sleep(0.005)
        assert [type(frame) for frame in frames] == [Hello]
        assert (await child.stop(gently=True)).describe() == "exited with status 0"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "this is no frame\n"},
        {"text": '{"type":"stopped","id":1}\n'},
        {"text": '{"type":"call","id":1,"op":"echo","arguments":{}}\n'},
        {"text": '{"type":"stopped","id":99,"generation":1}\n'},
        {"text": "[" * 100_000 + "\n"},
        {"text": "x" * 1_000_000, "times": 70},
    ],
    ids=["no JSON", "no frame", "not a child's frame", "nobody's reply", "too deep", "a line without end"],
)
def test_a_bad_frame_is_a_crash_of_that_child_and_never_of_the_agent(arguments: dict[str, Any]) -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(WorkerCrashedError, match="broke the protocol"):
            await call(supervisor, "send_bytes", **arguments)
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario)


def test_a_reply_that_names_another_generation_is_a_bad_frame() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(WorkerCrashedError, match="a Result frame that nobody waits for"):
            await call(supervisor, "send_foreign_result", id=1, generation=7)

    supervise(scenario)


def test_a_frame_beyond_asyncios_line_limit_passes_and_one_beyond_ours_fails_the_call_only() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        assert len((await call(supervisor, "answer_huge", bytes=5_000_000))["text"]) == 5_000_000
        assert len((await call(supervisor, "echo", text="x" * 3_000_000))["arguments"]["text"]) == 3_000_000
        with pytest.raises(RunFailedError, match="the limit is"):
            await call(supervisor, "answer_huge", bytes=65 * 2**20)
        assert (await call(supervisor, "echo"))["generation"] == 1

    supervise(scenario)


def test_a_child_that_closes_its_socket_and_lives_on_is_killed() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(WorkerCrashedError, match="closed its socket and was killed by SIGKILL"):
            await call(supervisor, "close_socket")

    supervise(scenario)


# starting


@pytest.mark.parametrize(
    ("fault", "error", "match"),
    [
        ("raise", WorkerFailedError, "it cannot work: RuntimeError: no devices were found"),
        ("exit", WorkerFailedError, "exited with status 3"),
        ("hang", WorkerTimeoutError, "was not ready within 2 s"),
        ("wrong protocol", WorkerFailedError, "protocol, kind, generation, pid .2, 'faulty', 1,"),
        ("wrong pid", WorkerFailedError, "protocol, kind, generation, pid"),
        ("progress first", WorkerFailedError, "a Progress frame that nobody waits for"),
    ],
)
def test_a_child_that_does_not_say_hello_as_it_should_fails_the_start(
    fault: str, error: type[Exception], match: str
) -> None:
    async def scenario(supervisor: Supervisor) -> None:
        with pytest.raises(error, match=match) as caught:
            await supervisor.start()
        if fault == "raise":
            assert any("RuntimeError: no devices were found" in line for line in caught.value.log)  # type: ignore[attr-defined]
        if fault == "exit":
            assert "going away before hello" in caught.value.log  # type: ignore[attr-defined]
        if fault == "hang":
            assert any("in hello" in line for line in caught.value.log)  # type: ignore[attr-defined]
        assert supervisor.state == "backoff"
        assert supervisor.pid is None

    supervise(scenario, fault=fault, start_timeout_s=2.0, backoff_initial_s=30)


@pytest.mark.parametrize("spec", [{"module": "tests.fakes.no_such_module"}, {"environment": lambda: {}["gone"]}])
def test_a_child_that_cannot_even_be_spawned_fails_the_start(spec: dict[str, Any]) -> None:
    async def scenario() -> None:
        whole = {
            "name": "faulty",
            "module": "tests.fakes.faulty_child",
            "environment": build_environment,
            **spec,
        }
        supervisor = Supervisor(ChildSpec(**whole), clock=SystemClock())
        with pytest.raises(WorkerFailedError) as caught:
            await supervisor.start()
        assert "No module named" in str(caught.value) or "could not be started (KeyError: 'gone')" in str(caught.value)
        await supervisor.close()

    asyncio.run(scenario())


def test_after_too_many_crashes_it_stays_down_until_reset() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        for _ in range(3):
            with pytest.raises(WorkerFailedError, match="exited with status 3"):
                await supervisor.start()
        assert (supervisor.state, supervisor.generation) == ("failed", 3)
        with pytest.raises(
            WorkerFailedError, match=r"crashed 3 times within 300 s and stays down; last: .*status 3"
        ) as caught:
            await call(supervisor, "echo")
        assert "going away before hello" in caught.value.log
        assert supervisor.generation == 3
        supervisor.reset()
        assert (supervisor.state, supervisor.last_error) == ("stopped", None)
        with pytest.raises(WorkerFailedError, match="exited with status 3"):
            await supervisor.start()
        assert supervisor.generation == 4

    supervise(scenario, fault="exit", crash_budget=3)


# hanging, cancelling, releasing


def test_a_call_past_its_deadline_is_killed_and_the_log_says_where_it_hung() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        task = await begin(supervisor, "hang_with_gil", deadline_s=0.5)
        with pytest.raises(
            WorkerTimeoutError, match=r"hang_with_gil was asked of .* did not answer within 0.5 s"
        ) as caught:
            await task
        assert any("in hang_with_gil" in line for line in caught.value.log)
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario)


def test_cancelling_the_task_stops_the_handler_and_keeps_the_child() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        task = await begin(supervisor, "work")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert supervisor.state == "ready"
        assert (await call(supervisor, "echo"))["generation"] == 1

    supervise(scenario)


def test_cancelling_a_call_that_still_waits_takes_it_out_of_the_queue() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        working = await begin(supervisor, "work")
        waiting = asyncio.create_task(call(supervisor, "abort"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert supervisor.state == "busy"
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await call(supervisor, "echo"))["generation"] == 1

    supervise(scenario)


def test_a_cancelled_call_that_does_not_stop_is_killed_after_the_grace_and_is_no_crash() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        task = await begin(supervisor, "hang_with_gil")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (supervisor.state, supervisor.last_error) == ("stopped", None)
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario, cancel_grace_s=0.2)


def test_a_release_of_a_child_that_holds_the_gil_and_ignores_sigterm_takes_less_than_two_seconds() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        took_s = []
        for _ in range(TRIES):
            task = await begin(supervisor, "hang_with_gil")
            waiting = asyncio.create_task(call(supervisor, "echo"))
            await asyncio.sleep(0)
            pid, began_s = supervisor.pid, time.monotonic()
            assert pid is not None
            outcome = await supervisor.release()
            took_s.append(time.monotonic() - began_s)
            assert outcome.took_s <= took_s[-1]
            assert (outcome.killed, outcome.abandoned_pids) == (True, ())
            assert not is_alive(pid)
            for call_task in (task, waiting):
                with pytest.raises(CallCancelled, match="released"):
                    await call_task
            assert (supervisor.state, supervisor.last_error) == ("stopped", None)
        assert statistics.median(took_s) <= 2.0

    supervise(scenario)


def test_a_release_of_an_idle_child_needs_no_kill_and_one_of_none_does_nothing() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        nothing = await supervisor.release()
        assert (nothing.killed, nothing.took_s) == (False, 0.0)
        await supervisor.start()
        first, second = await asyncio.gather(supervisor.release(), supervisor.release())
        assert not first.killed
        assert not second.killed
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario)


def test_a_release_during_the_start_cancels_who_waits_for_it() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        starting = asyncio.create_task(supervisor.start())
        await asyncio.sleep(0)
        assert supervisor.state == "starting"
        await supervisor.release(reason="a trainer needs the devices")
        with pytest.raises(CallCancelled, match="a trainer needs the devices"):
            await starting
        assert supervisor.state == "stopped"

    supervise(scenario)


def test_an_idle_child_is_released_after_its_time_and_comes_back_on_demand() -> None:
    async def scenario(supervisor: Supervisor) -> None:
        await supervisor.start()
        await leave_state(supervisor, "ready")
        await leave_state(supervisor, "stopping")
        assert (supervisor.state, supervisor.last_error) == ("stopped", None)
        assert (await call(supervisor, "echo"))["generation"] == 2

    supervise(scenario, idle_release_s=0.05)


def test_after_close_nothing_is_running_and_nothing_is_accepted() -> None:
    async def scenario(supervisor: Supervisor) -> int:
        task = await begin(supervisor, "work")
        pid = supervisor.pid
        await supervisor.close()
        for attempt in (task, call(supervisor, "echo"), supervisor.start()):
            with pytest.raises(CallCancelled, match="closing"):
                await attempt
        assert supervisor.state == "stopped"
        assert pid is not None
        return pid

    assert not is_alive(supervise(scenario))


# the agent's own death

AGENT = """
import asyncio, os, sys
from meshwright_agent.clock import SystemClock
from meshwright_agent.worker.supervisor import ChildSpec, Supervisor

async def main():
    spec = ChildSpec("faulty", "tests.fakes.faulty_child", lambda: dict(os.environ))
    supervisor = Supervisor(spec, clock=SystemClock())
    await supervisor.start()
    tell = lambda value: print(supervisor.pid, flush=True)
    if sys.argv[1] == "idle":
        tell(None)
        await asyncio.sleep(600)
    await supervisor.call(sys.argv[1], {}, deadline_s=600, on_progress=tell)

asyncio.run(main())
"""


@pytest.mark.parametrize("op", ["idle", "work", "hang_with_gil"])
def test_no_orphan_is_left_when_the_agent_is_killed_with_sigkill(op: str) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, op],
        env=build_environment(MESHWRIGHT_FAULT=""),
        stdout=subprocess.PIPE,
        text=True,
    )
    with agent:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        assert is_alive(child)
        agent.kill()
    assert wait_until(lambda: not is_alive(child))


def test_a_child_whose_agent_is_already_gone_leaves_at_once() -> None:
    with contextlib.closing(os.fdopen(os.open("/dev/null", os.O_RDWR))) as null:
        command = [
            sys.executable,
            "-m",
            "tests.fakes.faulty_child",
            f"--fd={null.fileno()}",
            "--parent=1",
            "--generation=1",
        ]
        ended = subprocess.run(command, env=build_environment(), timeout=30, check=False)
    assert ended.returncode == 0


def test_started_by_hand_it_says_that_it_is_not_for_people() -> None:
    command = [sys.executable, "-m", "tests.fakes.faulty_child"]
    ended = subprocess.run(command, env=build_environment(), capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "--fd" in ended.stderr

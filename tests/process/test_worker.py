"""The supervisor with real children: everything that `tests.fakes.faulty_child` can do to it."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents import wait_for
from tests.process.living import TRIES, is_alive, list_open_files
from tests.process.supervised import Cancelled, Child, fails, start_orphan, supervised


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    async with supervised() as child:
        yield child


def read_stdin(pid: int) -> str:
    return str(Path(f"/proc/{pid}/fd/0").readlink())


# the ordinary life


async def test_the_child_has_a_session_of_its_own_no_stdin_and_no_words_for_systemd(child: Child) -> None:
    told = await child.call("environment", names=["NOTIFY_SOCKET", "WATCHDOG_USEC", "MESHWRIGHT_FAULT"])
    assert told == {"NOTIFY_SOCKET": None, "WATCHDOG_USEC": None, "MESHWRIGHT_FAULT": ""}
    assert child.view().pid is not None
    assert os.getsid(child.view().pid) == os.getpgid(child.view().pid) == child.view().pid
    assert read_stdin(child.view().pid) == "/dev/null"


async def test_output_is_kept_and_never_blocks_the_child(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "meshwright.worker")
    await child.call("chatter", bytes=41_000, lines=0)
    await child.release()
    assert [len(line) for line in child.log_tail] == [*[4096] * 10, 40]
    await child.call("chatter", bytes=1_000_000, lines=5000)
    await child.release()
    assert len(child.log_tail) == 200
    assert child.log_tail[-1] == "line 4999"
    assert max(map(len, child.log_tail)) <= 4096
    assert "line 4999" in caplog.text


# errors of handlers


async def test_any_other_exception_is_a_failed_run_with_its_traceback_and_the_child_lives_on(child: Child) -> None:
    with fails("run_failed", "raise_other raised ZeroDivisionError: a bug in the handler") as caught:
        await child.call("raise_other")
    assert any("faulty_child.py" in line for line in caught.value.log)
    with fails("run_failed", "SystemExit: 4"):
        await child.call("exit_politely")
    with fails("run_failed", "JSON cannot say"):
        await child.call("answer_nan")
    assert (await child.call("echo"))["generation"] == 1


# death


@pytest.mark.parametrize(("op", "ending"), [
    ("abort", "killed by SIGABRT"), ("leave", "exited with status 3"),
])  # fmt: skip
async def test_a_crash_names_how_the_child_ended_and_the_next_call_gets_a_new_one(
    child: Child, op: str, ending: str
) -> None:
    with fails("worker_failed", rf"{op} was asked of the faulty worker \(generation 1, pid .*{ending}") as caught:
        await child.call(op, status=3)
    if op == "abort":
        assert "last words before the abort" in caught.value.log
        assert any("faulty_child.py" in line for line in caught.value.log)  # faulthandler's
    assert child.view().last_error == caught.value.detail
    assert (await child.call("echo"))["generation"] == 2


async def test_what_the_child_started_dies_with_it() -> None:
    async with supervised() as child:
        grandchild: int = (await child.call("start_grandchild"))["pid"]
        assert is_alive(grandchild)
        assert not any("socket:" in name for name in list_open_files(grandchild))
        await child.release()
    wait_for(lambda: not is_alive(grandchild), limit_s=10)


async def test_a_fork_that_holds_the_socket_does_not_hide_the_childs_death() -> None:
    async with supervised() as child:
        with fails("worker_failed", "it ended and exited with status 3") as caught:
            await child.call("fork_and_leave")
        fork = next(int(line.split()[1]) for line in caught.value.log if line.startswith("forked"))
    wait_for(lambda: not is_alive(fork), limit_s=10)


@pytest.mark.parametrize("how", ["no JSON", "too deep", "a line without end", "another call's reply"])
async def test_a_bad_frame_is_a_crash_of_that_child_and_never_of_the_agent(child: Child, how: str) -> None:
    with fails("worker_failed", "broke the protocol"):
        await child.call("break_protocol", how=how)
    assert (await child.call("echo"))["generation"] == 2


async def test_a_frame_beyond_asyncios_line_limit_passes_and_one_beyond_ours_fails_the_call_only(child: Child) -> None:
    assert len((await child.call("answer_huge", bytes=5_000_000))["text"]) == 5_000_000
    assert len((await child.call("echo", text="x" * 3_000_000))["arguments"]["text"]) == 3_000_000
    with fails("run_failed", "the limit is"):
        await child.call("answer_huge", bytes=65 * 2**20)
    assert (await child.call("echo"))["generation"] == 1


async def test_a_child_whose_reader_fails_ends(child: Child) -> None:
    await child.call("starve_reader")
    with fails("worker_failed", "closed its socket and exited with status 0") as caught:
        await child.call("echo", deadline_s=5)
    assert "the agent's socket broke: MemoryError:" in caught.value.log


async def test_a_child_that_closes_its_socket_and_lives_on_is_killed(child: Child) -> None:
    with fails("worker_failed", "closed its socket and was killed by SIGKILL"):
        await child.call("close_socket")


# starting


@pytest.mark.parametrize(("fault", "match"), [
    ("raise", "it cannot work: RuntimeError: no devices were found"),
    ("exit", "exited with status 3"),
    ("hang", "was not ready within 2 s"),
    ("wrong protocol", "protocol, kind, generation, pid .3, 'faulty', 1,"),
    ("progress first", "broke the protocol: .* that no call waits for"),
])  # fmt: skip
async def test_a_child_that_does_not_say_hello_as_it_should_fails_the_start(fault: str, match: str) -> None:
    async with supervised(fault=fault, start_timeout_s=2.0, backoff_initial_s=30) as child:
        with fails("worker_failed", match) as caught:
            await child.start()
        if fault == "raise":
            assert any("RuntimeError: no devices were found" in line for line in caught.value.log)
        if fault == "exit":
            assert "going away before hello" in caught.value.log
        if fault == "hang":
            assert any("in prepare" in line for line in caught.value.log)
        assert child.view().state == "backoff"
        assert child.view().pid is None


@pytest.mark.parametrize(("spec", "match"), [
    ({"module": "tests.fakes.no_such_module"}, "exited with status 1"),
    ({"environment": lambda: {}["gone"]}, "could not be started .KeyError: 'gone'"),
])  # fmt: skip
async def test_a_child_that_cannot_even_be_spawned_fails_the_start(spec: dict[str, Any], match: str) -> None:
    async with supervised(**spec) as child:
        with fails("worker_failed", match) as caught:
            await child.start()
        assert "module" not in spec or any("No module named" in line for line in caught.value.log)


async def test_after_too_many_crashes_it_stays_down_until_reset() -> None:
    async with supervised(fault="exit", crash_budget=3) as child:
        for _ in range(3):
            with fails("worker_failed", "exited with status 3"):
                await child.start()
        assert (child.view().state, child.view().generation) == ("failed", 3)
        with fails("worker_failed", r"crashed 3 times within 300 s and stays down; last: .*status 3") as caught:
            await child.call("echo")
        assert "going away before hello" in caught.value.log
        assert child.view().generation == 3
        child.reset()
        assert (child.view().state, child.view().last_error) == ("stopped", None)
        with fails("worker_failed", "exited with status 3"):
            await child.start()
        assert child.view().generation == 4


# hanging, cancelling, releasing


async def test_a_call_past_its_deadline_is_killed_and_the_log_says_where_it_hung(child: Child) -> None:
    task = await child.begin("hang_with_gil", deadline_s=0.5)
    with fails("worker_failed", r"hang_with_gil was asked of .* did not answer within 0.5 s") as caught:
        await task
    assert any("in hang_with_gil" in line for line in caught.value.log)
    assert (await child.call("echo"))["generation"] == 2


async def test_cancelling_a_call_that_still_waits_takes_it_out_of_the_queue(child: Child) -> None:
    working = await child.begin("work")
    waiting = asyncio.create_task(child.call("abort"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert child.view().state == "busy"
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await child.call("echo"))["generation"] == 1


async def test_a_cancelled_call_that_does_not_stop_is_killed_after_the_grace_and_is_no_crash() -> None:
    async with supervised(cancel_grace_s=0.2) as child:
        task = await child.begin("hang_with_gil")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (child.view().state, child.view().last_error) == ("stopped", None)
        assert (await child.call("echo"))["generation"] == 2


async def test_a_release_of_a_child_that_holds_the_gil_and_ignores_sigterm_takes_less_than_two_seconds(
    child: Child,
) -> None:
    duration_s = []
    for _ in range(TRIES):
        task = await child.begin("hang_with_gil")
        waiting = asyncio.create_task(child.call("echo"))
        await asyncio.sleep(0)
        pid, began_s = child.view().pid, time.monotonic()
        assert pid is not None
        outcome = await child.release()
        duration_s.append(time.monotonic() - began_s)
        assert (outcome.killed, outcome.abandoned_pids) == (True, ())
        assert not is_alive(pid)
        for call_task in (task, waiting):
            with pytest.raises(Cancelled, match="released"):
                await call_task
        assert (child.view().state, child.view().last_error) == ("stopped", None)
    assert statistics.median(duration_s) <= 2.0


async def test_after_close_nothing_is_running_and_nothing_is_accepted(child: Child) -> None:
    task = await child.begin("work")
    pid = child.view().pid
    await child.close()
    for attempt in (task, child.call("echo"), child.start()):
        with pytest.raises(Cancelled, match="closing"):
            await attempt
    assert child.view().state == "stopped"
    assert pid is not None
    assert not is_alive(pid)


# the agent's own death


def test_a_child_whose_agent_is_already_gone_leaves_at_once() -> None:
    assert start_orphan().returncode == 0

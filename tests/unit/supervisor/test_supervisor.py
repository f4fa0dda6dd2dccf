"""The supervisor with children that have no process: hangs in the kernel, late words, crossing messages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from meshwright.errors import UnavailableError
from meshwright_agent.supervisor.process import Child, ChildSpec, Ending
from meshwright_agent.supervisor.protocol import CallFrame, CancelFrame, Hello, ProgressFrame, ResultFrame, Stopped
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor
from tests.fakes.children import FakeChild, FakeSpawn
from tests.fakes.codes import has_code
from tests.fakes.stored import ManualClock

UNKILLABLE = Ending(status=None, killed=True)


class World:
    """A supervisor, its children, its clock and its changes."""

    def __init__(self, spawn: FakeSpawn, **spec: Any) -> None:
        self.clock, self.spawn = ManualClock(), spawn
        self.changes: list[str] = []
        self.supervisor = Supervisor(
            ChildSpec("fake", "no.module", dict, **{"backoff_initial_s": 0.0, **spec}),
            clock=self.clock,
            build_child=spawn,  # type: ignore[arg-type]
        )
        self.supervisor.on_change = lambda: self.changes.append(self.supervisor.state)

    @property
    def child(self) -> FakeChild:
        return self.spawn.children[-1]

    async def begin(self, op: str = "work", **options: Any) -> asyncio.Task[Any]:
        """Starts a call and waits until the child has it."""
        task = asyncio.create_task(self.supervisor.call(op, {}, **{"deadline_s": 30.0, **options}))
        await self.until(lambda: any(isinstance(f, CallFrame) and f.op == op for f in self._frames()))
        return task

    async def start(self) -> None:
        """Brings the next child to ready by a call."""
        task = await self.begin(f"start {len(self.spawn.children)}")
        self.reply()
        await task

    def call(self) -> Coroutine[Any, Any, Any]:
        return self.supervisor.call("late", {}, deadline_s=30.0)

    def _frames(self) -> list[Any]:
        return [frame for child in self.spawn.children for frame in child.sent]

    async def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 5.0
        for _ in iter(lambda: not condition() and time.monotonic() < end, False):
            await asyncio.sleep(0)  # lets the supervisor's own tasks run
        assert condition()

    def reply(self, result: dict[str, Any] | None = None) -> None:
        call = next(frame for frame in reversed(self.child.sent) if isinstance(frame, CallFrame))
        self.child.say(ResultFrame(call.id, result or {}))


@contextlib.asynccontextmanager
async def living(*, spawn: FakeSpawn | None = None, **spec: Any) -> AsyncIterator[World]:
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    world = World(spawn or FakeSpawn(), **spec)
    try:
        yield world
    finally:
        await world.supervisor.close()
    assert not failed


def test_the_fake_child_has_the_members_of_the_real_one() -> None:
    for name in (name for name in vars(Child) if not name.startswith("_")):
        real, fake = inspect.getattr_static(Child, name), inspect.getattr_static(FakeChild, name)
        assert type(real) is type(fake), name
        if inspect.isfunction(real):
            assert inspect.signature(real) == inspect.signature(fake), name


async def test_a_process_that_even_sigkill_does_not_end_is_abandoned_and_named() -> None:
    async with living(spawn=FakeSpawn(ending=UNKILLABLE)) as world:
        task = await world.begin()
        outcome = await world.supervisor.release()
        assert (outcome.killed, outcome.abandoned_pids) == (True, (1001,))
        with pytest.raises(CallCancelled, match="released"):
            await task
        assert "backoff" in world.changes
        assert world.supervisor.last_error is not None
        assert "pid 1001" in world.supervisor.last_error
        assert "could not be killed" in world.supervisor.last_error
        assert (await world.supervisor.release()).abandoned_pids == (1001,)

        world.spawn.ending = Ending(status=0, killed=False)  # the driver is well again
        await world.start()
        assert world.supervisor.generation == 2
        assert world.supervisor.abandoned_pids == (1001,)
        world.spawn.children[0].reaped.set()
        await world.until(lambda: not world.supervisor.abandoned_pids)


async def test_none_that_takes_devices_is_started_beside_one_that_may_hold_them() -> None:
    async with living(spawn=FakeSpawn(ending=UNKILLABLE), has_devices=True, cancel_grace_s=0.05) as world:
        task = await world.begin()
        waiting = asyncio.create_task(world.supervisor.call("next", {}, deadline_s=30.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        beside = Supervisor(world.supervisor.spec, clock=world.clock, build_child=world.spawn)  # type: ignore[arg-type]
        beside.neighbor = world.supervisor
        for late in (waiting, world.call(), beside.call("other", {}, deadline_s=30.0)):
            with pytest.raises(UnavailableError, match=r"process 1001\) does not end", check=has_code("worker_failed")):
                await late
        assert (world.supervisor.generation, beside.generation) == (1, 0)
        world.spawn.ending = Ending(status=0, killed=False)
        for neighbor in (None, world.supervisor):  # the second call has a child, that was started before
            beside.neighbor = neighbor
            call = asyncio.create_task(beside.call("own", {}, deadline_s=30.0))
            await world.until(lambda: beside.state == "busy")
            world.reply({"own": 1})
            assert (await call).result == {"own": 1}
        await beside.close()
        world.spawn.children[0].reaped.set()
        await world.until(lambda: not world.supervisor.abandoned_pids)
        await world.start()
        assert world.supervisor.generation == 2


async def test_abandoned_processes_use_up_the_crash_budget() -> None:
    async with living(spawn=FakeSpawn(ending=UNKILLABLE), crash_budget=2) as world:
        for _ in range(2):
            await world.start()
            await world.supervisor.release()
        assert (world.supervisor.state, world.supervisor.abandoned_pids) == ("failed", (1001, 1002))
        with pytest.raises(UnavailableError, match="could not be killed", check=has_code("worker_failed")):
            await world.call()


async def test_crashes_that_the_window_has_left_behind_do_not_count() -> None:
    async with living(crash_budget=3, crash_window_s=12.0) as world:
        for _ in range(6):
            await world.start()
            world.child.lose("died")
            await world.until(lambda: world.supervisor.state != "stopping")
            assert world.supervisor.state != "failed"
            world.clock.advance(6.0)


async def test_a_crash_says_when_to_ask_again() -> None:
    async with living(spawn=FakeSpawn(ending=Ending(-9, killed=True)), backoff_initial_s=7.0) as world:
        task = await world.begin()
        world.clock.advance(1.25)
        world.child.lose("closed its socket")
        with pytest.raises(UnavailableError, check=has_code("worker_failed")) as caught:
            await task
        assert caught.value.retry_after_s == 7.0
        assert caught.value.log == ("log of generation 1",)
        assert caught.value.detail == (
            "work was asked of the fake worker (generation 1, pid 1001); "
            "after 1.2 s it closed its socket and was killed by SIGKILL"
        )
        assert caught.value.hint


async def test_a_cancel_is_sent_once_and_a_second_cancellation_does_not_wait() -> None:
    async with living() as world:
        task = await world.begin()
        task.cancel()
        await world.until(lambda: isinstance(world.child.sent[-1], CancelFrame))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.supervisor.state == "busy"  # the child has not stopped yet, and nobody else may have it
        assert [type(frame) for frame in world.child.sent] == [CallFrame, CancelFrame]
        world.child.say(Stopped(1))
        await world.until(lambda: world.supervisor.state == "ready")


@pytest.mark.parametrize("frame", [
    Hello(2, "fake", 1001, 1), ProgressFrame(2, {}), ResultFrame(2, {}), Stopped(3),
    CancelFrame(1),
], ids=lambda frame: f"{frame}")  # fmt: skip
async def test_a_frame_out_of_turn_is_the_end_of_the_child(frame: Any) -> None:
    async with living() as world:
        task = await world.begin()
        world.child.say(frame)
        with pytest.raises(UnavailableError, match="broke the protocol", check=has_code("worker_failed")):
            await task


async def test_a_crash_stands_until_another_child_is_ready() -> None:
    async with living() as world:
        supervisor = world.supervisor
        await world.start()
        await supervisor.release()
        assert not supervisor.has_crashed  # its end was asked for
        task = await world.begin()
        world.child.lose("closed its socket")
        with pytest.raises(UnavailableError, check=has_code("worker_failed")):
            await task
        await world.until(lambda: supervisor.state == "stopped")
        await supervisor.release()
        assert supervisor.has_crashed  # nothing was there to be released
        world.spawn.says_hello = False
        waiting = asyncio.create_task(world.call())
        await world.until(lambda: supervisor.state == "starting")
        await supervisor.release()
        with pytest.raises(CallCancelled):
            await waiting
        assert (supervisor.state, supervisor.has_crashed) == ("stopped", True)  # that one never was ready
        world.spawn.says_hello = True
        await world.start()
        assert not supervisor.has_crashed
        await supervisor.release()
        assert not supervisor.has_crashed


@pytest.mark.parametrize("ticks", range(1, 6))
async def test_the_end_of_an_idle_child_is_seen_after_a_call_that_was_cancelled_at_its_start(ticks: int) -> None:
    async with living(cancel_grace_s=0.05) as world:
        await world.start()
        waiting = asyncio.create_task(world.call())
        for _ in range(ticks):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 5)
        world.child.lose("died")
        await world.until(lambda: world.supervisor.state != "ready")


async def test_a_start_that_fails_before_its_process_is_a_crash_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    supervisor = Supervisor(ChildSpec("fake", "no.module", dict), clock=ManualClock())
    monkeypatch.setattr(asyncio, "open_unix_connection", fail)
    with pytest.raises(UnavailableError, match=r"could not be started \(OSError", check=has_code("worker_failed")):
        await supervisor.call("work", {}, deadline_s=30.0)
    assert (supervisor.state, supervisor.pid) == ("backoff", None)
    await supervisor.close()


async def test_an_answer_that_comes_during_the_stop_is_too_late() -> None:
    async with living() as world:
        task = await world.begin()
        releasing = asyncio.create_task(world.supervisor.release())
        await world.until(lambda: world.supervisor.state == "stopping")
        world.reply()
        await releasing
        with pytest.raises(CallCancelled, match="released"):
            await task


async def test_a_call_in_a_pause_that_a_close_cut_short_is_given_up() -> None:
    async with living(backoff_initial_s=600.0) as world:
        await world.start()
        world.child.lose("died")
        await world.until(lambda: world.supervisor.state == "backoff")
        await world.supervisor.close()
        with pytest.raises(CallCancelled, match="closing"):
            await asyncio.wait_for(world.call(), 5.0)


async def test_a_call_in_a_pause_waits_for_its_end_and_a_release_in_it_gives_the_call_up() -> None:
    async with living(backoff_initial_s=600.0) as world:
        await world.start()
        world.child.lose("died")
        await world.until(lambda: world.supervisor.state == "backoff")
        waiting = asyncio.create_task(world.call())
        await asyncio.sleep(0)
        assert not (await world.supervisor.release()).killed
        with pytest.raises(CallCancelled, match="released"):
            await waiting
        assert world.supervisor.state == "backoff"
        waiting = asyncio.create_task(world.call())
        await asyncio.sleep(0)
        world.supervisor.reset()
        await world.until(lambda: world.supervisor.state == "busy")
        world.reply()
        await waiting
        assert (world.supervisor.state, world.supervisor.generation) == ("ready", 2)

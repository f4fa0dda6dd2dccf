"""When NVML's events are listened to and when not: a supervisor that is told what to answer, a clock set by hand."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import pytest

from meshwright.errors import RunFailedError
from meshwright_agent.facts.health import GpuHealth, KernelLog, Xid
from meshwright_agent.facts.model import CpuFacts, GpuFacts, HostFacts, MachineFacts
from meshwright_agent.health.ears import AFTER_RELEASE_S, RETRY_S, WAIT_S, XidEars
from meshwright_agent.health.memory import Fault
from meshwright_agent.settings import Settings
from tests.fakes.stored import EPOCH, ManualClock
from tests.fakes.supervised import FakeSupervisor, Reply, answering

UNREADABLE = KernelLog(error="/dev/kmsg: Operation not permitted")
FACTS = HostFacts(MachineFacts("a"), CpuFacts(), gpus=(GpuFacts(0, uuid="GPU-0"),), kernel_log=UNREADABLE)
QUIET: Reply = {"cards": ["0000:1b:00.0"], "xids": []}
EVENT = Xid(79, "0000:1b:00.0", 0)
LOST = Fault("device:GPU-0", "xid_79", "unhealthy", "it fell off the bus", "reboot", EPOCH)


class Scene:
    """Ears, and everything around them."""

    def __init__(self, *answers: Reply, facts: HostFacts | None = FACTS, **settings: Any) -> None:
        self.listener: FakeSupervisor = answering(*(answers or (QUIET,)))
        self.clock = ManualClock()
        self.faults: list[Fault] = []
        self.heard: list[Xid] = []
        self.ears = XidEars(
            self.listener,  # type: ignore[arg-type]
            settings=Settings(**settings),
            clock=self.clock,
            tell=self.heard.extend,
            list_faults=lambda: self.faults,
        )
        if facts is not None:
            self.ears.note_look(facts)

    def step(self) -> bool:
        return asyncio.run(self.ears.step())

    @property
    def asked(self) -> list[str]:
        return [op for op, _, _ in self.listener.calls]


def test_where_the_log_cannot_be_read_the_cards_are_opened_once_and_waited_for_again_and_again() -> None:
    scene = Scene(probe_timeout_s=4.0)
    assert (scene.step(), scene.step()) == (True, True)
    assert scene.asked == ["listen", "wait", "wait"]
    assert [deadline_s for _, _, deadline_s in scene.listener.calls] == [4.0, WAIT_S + 4.0, WAIT_S + 4.0]
    assert scene.ears.hearing.is_listening


def test_a_listener_is_starting_until_it_has_opened_the_cards_or_failed() -> None:
    scene = Scene(RunFailedError("NVML does not start"), QUIET)
    assert (scene.ears.hearing.is_starting, scene.ears.hearing.is_listening) == (True, False)
    scene.step()
    assert not scene.ears.hearing.is_starting
    scene.clock.advance(RETRY_S)
    assert not scene.ears.hearing.is_starting  # what was wrong may be so still
    scene.step()
    assert (scene.ears.hearing.is_starting, scene.ears.hearing.is_listening) == (False, True)


def test_what_comes_is_told() -> None:
    scene = Scene(QUIET, {"xids": [asdict(EVENT)]})
    scene.step()
    assert scene.heard == [EVENT]


@pytest.mark.parametrize(
    ("choice", "log", "is_wanted"),
    [
        ("auto", UNREADABLE, True),
        ("auto", KernelLog(), False),
        ("auto", None, True),
        ("always", KernelLog(), True),
        ("never", UNREADABLE, False),
    ],
)
def test_the_setting_and_the_log_decide(choice: str, log: KernelLog | None, is_wanted: bool) -> None:
    scene = Scene(facts=replace(FACTS, kernel_log=log), xid_events=choice)
    assert scene.step() is is_wanted
    assert scene.ears.hearing.is_wanted is is_wanted
    assert bool(scene.asked) is is_wanted


@pytest.mark.parametrize("facts", [None, replace(FACTS, gpus=())])
def test_before_a_look_and_without_a_card_nothing_is_opened(facts: HostFacts | None) -> None:
    scene = Scene(facts=facts, xid_events="always")
    assert not scene.step()
    assert scene.asked == []


def test_a_log_that_can_be_read_again_ends_the_listening() -> None:
    scene = Scene()
    scene.step()
    scene.ears.note_look(replace(FACTS, kernel_log=KernelLog()))
    assert not scene.step()
    assert len(scene.listener.releases) == 1


def test_an_xid_that_asks_for_a_reset_closes_the_cards_until_somebody_has_dealt_with_it() -> None:
    scene = Scene()
    scene.step()
    scene.faults = [LOST]
    assert not scene.step()
    assert scene.listener.state == "stopped"
    assert "waits for a reset" in scene.ears.hearing.reason
    scene.faults = []
    assert scene.step()
    assert scene.asked == ["listen", "wait", "listen", "wait"]


@pytest.mark.parametrize("fault", [replace(LOST, state="degraded"), replace(LOST, code="sxid_20034")])
def test_what_asks_for_no_reset_of_a_card_does_not_close_them(fault: Fault) -> None:
    scene = Scene()
    scene.faults = [fault]
    assert scene.step()


@pytest.mark.parametrize("health", [GpuHealth(recovery="reset the GPU"), GpuHealth(error="GPU is lost")])
def test_a_card_whose_driver_asks_for_a_reset_is_not_held_open(health: GpuHealth) -> None:
    scene = Scene(facts=replace(FACTS, gpus=(replace(FACTS.gpus[0], health=health),)))
    assert not scene.step()
    assert "device:GPU-0 waits for a reset" in scene.ears.hearing.reason


def test_a_release_leaves_the_cards_closed_for_some_minutes() -> None:
    scene = Scene()
    scene.step()
    asyncio.run(scene.ears.pause())
    assert scene.listener.state == "stopped"
    scene.clock.advance(AFTER_RELEASE_S - 1)
    assert not scene.step()
    assert "were released" in scene.ears.hearing.reason
    scene.clock.advance(1)
    assert scene.step()


def test_after_an_error_the_cards_are_closed_and_tried_again_later() -> None:
    scene = Scene(QUIET, RunFailedError("wait raised NVMLError_GpuIsLost: GPU is lost"), QUIET)
    assert not scene.step()
    assert scene.listener.state == "stopped"
    assert not scene.step()
    assert "GPU is lost" in scene.ears.hearing.reason
    scene.clock.advance(RETRY_S)
    assert scene.step()
    assert scene.ears.hearing.is_listening


def test_a_listener_that_hangs_in_the_driver_gets_no_brother() -> None:
    scene = Scene()
    scene.listener.abandoned_pids = (4711,)
    assert not scene.step()
    assert scene.asked == []
    assert "hangs in the driver" in scene.ears.hearing.reason


def test_a_listener_that_has_crashed_too_often_is_tried_again_after_the_pause() -> None:
    scene = Scene()
    scene.listener.state = "failed"
    assert scene.step()
    assert scene.listener.resets == 1


def test_a_child_that_went_by_itself_is_not_taken_for_one_that_listens() -> None:
    scene = Scene()
    scene.step()
    scene.listener.state = "stopped"
    assert not scene.ears.hearing.is_listening

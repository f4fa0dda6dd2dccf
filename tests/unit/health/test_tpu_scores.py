"""What libtpu's scores mean, and how they stand on the board while nobody looks, over restarts and boots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.wire.devices import Worker
from meshwright.wire.health import Component, State
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.facts.tpu_scores import Score, Scores, TpuScores
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.history import History
from meshwright_agent.health.tpu_scores import ICI, THROTTLE
from meshwright_agent.health.verdicts import Verdicts
from meshwright_agent.view import build_devices
from tests.fakes.machines import plant_machine
from tests.fakes.stored import ManualClock

CHIPS = 8
STALE_AFTER_S = 120.0
OLD = STALE_AFTER_S + 1


def link(*values: int) -> TpuScores:
    return TpuScores(links=Scores(tuple(Score(f"tray1.chip{n}.ici0.int", value) for n, value in enumerate(values))))


def throttle(*values: int) -> TpuScores:
    return TpuScores(throttles=Scores(tuple(Score(str(n), value) for n, value in enumerate(values))))


class Scene:
    """A board, and verdicts that are told what libtpu says; `look` is each look at the host."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start(None)

    def start(self, dump: str | None) -> None:
        self.history = History(clock=self.clock, keep=100, keep_days=1)
        self.history.memory.load(dump)
        self.board = HealthBoard(
            stale_after_s=STALE_AFTER_S, on_change=self.history.note_change, memory=self.history.memory
        )
        self.verdicts = Verdicts(self.board, self.history)
        self.verdicts.recall(self.clock.now())

    def restart(self) -> None:
        self.start(self.history.memory.dump())

    def ask(self, scores: TpuScores) -> None:
        self.verdicts.note_scores(scores, chips=CHIPS, at=self.clock.now())

    def look(self, *, after_s: float = 0, chips: int = CHIPS) -> None:
        self.clock.advance(after_s)
        self.verdicts.report_scores(chips=chips, at=self.clock.now())

    def state(self, name: str = ICI) -> State:
        return self.component(name).state

    def component(self, name: str = ICI) -> Component:
        view = self.board.view(self.clock.now())
        return next(one for one in view.components if one.name == name)

    def events(self) -> list[tuple[str, str]]:
        return [(event.kind, event.state) for event in self.history._waiting if event.component == ICI]


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ---- links ----------------------------------------------------------------------------------------------------------


def test_links_that_score_0_are_healthy_as_long_as_that_was_lately_and_its_age_is_the_true_one(scene: Scene) -> None:
    asked = scene.clock.now()
    scene.ask(link(0, 0))
    assert (scene.state(), scene.component().reason) == ("healthy", "all 2 ICI links scored 0 of 10, healthy")
    scene.look(after_s=STALE_AFTER_S)
    assert (scene.state(), scene.component().age_s) == ("healthy", STALE_AFTER_S)
    scene.look(after_s=1)
    old = scene.component()
    assert (old.state, old.age_s) == ("initializing", 0)
    assert f"2 ICI links scored 0 of 10, healthy at {asked:%Y-%m-%d %H:%M:%S} UTC; nobody looks now" in old.reason
    assert "MESHWRIGHT_HOLD=always" in old.action


@pytest.mark.parametrize("value", [1, 5])
def test_a_transient_problem_is_told_while_it_is_seen(scene: Scene, value: int) -> None:
    scene.ask(link(0, value, 0))
    found = scene.component()
    assert (found.state, found.permanence) == ("degraded", "transient")
    assert found.reason == f"ICI link tray1.chip1.ici0.int scores {value} of 10: a transient problem"
    assert "bench" in found.action
    scene.look(after_s=OLD)
    assert (scene.state(), "2 of 3 ICI links scored 0" in scene.component().reason) == ("initializing", True)


@pytest.mark.parametrize(("value", "state"), [(6, "degraded"), (9, "degraded"), (10, "unhealthy")])
def test_a_persistent_problem_stands_in_the_same_words_until_its_link_is_seen_well(
    scene: Scene, value: int, state: State
) -> None:
    scene.ask(link(0, value, 0))
    first = scene.component()
    assert (first.state, first.permanence) == (state, "permanent")
    assert first.reason.startswith(f"ICI link tray1.chip1.ici0.int scored {value} of 10: ")
    assert first.action
    for again in (link(0, value, 0), link(0), TpuScores(), TpuScores(links=Scores(unavailable="no more"))):
        scene.look(after_s=OLD)
        assert (scene.state(), scene.component().reason) == (state, first.reason)
        scene.ask(again)
        assert (scene.state(), scene.component().reason.startswith(first.reason)) == (state, True)
    scene.ask(link(0, 0, 0))
    assert scene.state() == "healthy"
    assert scene.events() == [("state", state), ("fault", state), ("state", "healthy")]


def test_each_link_stands_and_ends_by_itself(scene: Scene) -> None:
    scene.ask(link(10, 7, 6))
    reason = scene.component().reason
    assert [f"chip{n}.ici0.int scored {value} of 10" in reason for n, value in enumerate((10, 7, 6))] == [True] * 3
    scene.ask(link(3, 7, 8))
    found = scene.component()
    assert (found.state, "chip0.ici0.int scores 3 of 10: a transient" in found.reason) == ("degraded", True)
    assert ("scored 10" in found.reason, "scored 7" in found.reason, "scored 8" in found.reason) == (False, True, True)


def test_links_that_libtpu_does_not_list_any_more_are_no_green_light(scene: Scene) -> None:
    scene.ask(link(0, 0, 0))
    scene.ask(link(0, 0))
    found = scene.component()
    assert (found.state, found.reason) == ("degraded", "libtpu tells of 2 ICI links, and told of 1 more before")
    scene.ask(link(0, 0, 0))
    assert scene.state() == "healthy"


def test_a_line_that_nobody_can_read_is_no_green_light_for_its_metric(scene: Scene) -> None:
    scene.ask(TpuScores(links=Scores((Score("a", 0),), ("tray1 → fine",)), throttles=Scores((Score("0", 0),))))
    found = scene.component()
    assert (found.state, "'tray1 → fine'" in found.reason, bool(found.action)) == ("degraded", True, True)
    assert scene.state(THROTTLE) == "healthy"
    scene.ask(TpuScores(links=Scores((Score("a", 0),)), throttles=Scores(unread=("?",))))
    assert (scene.state(), scene.state(THROTTLE)) == ("healthy", "degraded")


def test_where_nobody_told_that_is_said_and_a_lone_chip_needs_no_link(scene: Scene) -> None:
    scene.look()
    assert (scene.state(), "nobody has asked yet" in scene.component().reason) == ("initializing", True)
    scene.ask(TpuScores())
    assert (scene.state(), scene.component().reason) == ("initializing", "libtpu tells of none")
    scene.ask(TpuScores(links=Scores(unavailable="this libtpu has no SDK")))
    assert (scene.state(), scene.component().reason) == ("initializing", "this libtpu has no SDK")
    scene.look(chips=1)
    assert ICI not in scene.board.names()
    assert THROTTLE not in scene.board.names()


def test_links_that_nobody_may_ask_hold_up_nothing(scene: Scene) -> None:
    scene.board.report("driver", "healthy", "", at=scene.clock.now())
    scene.board.report("worker", "healthy", "", at=scene.clock.now())
    scene.look()
    assert scene.board.view(scene.clock.now()).state == "healthy"


# ---- throttling -----------------------------------------------------------------------------------------------------


def test_throttling_is_told_by_device_while_it_is_seen_and_ends_when_nobody_looks(scene: Scene) -> None:
    scene.ask(throttle(0, 3, 10))
    held = scene.component(THROTTLE)
    assert (held.state, held.permanence) == ("degraded", "transient")
    assert held.reason == "throttled: device 1 by 30 %; device 2 by 100 %, as libtpu counts devices"
    scene.look(after_s=OLD)
    assert scene.state(THROTTLE) == "initializing"
    assert scene.component(THROTTLE).reason.startswith("2 of 3 TPU devices were throttled at ")
    scene.ask(throttle(0, 0))
    assert (scene.state(THROTTLE), scene.component(THROTTLE).reason) == (
        "healthy",
        "none of 2 TPU devices was throttled",
    )


def test_throttling_goes_on_being_told_where_links_are_not_and_is_kept_where_it_is_told_no_more(scene: Scene) -> None:
    no_links = Scores(unavailable="libtpu does not tell ici_link_health")
    scene.ask(TpuScores(no_links, throttle(0).throttles))
    scene.look(after_s=OLD)
    scene.ask(TpuScores(no_links, throttle(4).throttles))
    assert scene.state(THROTTLE) == "degraded"
    scene.ask(TpuScores(no_links, Scores(unavailable="no more")))
    scene.look(after_s=OLD)
    assert (scene.state(THROTTLE), scene.component(THROTTLE).reason.endswith("; no more")) == ("initializing", True)


# ---- restarts, boots, an operator's word ----------------------------------------------------------------------------


def test_a_bad_link_outlives_restarts_without_another_event_and_ends_with_a_good_look(scene: Scene) -> None:
    scene.ask(link(0, 10))
    scene.restart()
    scene.look(after_s=3600)
    assert (scene.state(), scene.events()) == ("unhealthy", [])
    assert scene.component().reason.startswith("ICI link tray1.chip1.ici0.int scored 10 of 10: not usable (at ")
    scene.ask(link(0, 0))
    assert (scene.state(), scene.events()) == ("healthy", [("state", "healthy")])


def test_what_was_well_before_a_restart_is_not_called_well_by_the_next_agent(scene: Scene) -> None:
    scene.ask(link(0, 0))
    scene.restart()
    scene.look()
    assert scene.state() == "initializing"


def test_an_operators_word_ends_it_until_it_is_seen_again(scene: Scene) -> None:
    scene.ask(link(0, 10))
    scene.verdicts.acknowledge(ICI, scene.clock.now(), facts=None, devices=None)
    assert scene.state() == "healthy"
    scene.ask(link(0, 10))
    assert scene.state() == "unhealthy"


def test_a_boot_ends_it_and_a_host_without_tpus_has_neither(scene: Scene, tmp_path: Path) -> None:
    facts = plant_machine("tpu-v5e-8", tmp_path).read()

    def see(facts: HostFacts) -> None:
        now = scene.clock.now()
        devices = build_devices(facts, now, None, Worker(state="stopped", generation=0, since=now), now=now)
        scene.verdicts.report_facts(facts, None, devices, now)
        scene.look(chips=len(facts.tpus))

    see(facts)
    scene.ask(link(10))
    see(facts)
    assert scene.state() == "unhealthy"
    scene.look(after_s=OLD)
    see(replace(facts, machine=replace(facts.machine, boot_id="another")))
    assert scene.state() == "initializing"
    scene.restart()
    see(replace(facts, tpus=(), machine=replace(facts.machine, boot_id="another")))
    assert not {ICI, THROTTLE} & set(scene.board.names())


def test_time_alone_makes_no_event_of_a_bad_link(scene: Scene) -> None:
    scene.ask(link(10))
    before = scene.events()
    for _ in range(5):
        scene.look(after_s=OLD)
    assert scene.events() == before == [("state", "unhealthy"), ("fault", "unhealthy")]

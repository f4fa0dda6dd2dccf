"""What libtpu's scores mean, and how they stand on the board while nobody looks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from meshwright.wire.health import Component, Permanence, State
from meshwright_agent.facts.tpu_scores import Score, TpuScores
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.diagnosis import Finding
from meshwright_agent.health.history import History
from meshwright_agent.health.tpu_scores import ICI, THROTTLE, judge_scores
from meshwright_agent.health.verdicts import Verdicts
from tests.fakes.machines import NOW
from tests.fakes.stored import ManualClock

CHIPS = 8
STALE_AFTER_S = 120.0


def link(*values: int) -> TpuScores:
    return TpuScores(links=tuple(Score(f"tray1.chip{n}.ici0.int", value) for n, value in enumerate(values)))


def throttle(*values: int) -> TpuScores:
    return TpuScores(throttles=tuple(Score(str(n), value) for n, value in enumerate(values)))


def judge(name: str, scores: TpuScores | None, *, is_fresh: bool = True, chips: int = CHIPS) -> Finding | None:
    return judge_scores(scores, None if scores is None else NOW, chips=chips, is_fresh=is_fresh).get(name)


# ---- links ----------------------------------------------------------------------------------------------------------


def test_links_that_score_0_are_healthy_as_long_as_that_was_lately() -> None:
    assert judge(ICI, link(0, 0)) == Finding("healthy", "all 2 ICI links score 0 of 10: healthy")
    old = judge(ICI, link(0, 0), is_fresh=False)
    assert old is not None
    assert (old.state, old.reason) == (
        "initializing",
        f"all 2 ICI links scored 0 at {NOW:%Y-%m-%d %H:%M:%S} UTC; nobody looks now",
    )
    assert "MESHWRIGHT_HOLD=always" in old.action


@pytest.mark.parametrize(
    ("value", "state", "permanence", "words"),
    [
        (1, "degraded", "transient", "a transient problem"),
        (5, "degraded", "transient", "a transient problem"),
        (6, "degraded", "permanent", "a persistent minor problem"),
        (9, "degraded", "permanent", "a persistent minor problem"),
        (10, "unhealthy", "permanent", "not usable"),
    ],
)
def test_a_score_is_what_libtpu_says_it_is(value: int, state: State, permanence: Permanence, words: str) -> None:
    found = judge(ICI, link(0, value, 0))
    assert found is not None
    assert (found.state, found.permanence) == (state, permanence)
    assert found.reason == f"1 of 3 ICI links are not well: tray1.chip1.ici0.int scores {value} of 10 ({words})"
    assert found.action


def test_the_worst_link_is_named_first_and_decides_and_the_words_do_not_change_from_look_to_look() -> None:
    found = judge(ICI, link(2, 10, *[1] * 10))
    assert found is not None
    assert found.state == "unhealthy"
    assert found.reason.startswith("12 of 12 ICI links are not well: tray1.chip1.ici0.int scores 10 of 10 (not usable)")
    assert found.reason.endswith(" and 4 more")
    later = judge_scores(link(2, 10, *[1] * 10), NOW + timedelta(minutes=5), chips=CHIPS, is_fresh=True)
    assert later[ICI] == found


def test_a_link_that_was_not_well_stays_so_while_nobody_looks_and_says_when_that_was() -> None:
    found = judge(ICI, link(0, 10), is_fresh=False)
    assert found is not None
    assert (found.state, f"at {NOW:%Y-%m-%d %H:%M:%S} UTC" in found.reason) == ("unhealthy", True)


def test_a_line_that_nobody_can_read_is_no_green_light() -> None:
    found = judge(ICI, TpuScores(links=link(0).links, unread=("tray1 → fine",)))
    assert found is not None
    assert (found.state, "'tray1 → fine'" in found.reason, bool(found.action)) == ("degraded", True, True)
    both = judge(ICI, TpuScores(links=link(10).links, unread=("?",)))
    assert both is not None
    assert both.state == "unhealthy"


def test_where_nobody_told_that_is_said_and_a_lone_chip_needs_no_link() -> None:
    unasked, untold = judge(ICI, None), judge(ICI, TpuScores())
    refused = judge(ICI, TpuScores(unavailable="this libtpu has no SDK"))
    assert unasked is not None
    assert untold is not None
    assert refused is not None
    assert {unasked.state, untold.state, refused.state} == {"initializing"}
    assert "nobody has asked yet" in unasked.reason
    assert "told of no ICI link" in untold.reason
    assert refused.reason == "this libtpu has no SDK"
    assert all(judge(ICI, scores, chips=1) is None for scores in (None, TpuScores()))


# ---- throttling -----------------------------------------------------------------------------------------------------


def test_throttling_is_told_by_device_while_it_is_seen_and_ends_when_nobody_looks() -> None:
    held = judge(THROTTLE, throttle(0, 3, 10))
    assert held is not None
    assert (held.state, held.permanence) == ("degraded", "transient")
    assert held.reason == "throttled: device 1 by 30 %; device 2 by 100 %, as libtpu counts devices"
    was = judge(THROTTLE, throttle(0, 3, 10), is_fresh=False)
    assert was is not None
    assert (was.state, "2 of 3 TPU devices were throttled at " in was.reason) == ("initializing", True)
    assert judge(THROTTLE, throttle(0, 0)) == Finding("healthy", "none of 2 TPU devices is throttled")
    calm = judge(THROTTLE, throttle(0, 0), is_fresh=False)
    assert calm is not None
    assert (calm.state, "none of 2 was throttled at " in calm.reason) == ("initializing", True)
    assert judge(THROTTLE, link(0)) is None


# ---- on the board ---------------------------------------------------------------------------------------------------


class Scene:
    """A board that is told at each look what libtpu said last; `restart` is an agent that begins anew."""

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

    def look(self, scores: TpuScores | None, *, age_s: float = 0, chips: int = CHIPS) -> Component | None:
        now = self.clock.now()
        seen_at = None if scores is None else now - timedelta(seconds=age_s)
        self.verdicts.report_scores(scores, seen_at, chips=chips, at=now)
        return self.component()

    def component(self) -> Component | None:
        view = self.board.view(self.clock.now())
        return next((one for one in view.components if one.name == ICI), None)

    def states(self) -> list[str]:
        return [event.state for event in self.history._waiting if event.component == ICI]


def test_what_is_old_by_the_boards_own_limit_is_not_called_well() -> None:
    scene = Scene()
    for age_s, state in ((0, "healthy"), (STALE_AFTER_S, "healthy"), (STALE_AFTER_S + 1, "initializing")):
        found = scene.look(link(0), age_s=age_s)
        assert found is not None
        assert (found.state, found.age_s) == (state, 0)
    assert scene.look(None, chips=0) is None
    assert THROTTLE not in scene.board.names()


def test_a_host_that_waits_for_its_first_look_is_not_held_up_by_links_that_nobody_may_ask() -> None:
    scene = Scene()
    scene.board.report("driver", "healthy", "", at=scene.clock.now())
    scene.board.report("worker", "healthy", "", at=scene.clock.now())
    scene.look(None)
    assert scene.board.view(scene.clock.now()).state == "healthy"


def test_a_bad_link_is_one_event_through_restarts_and_its_end_another() -> None:
    scene = Scene()
    scene.look(link(0, 10))
    assert scene.states() == ["unhealthy"]
    scene.restart()
    assert ICI in scene.board.names()
    found = scene.look(link(0, 10), age_s=3600)
    assert found is not None
    assert (found.state, scene.states()) == ("unhealthy", [])
    scene.look(link(0, 0))
    assert scene.states() == ["healthy"]

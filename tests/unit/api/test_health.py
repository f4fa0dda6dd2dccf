"""The replies of /readyz and /health: one short line, and a board that is rendered once for as long as it may be."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import Health
from meshwright_agent.agent import Agent
from meshwright_agent.api.app import build_api
from meshwright_agent.api.health import LONGEST_LINE, BoardRendering, shorten_line
from meshwright_agent.settings import Settings
from tests.fakes.stored import ManualClock
from tests.unit.api.asgi import ask
from tests.unit.store.opening import build_closed_store


def build_agent() -> tuple[Agent, ManualClock]:
    clock = ManualClock()
    return Agent(Settings(), build_closed_store(), clock=clock), clock


def read(rendering: BoardRendering, agent: Agent) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bytes(rendering.read(agent).body))
    return document


# ---- /readyz --------------------------------------------------------------------------------------------------------


@given(st.text(max_size=300) | st.text(st.sampled_from("a \n\r\t\0\x1b\u2028\udcff"), max_size=300))
def test_a_reason_is_one_line_of_at_most_80_printable_characters(text: str) -> None:
    line = shorten_line(text)
    assert len(line) <= LONGEST_LINE == 80
    assert line.isprintable()
    line.encode()


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=80))
def test_a_short_reason_stays_as_it_is(text: str) -> None:
    assert shorten_line(text) == text


def test_a_long_reason_is_cut_where_one_sees_it() -> None:
    assert shorten_line("worker failed: " + "x" * 200) == "worker failed: " + "x" * 62 + "..."


def test_before_anything_was_seen_the_line_says_so_in_one_line() -> None:
    heard = ask(build_api(build_agent()[0]), target="/readyz")
    assert (heard.status, heard.body) == (503, b"starting: devices not seen yet, worker stopped\n")


# ---- /health --------------------------------------------------------------------------------------------------------


def test_health_is_the_board_as_the_contract_has_it() -> None:
    agent, clock = build_agent()
    agent.board.report("worker", "degraded", "died", at=clock.now(), action="look")
    heard = ask(build_api(agent), target="/health")
    assert (heard.status, heard.headers["content-type"]) == (200, "application/json")
    assert Health.model_validate_json(heard.body) == agent.health()


def test_what_was_reported_is_told_at_once() -> None:
    agent, clock = build_agent()
    rendering = BoardRendering()
    assert read(rendering, agent)["state"] == "initializing"
    agent.board.report("worker", "unhealthy", "it died", at=clock.now())
    assert read(rendering, agent)["state"] == "unhealthy"


def test_ages_and_what_grew_too_old_are_told_within_a_second() -> None:
    agent, clock = build_agent()
    rendering = BoardRendering()
    for name in agent.board.names():
        agent.board.report(name, "healthy", "seen", at=clock.now())
    assert (read(rendering, agent)["state"], read(rendering, agent)["components"][0]["age_s"]) == ("healthy", 0)
    clock.advance(1)
    assert read(rendering, agent)["components"][0]["age_s"] == 1
    clock.advance(agent.settings.stale_after_s)
    assert read(rendering, agent)["state"] == "unknown"


def test_nothing_is_rendered_twice_within_a_second_while_nothing_is_reported() -> None:
    agent, clock = build_agent()
    rendering = BoardRendering()
    first = rendering.read(agent)
    clock.advance(0.5)
    assert rendering.read(agent) is first

"""parse_scores(): lines as libtpu writes them, and what is none of them."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright_agent.facts.tpu_scores import MOST_CHARS, MOST_LINES, Score, Scores, TpuScores, parse_scores

UNREAD = Scores(unread=("libtpu's answer is none",))


def test_links_and_throttles_are_read_as_libtpus_description_shows_them() -> None:
    """The examples are those of description(), libtpu 0.0.42; tests/unit/worker/test_libtpu.py reads them there."""
    links = ["tray1.chip3.ici0.int: 0", "tray1.chip3.ici1.int: 10"]
    assert parse_scores({"links": {"lines": links}, "throttles": {"lines": ["0-0", "1-1", "12-10"]}}) == TpuScores(
        links=Scores((Score("tray1.chip3.ici0.int", 0), Score("tray1.chip3.ici1.int", 10))),
        throttles=Scores((Score("0", 0), Score("1", 1), Score("12", 10))),
    )


@pytest.mark.parametrize(
    "line", ["", "tray1.chip3.ici0.int", "tray1: ", ": 3", "tray1: 11", "tray1: -1", "tray1: 1.5", "tray1: ²", 7, None]
)
def test_a_line_of_another_form_is_kept_and_the_others_are_read(line: object) -> None:
    found = parse_scores({"links": {"lines": [line, "a: 3"]}, "throttles": {"lines": []}})
    assert found == TpuScores(links=Scores((Score("a", 3),), (str(line),)))


@pytest.mark.parametrize("told", [None, "tray1: 0", 3, [], {"lines": "tray1: 0"}, {"lines": {"tray1": 0}}])
def test_an_answer_of_another_form_is_unread_and_the_other_metric_is_read(told: Any) -> None:
    well = {"lines": ["0-0"]}
    assert parse_scores({"links": told, "throttles": well}) == TpuScores(UNREAD, Scores((Score("0", 0),)))
    assert parse_scores({"links": {"lines": []}, "throttles": told}) == TpuScores(Scores(), UNREAD)


def test_what_was_not_told_has_the_reason() -> None:
    found = parse_scores({"links": {"unavailable": "no SDK"}, "throttles": {"lines": []}})
    assert found == TpuScores(links=Scores(unavailable="no SDK"))


def test_an_answer_without_end_is_cut() -> None:
    lines = [f"{number:04} " * 100 for number in range(MOST_LINES + 1)]
    found = parse_scores({"links": {"lines": lines}, "throttles": {"lines": []}}).links
    assert (len(found.unread), {len(line) for line in found.unread}) == (MOST_LINES, {MOST_CHARS})

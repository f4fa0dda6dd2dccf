"""parse_scores(): lines as libtpu writes them, and what is none of them."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright_agent.facts.tpu_scores import MOST_CHARS, MOST_LINES, Score, TpuScores, parse_scores


def test_links_and_throttles_are_read_as_libtpus_description_shows_them() -> None:
    """The examples are those of description(), libtpu 0.0.42; tests/unit/worker/test_libtpu.py reads them there."""
    told = {"links": ["tray1.chip3.ici0.int: 0", "tray1.chip3.ici1.int: 10"], "throttles": ["0-0", "1-1", "12-10"]}
    assert parse_scores({**told, "unavailable": None}) == TpuScores(
        links=(Score("tray1.chip3.ici0.int", 0), Score("tray1.chip3.ici1.int", 10)),
        throttles=(Score("0", 0), Score("1", 1), Score("12", 10)),
    )


@pytest.mark.parametrize(
    "line", ["", "tray1.chip3.ici0.int", "tray1: ", ": 3", "tray1: 11", "tray1: -1", "tray1: 1.5", "tray1: ²", 7, None]
)
def test_a_line_of_another_form_is_kept_and_the_others_are_read(line: object) -> None:
    found = parse_scores({"links": [line, "a: 3"]})
    assert found == TpuScores(links=(Score("a", 3),), unread=(str(line),))


@pytest.mark.parametrize("lines", ["tray1: 0", {"tray1": 0}, 3])
def test_an_answer_that_is_no_list_is_unread(lines: Any) -> None:
    assert parse_scores({"links": lines}).unread == ("libtpu's answer is none",)
    assert parse_scores({"throttles": lines}).unread == ("libtpu's answer is none",)


def test_what_was_not_told_is_empty_with_the_reason() -> None:
    assert parse_scores({"unavailable": "no SDK"}) == TpuScores(unavailable="no SDK")
    assert parse_scores({}) == TpuScores()


def test_an_answer_without_end_is_cut() -> None:
    found = parse_scores({"links": ["x" * 1000] * (MOST_LINES + 1)})
    assert (len(found.unread), {len(line) for line in found.unread}) == (MOST_LINES, {MOST_CHARS})

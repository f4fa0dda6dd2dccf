"""Server-sent events from bytes that come in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._calls.sse import Frame, SseParser

TWO = b'id: 1\nevent: state\ndata: {"a": 1}\n\n: ping\n\nid: 2\nevent: record\ndata: x\ndata: y\n\n'
FRAMES = [Frame("1", "state", '{"a": 1}'), Frame("2", "record", "x\ny")]


def _feed_all(chunks: list[bytes]) -> list[Frame]:
    parser = SseParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, len(TWO) + 20), max_size=8))
def test_frames_do_not_depend_on_how_the_bytes_were_cut_or_the_lines_ended(end: bytes, cuts: list[int]) -> None:
    text = TWO.replace(b"\n", end) + b": end\n"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert _feed_all([text[a:b] for a, b in pairwise(edges)]) == FRAMES


@given(st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",))))
def test_unicode_line_separators_and_colons_inside_data_are_kept(text: str) -> None:
    assert _feed_all([f"data: {text}\n\n".encode()]) == [Frame("", "message", text)]


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_nothing(noise: bytes) -> None:
    assert all(isinstance(frame, Frame) for frame in _feed_all([noise]))

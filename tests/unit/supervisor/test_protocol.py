"""Frames: print and parse are inverse, and whatever is no frame is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import CODES, ProblemError, RequestError, RunFailedError
from meshwright_agent.supervisor.protocol import (
    CallFrame,
    CancelFrame,
    FailureFrame,
    Frame,
    FrameError,
    Hello,
    ProgressFrame,
    Refusal,
    ResultFrame,
    Stopped,
    format_frame,
    parse_frame,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(0, 2**53)
leaf = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | text
)
value = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
content = st.dictionaries(text, value, max_size=4)
entries = st.lists(st.fixed_dictionaries({"field": text, "message": text}), max_size=2)

frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, number, text, number, number),
    st.builds(Refusal, text, text, text),
    st.builds(CallFrame, number, text, content),
    st.builds(CancelFrame, number),
    st.builds(ProgressFrame, number, content),
    st.builds(ResultFrame, number, content),
    st.builds(FailureFrame, number, text, number, text, text, entries, st.lists(text), st.none() | st.floats(0, 1e9)),
    st.builds(Stopped, number),
)


@given(frames)
def test_parsing_a_printed_frame_gives_the_frame(frame: Frame) -> None:
    line = format_frame(frame)
    assert line.count(b"\n") == 1
    assert parse_frame(line) == frame


@given(frames, st.data())
def test_a_frame_with_a_field_missing_surplus_or_of_another_type_is_refused(frame: Frame, data: st.DataObject) -> None:
    fields = json.loads(format_frame(frame))
    name = data.draw(st.sampled_from(sorted(fields.keys() - {"type", "retry_after_s"})))
    without = {key: value for key, value in fields.items() if key != name}
    for wrong in (without, {**fields, "surplus": 1}, {**fields, name: True}, {**fields, name: None}):
        with pytest.raises(FrameError):
            parse_frame(json.dumps(wrong).encode())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object(), {1, 2}, b"bytes"])
def test_what_json_cannot_say_is_not_sent(bad: Any) -> None:
    with pytest.raises(FrameError, match="a result frame holds what JSON cannot say"):
        format_frame(ResultFrame(1, {"value": bad}))


def test_names_that_are_no_utf8_are_sent_with_question_marks() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert parse_frame(format_frame(ResultFrame(1, {"command": name}))) == ResultFrame(1, {"command": "caf?"})


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_problem_class_crosses_the_socket_whole(code: str) -> None:
    error = CODES[code].error(
        "asked 9, there are 8", code=code, hint="ask 8", errors=[{"field": "n", "message": "9"}], log=["a"]
    )
    error.retry_after_s = 1.5
    back = _send(FailureFrame.of(3, error)).build_error()
    assert type(back) is type(error)
    assert (back.detail, back.hint, back.errors, back.log) == (error.detail, error.hint, error.errors, error.log)
    assert (back.status, back.retry_after_s) == (error.status, 1.5)


def test_a_code_that_only_a_newer_child_knows_falls_back_to_its_status() -> None:
    newer = replace(FailureFrame.of(1, RunFailedError("x")), code="from_the_future", status=422)
    assert type(newer.build_error()) is RequestError
    assert issubclass(type(replace(newer, code="").build_error()), ProblemError)


def _send(failure: FailureFrame) -> FailureFrame:
    received = parse_frame(format_frame(failure))
    assert isinstance(received, FailureFrame)
    return received

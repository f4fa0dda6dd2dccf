"""Bytes as strict JSON, and as a model. What else a route refuses stands in tests/unit/api/test_gate.py."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from meshwright.errors import InvalidRequestError
from meshwright.wire.base import MOST_ENTRIES
from meshwright.wire.bench import BenchRequest
from meshwright.wire.leases import LeaseRequest
from meshwright.wire.problem import MOST_ERRORS
from meshwright_agent.bodies import decode_body, parse_body, parse_json


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    numbers: tuple[int, ...] = ()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=values)
def test_what_json_can_say_is_read_as_it_was_said(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("body", [b"{", b"", b"NaN", b"[Infinity]", b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused_as_the_body(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(body)
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(body, Question)
    assert [entry["field"] for entry in caught.value.errors] == ["body"]


def test_a_doubled_name_among_a_hundred_thousand_is_found_at_once() -> None:
    names = ",".join(f'"{number}": 0' for number in [*range(100_000), 99_999])
    began_s = time.perf_counter()
    with pytest.raises(json.JSONDecodeError, match="'99999' stands twice"):
        parse_json(f"{{{names}}}".encode())
    assert time.perf_counter() - began_s < 5  # comparing each with each takes minutes


def test_a_field_is_named_by_its_path_and_a_thousand_wrong_ones_are_not_all_listed() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(json.dumps({"numbers": ["x"] * 1000}).encode(), Question)
    fields = [entry["field"] for entry in caught.value.errors]
    assert fields == [f"numbers.{index}" for index in range(MOST_ERRORS)]


def test_more_than_are_listed_are_said_to_be_more() -> None:
    for count, more in ((MOST_ERRORS, "(and 99 more)"), (MOST_ERRORS + 1, "(and at least 99 more)")):
        with pytest.raises(InvalidRequestError) as caught:
            parse_body(json.dumps({"numbers": ["x"] * count}).encode(), Question)
        assert caught.value.detail.endswith(more)


def test_a_list_of_thousands_of_entries_that_no_branch_takes_is_refused_at_once() -> None:
    body = json.dumps({"purpose": "many", "devices": [2.5e-42, None, {}, False] * 4000}).encode()
    began_s = time.perf_counter()
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(body, LeaseRequest)
    assert len(caught.value.errors) <= MOST_ERRORS
    assert time.perf_counter() - began_s < 10  # comparing each of 48,000 findings with each takes minutes


@pytest.mark.parametrize(
    ("model", "body", "hint"),
    [
        (LeaseRequest, {"purpose": "many"}, f"give devices up to {MOST_ENTRIES} entries"),
        (BenchRequest, {}, f"give devices up to {MOST_ENTRIES} entries"),
    ],
    ids=["lease", "bench"],
)
@pytest.mark.parametrize("entry", [[], 0], ids=["wrong", "right"])
def test_a_list_that_is_too_long_is_refused_without_a_look_at_its_entries(
    model: type[BaseModel], body: dict[str, Any], hint: str, entry: object
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(json.dumps({**body, "devices": [entry] * (MOST_ENTRIES + 1)}).encode(), model)
    assert [refused["field"] for refused in caught.value.errors] == ["devices"]
    assert caught.value.hint == hint


def test_a_body_is_its_text_or_the_byte_that_is_none_is_told() -> None:
    assert decode_body("köln".encode()) == "köln"
    with pytest.raises(InvalidRequestError, match="not UTF-8: byte 1 is 0xf6"):
        decode_body("köln".encode("latin-1"))


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"a": ["\uDFFF"]}', r'{"\ud83d": 1}', r'"\ude00\ud83d"'])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(json.JSONDecodeError, match="half of a surrogate pair"):
        parse_json(text.encode())


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud800"', '"😀"'])
def test_a_whole_pair_and_its_letters_are_text(text: str) -> None:
    assert parse_json(text.encode()) == json.loads(text)

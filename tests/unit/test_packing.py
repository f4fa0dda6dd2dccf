"""Texts that are handed on: packed where they are long, and the same again."""

from __future__ import annotations

import json

from meshwright.planning.request import answer_request
from meshwright.wire.mesh import PlanRequest
from meshwright_agent.packing import LEAST_CHARS, is_packed, pack, unpack
from meshwright_agent.worker.planner import write_plans


def test_a_short_text_stays_and_a_long_one_comes_back_as_it_was() -> None:
    short, long = json.dumps({"a": "é"}), json.dumps({"a": "é" * LEAST_CHARS}, ensure_ascii=False)
    assert pack(short) == short
    assert not is_packed(short)
    assert is_packed(pack(long))
    assert len(pack(long)) < len(long) / 10
    assert (unpack(short), unpack(pack(long))) == (short, long)


def test_plans_that_nobody_is_shown_go_packed_through_the_loop() -> None:
    asked = PlanRequest(mesh="dp:64,tp:8", target="64*h100:8")
    shown = write_plans(asked, None)
    hidden = write_plans(asked.model_copy(update={"include_devices": False}), None)
    (text,), (packed,) = shown["kept"], hidden["kept"]
    assert text.startswith("{")
    assert unpack(packed) == text == answer_request(asked).plans[0].model_dump_json()
    assert len(packed) < len(text) / 5

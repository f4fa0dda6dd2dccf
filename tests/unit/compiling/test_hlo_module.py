"""Programs and their loops, on small ones written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib import _hlo

from meshwright.compiling.hlo import ProgramFacts, read_program
from meshwright.compiling.hlo.execution import Frame, Loop
from meshwright.compiling.hlo.module import DTYPES, parse_module
from tests.unit.compiling.hlo_text import build_module, serialize_text

NEW_FIELD = b"\xfa\x3f\x01x"  # number 1023
HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=4\n\n"
SUM = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%tanh (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %t = f32[8]{0} tanh(%x)
}

"""


def write_loop(*, start: int = 0, end: int = 10, step: int = 1, direction: str = "LT", body: str = "") -> str:
    """A loop whose end goes through its tuple; the sum is in the body."""
    return f"""{HEAD}{SUM}%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %p = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[8]{{0}} get-tuple-element(%p), index=1
  %e = s32[] get-tuple-element(%p), index=2
  %one = s32[] constant({step})
  %next = s32[] add(%i, %one)
  %sum = f32[8]{{0}} all-reduce(%v), channel_id=1, replica_groups={{{{0,1,2,3}}}}, to_apply=%add
  {body}
  ROOT %out = (s32[], f32[8], s32[]) tuple(%next, %sum, %e)
}}

%cond (q: (s32[], f32[8], s32[])) -> pred[] {{
  %q = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %end = s32[] get-tuple-element(%q), index=2
  ROOT %lt = pred[] compare(%i, %end), direction={direction}
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({start})
  %copy = s32[] copy(%zero)
  %stop = s32[] constant({end})
  %init = (s32[], f32[8], s32[]) tuple(%copy, %a, %stop)
  %loop = (s32[], f32[8], s32[]) while(%init), condition=%cond, body=%body
  ROOT %r = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
"""


def count_trips(text: str) -> int | None:
    module = parse_module(serialize_text(text))
    (loop,) = (each for each in module.main.order if each.opcode == "while")
    return Loop(Frame(module, module.main, lambda _, __: None), loop).trips


def read_text(text: str, mesh: dict[str, int], platform: str = "cpu", clock_hz: float | None = None) -> Any:
    return read_program(serialize_text(text), mesh_shape=mesh, platform=platform, clock_hz=clock_hz)


def read_changed(change: Callable[[Any], None], opcode: str = "all-reduce") -> ProgramFacts:
    """Reads a loop with a sum over tp after a change of the messages of one opcode."""
    module = build_module(write_loop())
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == opcode:
                change(instruction)
    return read_program(module.SerializeToString(), mesh_shape={"tp": 4}, platform="cpu", clock_hz=None)


def test_data_types_have_the_numbers_of_xla() -> None:
    for name in (name for name in dir(_hlo.PrimitiveType) if name.isupper()):
        expected = {"PRIMITIVE_TYPE_INVALID": "invalid", "OPAQUE_TYPE": "opaque"}.get(name, name.lower())
        assert DTYPES[int(getattr(_hlo.PrimitiveType, name))] == expected


@pytest.mark.parametrize(("opcode", "change", "said"), [
    ("all-reduce", lambda each: each.MergeFromString(NEW_FIELD), "fields [1023] of all-reduce (sum)"),
    ("all-reduce", lambda each: each.device_list.MergeFromString(NEW_FIELD), "unreadable groups of all-reduce"),
    ("all-reduce", lambda each: setattr(each, "opcode", "all-new"), "what all-new (sum) sends"),
    ("all-reduce", lambda each: setattr(each, "opcode", "all-new-start"), "what all-new-start (sum) sends"),
    ("all-reduce", lambda each: setattr(each.shape, "element_type", 99), "a data type of all-reduce (sum)"),
    ("while", lambda each: setattr(each, "opcode", "repeat"), "what repeat (loop) calls"),
])  # fmt: skip
def test_what_a_newer_compiler_added_is_reported(opcode: str, change: Callable[[Any], None], said: str) -> None:
    (notice,) = (each for each in read_changed(change, opcode).notices if each.code == "program_incomplete")

    assert said in notice.message


STEPS = st.integers(-7, 7).filter(bool)


@given(st.integers(-20, 20), st.integers(-20, 60), STEPS, st.sampled_from(["LT", "LE", "GT", "GE"]))
def test_trips_are_those_of_a_loop_that_is_run(start: int, end: int, step: int, direction: str) -> None:
    holds = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__}[direction]
    runs = itertools.takewhile(lambda n: holds(start + n * step, end), range(200))

    trips = sum(1 for _ in runs)

    expected = None if trips == 200 else trips  # never ends: its counter would have to overflow
    assert count_trips(write_loop(start=start, end=end, step=step, direction=direction)) == expected


def test_a_counter_that_something_else_changes_is_not_counted() -> None:
    text = write_loop().replace("add(%i, %one)", "multiply(%i, %one)")
    facts = read_text(text, {"tp": 4})

    assert count_trips(text) is None
    assert [collective.count for collective in facts.collectives] == [1]
    assert [notice.code for notice in facts.notices] == ["loop_trips_unknown"]


def test_conditions_in_fusions_are_followed() -> None:
    text = write_loop().replace(
        "ROOT %lt = pred[] compare(%i, %end), direction=LT",
        "ROOT %lt = pred[] fusion(%end, %i), kind=kLoop, calls=%compared",
    )
    compared = """%compared (b: s32[], a: s32[]) -> pred[] {
  %b = s32[] parameter(0)
  %a = s32[] parameter(1)
  %shift = s32[] constant(2)
  %sum = s32[] add(%a, %shift)
  ROOT %c = pred[] compare(%sum, %b), direction=LT
}

"""
    assert count_trips(text.replace("%body (p", compared + "%body (p", 1)) == 8


def test_a_combined_sum_counts_all_its_operands_once_and_its_end_not_at_all() -> None:
    text = (
        HEAD
        + SUM
        + """ENTRY %main (a: f32[8], b: bf16[4]) -> (f32[8], bf16[4]) {
  %a = f32[8]{0} parameter(0)
  %b = bf16[4]{0} parameter(1)
  %s = ((f32[8], bf16[4]), (f32[8], bf16[4])) all-reduce-start(%a, %b), replica_groups=[1,4]<=[4], to_apply=%add
  %f = f32[8]{0} fusion(%a), kind=kLoop, calls=%add
  ROOT %d = (f32[8]{0}, bf16[4]{0}) all-reduce-done(%s)
}
"""
    )
    (summed,) = read_text(text, {"dp": 4}, "gpu").collectives

    assert (summed.count, summed.bytes) == (1, 8 * 4 + 4 * 2)
    assert summed.asynchronous_count == 1


def test_a_wrapped_collective_counts_once_where_it_is_wrapped() -> None:
    text = (
        HEAD
        + """%wrapped (p: f32[8]) -> f32[32] {
  %p = f32[8]{0} parameter(0)
  ROOT %g = f32[32]{0} all-gather(%p), channel_id=1, replica_groups={}, dimensions={0}, use_global_device_ids=true
}

ENTRY %main (a: f32[8]) -> f32[32] {
  %a = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[32]{0}, u32[]) async-start(%a), calls=%wrapped
  ROOT %d = f32[32]{0} async-done(%s)
}
"""
    )
    (gathered,) = read_text(text, {"fsdp": 4}, "gpu").collectives

    assert (gathered.axis, gathered.op, gathered.count, gathered.bytes) == ("fsdp", "all-gather", 1, 32 * 4)
    assert gathered.asynchronous_count == 0


def test_groups_of_no_axis_are_reported_without_one() -> None:
    text = write_loop().replace("{{0,1,2,3}}", "{{0,3},{1,2}}")
    (summed,) = read_text(text, {"dp": 2, "tp": 2}, "gpu").collectives

    assert (summed.axis, summed.group_size, summed.count) == ("?", 2, 10)


def test_what_has_no_cycles_adds_nothing_and_attention_is_told_apart() -> None:
    priced = 'backend_config={"window_config":{"estimated_cycles":"1000"}}'
    body = f"""%k = f32[8]{{0}} custom-call(%v), custom_call_target="tpu_custom_call", backend_config={{}}
  %f = f32[8]{{0}} fusion(%v), kind=kLoop, calls=%add, metadata={{op_name="jit(f)/attention/exp"}}, {priced}
  %g = f32[8]{{0}} fusion(%v), kind=kLoop, calls=%add, metadata={{op_name="jit(f)/mlp/exp"}}, {priced}
  %h = f32[8]{{0}} fusion(%v), kind=kOutput, calls=%add"""
    estimate = read_text(write_loop(body=body), {"tp": 4}, "tpu", 1e6).estimate

    assert (estimate.total_s, estimate.attention_s) == (pytest.approx(0.02), pytest.approx(0.01))


def test_a_gather_that_libtpu_does_in_steps_counts_where_it_starts() -> None:
    gather = (
        "%g = f32[32]{0} all-gather(%p), channel_id=9, replica_groups={}, dimensions={0}, use_global_device_ids=true, "
        'frontend_attributes={chain_id="7"}'
    )
    text = f"""{HEAD}%starting (p: f32[8]) -> (f32[8], f32[32]) {{
  %p = f32[8]{{0}} parameter(0)
  {gather}
  ROOT %c = (f32[8]{{0}}, f32[32]{{0}}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%computing (p: f32[8]) -> f32[32] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT {gather}
}}

%ending (p: f32[8]) -> f32[32] {{
  %p = f32[8]{{0}} parameter(0)
  {gather}
  ROOT %c = f32[32]{{0}} custom-call(%g), custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (a: f32[8]) -> f32[32] {{
  %a = f32[8]{{0}} parameter(0)
  %async-collective-start = (f32[8]{{0}}, f32[32]{{0}}) fusion(%a), kind=kCustom, calls=%starting
  %fusion.1 = f32[32]{{0}} fusion(%a), kind=kOutput, calls=%computing, backend_config={{"window_config":{{"estimated_cycles":"5"}}}}
  ROOT %async-collective-done = f32[32]{{0}} fusion(%a), kind=kCustom, calls=%ending
}}
"""  # noqa: E501 # as libtpu writes it
    facts = read_text(text, {"fsdp": 4}, "tpu", 1.0)
    (gathered,) = facts.collectives

    assert (gathered.count, gathered.bytes, gathered.asynchronous_count) == (1, 32 * 4, 1)
    assert facts.estimate.total_s == 5

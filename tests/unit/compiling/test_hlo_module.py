"""HLO text and its loops, on small texts written by hand."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.hlo import read_program
from meshwright.compiling.hlo.loops import Loop, build_main
from meshwright.compiling.hlo.module import Instruction, parse_module
from meshwright.compiling.hlo.shapes import parse_arrays

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=4\n\n"
SUM = "%add (x: f32[], y: f32[]) -> f32[] {\n  ROOT %s = f32[] add(%x, %y)\n}\n\n"


def write_loop(
    *,
    start: int = 0,
    end: int = 10,
    step: int = 1,
    direction: str = "LT",
    compare: str = "%i, %end",
    body: str = "",
    config: str = "",
) -> str:
    """A loop whose end goes through its tuple; the sum is in the body."""
    return (
        HEAD
        + SUM
        + f"""%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
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
  ROOT %lt = pred[] compare({compare}), direction={direction}
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({start})
  %copy = s32[] copy(%zero)
  %stop = s32[] constant({end})
  %init = (s32[], f32[8], s32[]) tuple(%copy, %a, %stop)
  %loop = (s32[], f32[8], s32[]) while(%init), condition=%cond, body=%body{config}
  ROOT %r = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
"""
    )


def count_trips(text: str) -> int | None:
    module = parse_module(text)
    return Loop(build_main(module), module.main.instructions["loop"]).trips


def read_operation(line: str) -> Instruction:
    return parse_module(f"{HEAD}ENTRY %main () -> f32[] {{\n  {line}\n}}\n").main.order[0]


def test_a_line_is_read_with_all_that_stands_in_it() -> None:
    read = read_operation(
        "ROOT %fusion.3 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/f32[]{:T(128)}) "
        "fusion(%p.0, bf16[4]{0} %copy-done, /*index=2*/%c), kind=kOutput, calls=%fused.clone, "
        "new_attribute={a={b,c}}, "
        'metadata={op_name="jit(f)/a, b={[\\"(" stack_frame_id=6}, backend_config={"window_config":{"x":"1,2"}}'
    )

    assert (read.name, read.opcode, read.is_root) == ("fusion.3", "fusion", True)
    assert read.operands == ("p.0", "copy-done", "c")
    assert [(array.dtype, array.dimensions) for array in read.arrays] == [("bf16", (8, 128)), ("f32", ())]
    assert read.attributes["new_attribute"] == "{a={b,c}}"
    assert read.attributes["kind"] == "kOutput"
    assert read.called == ("fused.clone",)
    assert read.op_name == 'jit(f)/a, b={[\\"('
    assert read.backend_config == {"window_config": {"x": "1,2"}}


def test_notes_that_are_no_json_are_empty() -> None:
    assert read_operation('%a = f32[] custom-call(%x), backend_config="module {"').backend_config == {}


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("bf16[4,8]{1,0:T(8,128)(2,1)S(1)}", 64),
        ("f32[]", 4),
        ("s4[3]{0}", 1.5),
        ("f8e4m3fn[16]", 16),
        ("pred[7]", 7),
        ("c64[2]", 16),
        ("token[]", 0),
        ("u32[<=8]", 32),
        ("f32[0,5]", 0),
    ],
)
def test_sizes_of_arrays_are_logical(written: str, size_bytes: float) -> None:
    assert [array.size_bytes for array in parse_arrays(written)] == [size_bytes]


@given(
    st.integers(-20, 20),
    st.integers(-20, 60),
    st.integers(-7, 7).filter(bool),
    st.sampled_from(["LT", "LE", "GT", "GE"]),
)
def test_trips_are_those_of_a_loop_that_is_run(start: int, end: int, step: int, direction: str) -> None:
    holds = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__}[direction]
    runs = itertools.takewhile(lambda n: holds(start + n * step, end), range(200))

    trips = sum(1 for _ in runs)

    expected = None if trips == 200 else trips  # never ends: its counter would have to overflow
    assert count_trips(write_loop(start=start, end=end, step=step, direction=direction)) == expected


def test_the_end_may_stand_before_the_counter() -> None:
    assert count_trips(write_loop(compare="%end, %i", direction="GT")) == 10


@pytest.mark.parametrize(("end", "trips"), [(12, 4), (13, None), (0, 0)])
def test_a_loop_until_equal_must_hit_its_end(end: int, trips: int | None) -> None:
    assert count_trips(write_loop(end=end, step=3, direction="NE")) == trips


def test_a_counter_that_something_else_changes_is_not_counted() -> None:
    text = write_loop().replace("add(%i, %one)", "multiply(%i, %one)")
    facts = read_program(text, mesh_shape={"tp": 4}, platform="cpu", clock_hz=None)

    assert count_trips(text) is None
    assert [collective.count for collective in facts.collectives] == [1]
    assert [notice.code for notice in facts.notices] == ["loop_trips_unknown"]


def test_a_loop_that_does_not_run_does_nothing() -> None:
    facts = read_program(write_loop(end=0), mesh_shape={"tp": 4}, platform="cpu", clock_hz=None)

    assert facts.collectives == ()


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
    (summed,) = read_program(text, mesh_shape={"dp": 4}, platform="gpu", clock_hz=None).collectives

    assert (summed.count, summed.bytes, summed.dtypes) == (1, 8 * 4 + 4 * 2, ("f32", "bf16"))
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
    (gathered,) = read_program(text, mesh_shape={"fsdp": 4}, platform="gpu", clock_hz=None).collectives

    assert (gathered.axis, gathered.op, gathered.count, gathered.bytes) == ("fsdp", "all-gather", 1, 32 * 4)
    assert gathered.asynchronous_count == 0


def test_groups_of_no_axis_keep_their_groups() -> None:
    text = write_loop().replace("{{0,1,2,3}}", "{{0,3},{1,2}}")
    (summed,) = read_program(text, mesh_shape={"dp": 2, "tp": 2}, platform="gpu", clock_hz=None).collectives

    assert (summed.axis, summed.groups, summed.group_size, summed.count) == ("?", "{{0,3},{1,2}}", 2, 10)


def test_what_has_no_cycles_adds_nothing_and_attention_is_told_apart() -> None:
    priced = 'backend_config={"window_config":{"estimated_cycles":"1000"}}'
    body = f"""%k = f32[8]{{0}} custom-call(%v), custom_call_target="tpu_custom_call", backend_config={{}}
  %f = f32[8]{{0}} fusion(%v), kind=kLoop, calls=%add, metadata={{op_name="jit(f)/attention/exp"}}, {priced}
  %g = f32[8]{{0}} fusion(%v), kind=kLoop, calls=%add, metadata={{op_name="jit(f)/mlp/exp"}}, {priced}
  %h = f32[8]{{0}} fusion(%v), kind=kOutput, calls=%add"""
    estimate = read_program(write_loop(body=body), mesh_shape={"tp": 4}, platform="tpu", clock_hz=1e6).estimate

    assert estimate is not None
    assert (estimate.total_s, estimate.attention_s) == (pytest.approx(0.02), pytest.approx(0.01))


def build_long_text(lines: int) -> str:
    """Returns a program of some 290 characters a line, as long as libtpu writes them."""
    config = (
        '{"window_config":{"kernel_window_bounds":["64","4"],"estimated_cycles":"10"},"x":[' + '"1",' * 40 + '"2"]}'
    )
    body = "".join(
        f"  %f.{n} = f32[8]{{0:T(8,128)}} fusion(%a, %a), kind=kLoop, calls=%add, backend_config={config}\n"
        for n in range(lines)
    )
    return f"{HEAD}{SUM}ENTRY %main (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n{body}}}\n"


def test_the_time_to_read_a_text_grows_with_its_length_and_no_faster() -> None:
    took_s = []
    for lines in (500, 4_000):
        text, tries_s = build_long_text(lines), []
        for _ in range(2):
            started_s = time.process_time()
            facts = read_program(text, mesh_shape={"dp": 4}, platform="tpu", clock_hz=1e9)
            tries_s.append(time.process_time() - started_s)
        took_s.append(min(tries_s))
        assert facts.estimate is not None
        assert facts.estimate.total_s == pytest.approx(lines * 10 / 1e9)
    assert len(text) > 1_100_000
    assert took_s[1] < 8 * 4 * took_s[0]  # with the square of the length it were 64 ×


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
    facts = read_program(text, mesh_shape={"fsdp": 4}, platform="tpu", clock_hz=1.0)
    (gathered,) = facts.collectives

    assert (gathered.count, gathered.bytes, gathered.asynchronous_count) == (1, 32 * 4, 1)
    assert facts.estimate is not None
    assert facts.estimate.total_s == 5

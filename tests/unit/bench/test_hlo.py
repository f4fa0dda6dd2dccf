"""Collectives in compiled text: of CPU as compiled here, of GPU and TPU in the shapes that XLA prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.bench import Collective
from meshwright_agent.children.bench.collectives import KINDS, count_bytes, find_collective, parse_collectives

SYNC = """
HloModule jit__lambda, entry_computation_layout={(f32[1,8]{1,0})->f32[1,8]{1,0}}, num_partitions=8
%region_0.0 (a: f32[], b: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%a, %b)
}
ENTRY %main (param: f32[1,8]) -> f32[1,8] {
  %param = f32[1,8]{1,0} parameter(0), metadata={op_name="all-reduce(x)"}
  ROOT %psum.7 = f32[1,8]{1,0} all-reduce(%param), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%region_0.0
}
"""
TUPLE = """
  %all-to-all = (f32[1,2]{1,0}, f32[1,2]{1,0}, f32[1,2]{1,0}, /*index=3*/f32[1,2]{1,0}) all-to-all(%a, %b)
  %get-tuple-element.2 = f32[1,2]{1,0} get-tuple-element(%all-to-all), index=0
"""
ASYNC = """
  %all-gather-start = (bf16[1,16]{1,0}, bf16[1,128]{1,0}) all-gather-start(bf16[1,16]{1,0} %p), dimensions={1}
  %all-gather-done = bf16[1,128]{1,0} all-gather-done((bf16[1,16]{1,0}, bf16[1,128]{1,0}) %all-gather-start)
  %cp-start = (f32[64]{0:T(128)}, f32[64]{0:T(128)}, u32[]{:S(2)}) collective-permute-start(%p)
  ROOT %ar = (f32[4]{0}, f32[8]{0}) all-reduce-start(%x, %y), to_apply=%add
  %rs = ((f32[32]{0}), f32[4]{0}) reduce-scatter-start(%z), dimensions={0}
"""
TWICE = "  %a = f32[4] all-reduce(%x)\n  %b = s8[3,3]{1,0} all-reduce(%y)\n"


def test_a_collective_is_found_with_its_count_and_the_bytes_of_its_result() -> None:
    assert parse_collectives(SYNC) == {"all-reduce": Collective(op="all-reduce", count=1, bytes=32)}


def test_all_parts_of_a_tuple_count_and_reading_it_does_not() -> None:
    assert parse_collectives(TUPLE) == {"all-to-all": Collective(op="all-to-all", count=1, bytes=4 * 8)}


def test_an_asynchronous_collective_counts_once_and_without_its_operands() -> None:
    found = {op: (one.count, one.bytes) for op, one in parse_collectives(ASYNC).items()}
    assert found == {
        "all-gather": (1, 256),
        "collective-permute": (1, 256),
        "all-reduce": (1, 48),
        "reduce-scatter": (1, 16),
    }


def test_several_of_a_kind_are_added_up() -> None:
    assert parse_collectives(TWICE)["all-reduce"] == Collective(op="all-reduce", count=2, bytes=25)


def test_text_without_a_collective_has_none() -> None:
    assert parse_collectives("ROOT %x = f32[8]{0} negate(%all-reduce.3)") == {}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4), ("f32[0]", 0), ("bf16[2,3]{1,0}", 12), ("pred[5]", 5), ("s4[3]", 2), ("f8e4m3fn[7]{0}", 7),
        ("c64[2]", 16), ("u32[<=8]", 32), ("(f32[2], (s8[3], f64[1]))", 19), ("token[]", 0),
        ("bf16[8,128]{1,0:T(8,128)(2,1)}", 2048),
    ],
)  # fmt: skip
def test_a_type_has_the_bytes_of_all_its_arrays(text: str, size: int) -> None:
    assert count_bytes(text) == size


@given(st.text(max_size=200))
def test_any_text_is_read_without_a_fault(text: str) -> None:
    parse_collectives(text)
    parse_collectives(f"  %x = {text} all-reduce-start(%y)")


def test_a_collective_that_was_optimised_away_has_a_count_of_zero() -> None:
    gone = find_collective(KINDS["all_gather"], SYNC)
    assert gone == Collective(op="all-gather", count=0, bytes=0)


def test_a_reduce_scatter_may_stand_there_as_an_all_reduce_and_says_so() -> None:
    assert find_collective(KINDS["reduce_scatter"], SYNC).op == "all-reduce"
    assert find_collective(KINDS["reduce_scatter"], ASYNC).op == "reduce-scatter"

"""Collectives in compiled programs: synchronous, in pairs, several of a kind, and none."""

from __future__ import annotations

import pytest

from meshwright.compiling.hlo.module import Module, parse_module
from meshwright.wire.bench import Collective
from meshwright_agent.children.bench.collectives import KINDS, find_collective
from tests.unit.compiling.hlo_text import serialize_text

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def build(body: str) -> Module:
    """Returns a program of 8 devices whose parameter is %p, f32[1,8]."""
    entry = f"ENTRY %main (p: f32[1,8]) -> f32[1,8] {{\n  %p = f32[1,8] parameter(0)\n{body}\n}}"
    return parse_module(serialize_text(f"HloModule m, num_partitions=8\n{ADD}\n{entry}\n"))


SYNC = build("  ROOT %r = f32[1,8] all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add")
TWICE = build("""  %x = f32[1,8] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
  ROOT %r = f32[1,8] all-reduce(%x), replica_groups={{0,1}}, to_apply=%add""")
PAIRS = build("""  %s = (f32[1,8], f32[1,16]) all-gather-start(%p), replica_groups={{0,1}}, dimensions={1}
  %d = f32[1,16] all-gather-done(%s)
  %c = (f32[1,8], f32[1,8], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %e = f32[1,8] collective-permute-done(%c)
  %a = f32[1,8] all-reduce-start(%p), replica_groups={{0,1}}, to_apply=%add
  ROOT %r = f32[1,8] all-reduce-done(%a)""")
TUPLE = build("""  %h = f32[1,4] slice(%p), slice={[0:1], [0:4]}
  %t = (f32[1,4], f32[1,4]) all-to-all(%h, %h), replica_groups={{0,1}}
  %u = f32[1,4] get-tuple-element(%t), index=0
  ROOT %r = f32[1,8] concatenate(%u, %u), dimensions={1}""")


@pytest.mark.parametrize(
    ("program", "case", "found"),
    [
        (SYNC, "all_reduce", Collective(op="all-reduce", count=1, bytes=32)),
        (TWICE, "all_reduce", Collective(op="all-reduce", count=2, bytes=64)),
        (PAIRS, "all_gather", Collective(op="all-gather", count=1, bytes=64)),
        (PAIRS, "permute", Collective(op="collective-permute", count=1, bytes=32)),
        (PAIRS, "all_reduce", Collective(op="all-reduce", count=1, bytes=32)),
        (TUPLE, "all_to_all", Collective(op="all-to-all", count=1, bytes=32)),
        (SYNC, "reduce_scatter", Collective(op="all-reduce", count=1, bytes=32)),  # as CPU and GPU may write it
        (SYNC, "all_gather", Collective(op="all-gather", count=0, bytes=0)),  # it was taken out
    ],
)
def test_a_collective_is_found_with_its_count_and_the_bytes_of_its_results(
    program: Module, case: str, found: Collective
) -> None:
    assert find_collective(KINDS[case], program) == found  # type: ignore[index]

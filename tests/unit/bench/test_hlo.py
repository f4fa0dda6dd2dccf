"""Collectives in compiled programs: synchronous, in pairs, several of a kind, and none."""

from __future__ import annotations

import pytest

from meshwright.compiling.hlo.module import Module, parse_module
from meshwright_agent.children.bench.collectives import KINDS, has_collective
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


@pytest.mark.parametrize(("program", "case", "found"), [
    (SYNC, "all_reduce", True),
    (TWICE, "all_reduce", True),
    (PAIRS, "all_gather", True),
    (PAIRS, "permute", True),
    (PAIRS, "all_reduce", True),
    (TUPLE, "all_to_all", True),
    (SYNC, "reduce_scatter", True),  # as CPU and GPU may write it
    (SYNC, "all_gather", False),  # it was taken out
])  # fmt: skip
def test_a_collective_is_found_in_the_compiled_program(program: Module, case: str, found: bool) -> None:
    assert has_collective(KINDS[case], program) is found  # type: ignore[index]

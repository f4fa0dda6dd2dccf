"""What a refusal for memory tells: the compiler's figures, and no advice for programs that compile all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.compiling.report import _report_refusal

WORDS = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 18.00G of 15.75G hbm. Exceeded hbm capacity by 2.25G."
)
NOT_REDUCED = "W0000 remat.cc] Can't reduce memory use below 14.92GiB (16024183705 bytes) by rematerialization"
REPLICATED = (
    "E0000 spmd_partitioner.cc] [spmd] Involuntary full rematerialization. The compiler cannot go from sharding "
    "{devices=[4]<=[4]} to {devices=[2,2]<=[4]} efficiently for HLO operation %copy.1 = f32[8] copy(%p)"
)


def test_a_refusal_has_the_compilers_figures_and_only_warnings_that_help() -> None:
    site: Any = SimpleNamespace(capacity_bytes=1)
    found = _report_refusal(WORDS, [NOT_REDUCED, REPLICATED], site)
    assert found.status == "does_not_fit"
    assert (found.needed_bytes, found.capacity_bytes) == (18 * 2**30, round(15.75 * 2**30))
    assert [notice.code for notice in found.warnings] == ["involuntary_rematerialization"]

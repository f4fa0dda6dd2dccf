"""What compilers say of memory. The texts are theirs, recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.report import OutOfMemory, Site, _report_refusal, parse_out_of_memory

GIB = 2**30

LIBTPU_0_0_42 = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (16.50G) exceeds "
    "available HBM (15.75G)."
)
LIBTPU_0_0_50 = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (2.00P) exceeds available HBM (7.48G). HLO module: jit__lambda.\n"
    "See https://openxla.org/xla/errors/error_1000 for more details."
)
LAID_OUT = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of "
    "30.75G hbm. Exceeded hbm capacity by 33.05G.\n\nTotal hbm usage >= 65.05G:\n    reserved          1.25G"
)
VMEM = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 32.42M of "
    "16.00M vmem. Exceeded vmem capacity by 16.42M."
)
"""The last two as users reported them (EasyDeL issue 166, pytorch/xla issue 9524): these releases of libtpu refuse a
program before its memory is laid out."""


@pytest.mark.parametrize(("message", "needed", "available"), [
    (LIBTPU_0_0_42, 16.5 * GIB, 15.75 * GIB), (LIBTPU_0_0_50, 2 * 2**50, 7.48 * GIB),
    (LAID_OUT, 63.8 * GIB, 30.75 * GIB),
], ids=["libtpu 0.0.42", "libtpu 0.0.50", "laid out"])  # fmt: skip
def test_a_refusal_says_what_is_needed_and_what_there_is(message: str, needed: float, available: float) -> None:
    assert parse_out_of_memory(message) == OutOfMemory(round(needed), round(available))


@pytest.mark.parametrize("message", [
    VMEM, "INTERNAL: RET_CHECK failure (net_util.cc:2304) device_id < kMaxDeviceCount", "", "Used 2.00G of 1.00G hbm",
])  # fmt: skip
def test_other_refusals_are_not_for_memory(message: str) -> None:
    assert parse_out_of_memory(message) is None


def test_a_refusal_in_unknown_words_is_one_without_figures() -> None:
    assert parse_out_of_memory("RESOURCE_EXHAUSTED: HBM is full") == OutOfMemory(None, None)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from("BKMGTP"))
def test_sizes_are_read_in_binary_units(needed: int, available: int, unit: str) -> None:
    told = f"RESOURCE_EXHAUSTED: Used {needed / 100:.2f}{unit} of {available / 100:.2f}{unit} hbm."
    factor = 2 ** (10 * "BKMGTP".index(unit))
    expected = OutOfMemory(round(needed / 100 * factor), round(available / 100 * factor))
    assert parse_out_of_memory(told) == expected


NOT_REDUCED = "W0000 remat.cc] Can't reduce memory use below 14.92GiB (16024183705 bytes) by rematerialization"
REPLICATED = (
    "E0000 spmd_partitioner.cc] [spmd] Involuntary full rematerialization. The compiler cannot go from sharding "
    "{devices=[4]<=[4]} to {devices=[2,2]<=[4]} efficiently for HLO operation %copy.1 = f32[8] copy(%p)"
)


def test_a_refusal_has_the_compilers_figures_and_only_warnings_that_help() -> None:
    site: Any = SimpleNamespace(capacity_bytes=1)
    found = _report_refusal(LAID_OUT, [NOT_REDUCED, REPLICATED], site)
    assert found.status == "does_not_fit"
    assert (found.needed_bytes, found.capacity_bytes) == (round(63.8 * GIB), round(30.75 * GIB))
    assert [notice.code for notice in found.warnings] == ["involuntary_rematerialization"]


def test_a_gpu_keeps_free_what_a_cards_own_compile_may_need() -> None:
    """An H100 needed 3.1 % more than the compile without it: tests/device/h100.jsonl."""
    nothing: Any = None
    opened: list[Any] = [SimpleNamespace(target=SimpleNamespace(platform=platform)) for platform in ("gpu", "tpu")]
    gpu, tpu = (Site(each, nothing, (), 104) for each in opened)
    assert (gpu.peak_limit_bytes, tpu.peak_limit_bytes) == (100, 104)
    assert 1.031 < gpu.peak_ratio < 1.1

"""Memory that comes back, and memory that does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts.memory import count_unowned
from meshwright_agent.facts.model import GpuFacts, ProcessFacts
from meshwright_agent.host.baseline import TOLERANCE_BYTES, MemoryBaseline

MIB = 2**20
CONTEXT = 300 * MIB


def test_without_a_baseline_nothing_is_said() -> None:
    assert MemoryBaseline().compare({"GPU-a": 5}) is None
    baseline = MemoryBaseline()
    baseline.note({"GPU-a": 5}, generation=0)
    assert baseline.compare({}) is None
    assert baseline.compare({"GPU-b": 5}) is None


@pytest.mark.parametrize(
    ("after", "is_back"),
    [(0, True), (4 * MIB, True), (4 * MIB + TOLERANCE_BYTES, True), (5 * MIB + TOLERANCE_BYTES, False)],
)
def test_memory_is_back_within_the_drivers_rounding(after: int, is_back: bool) -> None:
    baseline = MemoryBaseline()
    baseline.note({"GPU-a": 4 * MIB}, generation=0)
    (returned,) = baseline.compare({"GPU-a": after}) or ()
    assert (returned.device, returned.baseline_bytes, returned.used_bytes) == ("GPU-a", 4 * MIB, after)
    assert returned.is_back is is_back


def test_what_a_worker_leaves_behind_is_told_until_it_is_gone_and_never_becomes_normal() -> None:
    baseline = MemoryBaseline()
    baseline.note({"GPU-a": 4 * MIB}, generation=0)
    for _ in range(3):
        baseline.note({"GPU-a": CONTEXT}, generation=1)
        assert f"GPU-a: {CONTEXT} bytes, {4 * MIB} before" in baseline.tell_missing()
    baseline.note({"GPU-a": 5 * MIB}, generation=1)
    assert baseline.tell_missing() == ""


def test_while_no_worker_was_there_the_baseline_follows_what_the_driver_does() -> None:
    baseline = MemoryBaseline()
    for used in (4 * MIB, 2 * CONTEXT):  # somebody's display server, say, which no list of compute processes names
        baseline.note({"GPU-a": used}, generation=0)
    baseline.note({"GPU-a": 2 * CONTEXT}, generation=1)
    assert baseline.tell_missing() == ""


def test_a_device_of_which_nobody_could_tell_keeps_its_baseline_though_the_others_memory_is_back() -> None:
    baseline = MemoryBaseline()
    baseline.note({"GPU-a": 4 * MIB, "GPU-b": 4 * MIB}, generation=0)
    baseline.note({"GPU-a": 4 * MIB}, generation=1)
    assert baseline.misses({"GPU-a": 4 * MIB})
    baseline.note({"GPU-a": 4 * MIB, "GPU-b": CONTEXT}, generation=1)
    assert f"GPU-b: {CONTEXT} bytes, {4 * MIB} before" in baseline.tell_missing()
    assert "GPU-a" not in baseline.tell_missing()


def test_what_one_device_is_owed_does_not_keep_the_others_baselines_old() -> None:
    baseline = MemoryBaseline()
    baseline.note({"GPU-a": 4 * MIB, "GPU-b": 4 * MIB}, generation=0)
    baseline.note({"GPU-a": CONTEXT, "GPU-b": 5 * MIB}, generation=1)
    before = {each.device: each.baseline_bytes for each in baseline.compare({"GPU-a": 0, "GPU-b": 0}) or ()}
    assert before == {"GPU-a": 4 * MIB, "GPU-b": 5 * MIB}


def build(used: int | None, *processes: tuple[int | None, bool]) -> GpuFacts:
    listed = tuple(ProcessFacts(pid, used_bytes=bytes_, own=own) for pid, (bytes_, own) in enumerate(processes))
    return GpuFacts(index=0, uuid="GPU-a", used_bytes=used, processes=listed)


@pytest.mark.parametrize(
    ("gpu", "counted"),
    [
        (build(100), {"GPU-a": 100}),
        (build(100, (60, False)), {"GPU-a": 40}),
        (build(100, (60, True)), {"GPU-a": 100}),
        (build(100, (60, False), (None, False)), {}),
        (build(100, (None, True)), {"GPU-a": 100}),
        (build(None), {}),
        (GpuFacts(index=0, uuid="GPU-a", used_bytes=100), {}),
    ],
)
def test_memory_of_others_is_taken_off_and_what_cannot_be_told_is_not_guessed(
    gpu: GpuFacts, counted: dict[str, int]
) -> None:
    assert count_unowned([gpu]) == counted


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_in_use_is_never_more_back(one: int, other: int) -> None:
    baseline = MemoryBaseline()
    baseline.note({"a": 2**30}, generation=0)
    less, more = ((baseline.compare({"a": used}) or ())[0].is_back for used in sorted((one, other)))
    assert less or not more

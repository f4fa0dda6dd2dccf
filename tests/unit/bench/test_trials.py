"""What a trial becomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.bench import Collective
from meshwright_agent.children.bench.measure import Outcome
from tests.unit.bench.records import make_collective, make_record


@given(st.integers(1, 2**40), st.floats(1e-6, 1e3), st.floats(0.1, 2))
def test_algbw_is_s_over_the_median_and_busbw_its_multiple(size: int, duration_s: float, factor: float) -> None:
    record = make_collective(size=size, duration_s=duration_s, factor=factor)
    assert record.algbw_bytes_per_s == pytest.approx(size / record.median_s)
    assert record.busbw_bytes_per_s == pytest.approx(size / record.median_s * factor)
    assert record.flops_per_s is None


def test_a_matmul_states_its_flops_and_no_bandwidth() -> None:
    record = make_record("matmul", (0,), flops=2.0 * 64**3, duration_s=0.5)
    assert record.flops_per_s == 4.0 * 64**3
    assert (record.algbw_bytes_per_s, record.busbw_bytes_per_s) == (None, None)


@pytest.mark.parametrize(
    ("wrong_elements", "count", "correct"),
    [(0, None, True), (1, None, False), (0, 1, True), (0, 0, False), (2, 1, False)],
)
def test_a_result_is_right_if_no_element_is_wrong_and_the_collective_was_there(
    wrong_elements: int, count: int | None, correct: bool
) -> None:
    seen = None if count is None else Collective(op="all-reduce", count=count, bytes=4)
    assert Outcome(wrong_elements, collective=seen).correct is correct

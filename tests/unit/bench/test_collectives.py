"""What each collective must leave on each rank, against the definition written out element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.bench.scope import COLLECTIVE_CASES
from meshwright_agent.children.bench.collectives import KINDS, Group
from meshwright_agent.children.bench.measure import Array, build_tile


def write_out(case: str, begins: list[Array], rank: int) -> list[float]:
    """The definitions of MPI 4.1, chapter 6, for one rank."""
    ranks, count = range(len(begins)), len(begins[0])
    chunk = range(rank * count // len(begins), (rank + 1) * count // len(begins))
    match case:
        case "all_reduce":
            return [sum(begins[r][i] for r in ranks) for i in range(count)]
        case "all_gather":
            return [begins[r][i] for r in ranks for i in range(count)]
        case "reduce_scatter":
            return [sum(begins[r][i] for r in ranks) for i in chunk]
        case "all_to_all":
            return [begins[r][i] for r in ranks for i in chunk]
        case _:
            return list(begins[rank - 1])


@given(case=st.sampled_from(sorted(COLLECTIVE_CASES)), size=st.integers(2, 6), chunk=st.integers(1, 5), data=st.data())
def test_what_is_expected_follows_the_definition(case: str, size: int, chunk: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    group = Group([build_tile(seed, 31) for seed in range(size)], rank, size * chunk, np.dtype(np.float32))
    begins = [group.begin(member) for member in range(size)]
    assert KINDS[case].expect(group).tolist() == write_out(case, begins, rank)  # type: ignore[index]


@pytest.mark.parametrize(("case", "factors"), [
    ("all_reduce", {2: 1.0, 4: 1.5, 8: 1.75}), ("all_gather", {2: 0.5, 4: 0.75, 8: 0.875}),
    ("reduce_scatter", {2: 0.5, 4: 0.75, 8: 0.875}), ("all_to_all", {2: 0.5, 4: 0.75, 8: 0.875}),
    ("permute", {2: 1.0, 4: 1.0, 8: 1.0}),
])  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(case: str, factors: dict[int, float]) -> None:
    assert {count: KINDS[case].factor(count) for count in factors} == factors  # type: ignore[index]
